"""Likelihood and membership criteria against values computed by hand from their formulas."""

import itertools
import math
import zlib

import numpy as np
import pytest

from palimpsest_trials.criteria import likelihood as like

HALF = math.log(2)
Q = 0.3


def hits(*words: str) -> list[np.ndarray]:
    return [np.array([letter == "1" for letter in word]) for word in words]


BY_HAND = [
    (like.probability, ([HALF, 2 * HALF],), (0.5 + 0.25) / 2),
    (like.truth_ratio, ([HALF], [[HALF, 3 * HALF]]), 0.5),  # of the geometric mean 1/4 to 1/2
    (like.truth_ratio, ([3 * HALF], [[HALF, HALF]]), 0.25),  # min(r, 1/r)
    (like.truth_knowledge, ([HALF], [[HALF, 3 * HALF]]), 0.5 / 0.75),
    (like.forget_quality, ([1, 2, 3, 4], [5, 6, 7, 8]), 2 / 70),  # two of C(8, 4) have D = 1
    (like.forget_quality, ([1, 3, 5, 7], [1, 3, 5, 7]), 1.0),
    (like.extraction_strength, (hits("0"),), 0.0),  # released code gives 1
    (like.extraction_strength, (hits("00"),), 0.0),  # and here 0.5
    (like.extraction_strength, (hits("0111"),), 0.75),
    (like.extraction_strength, (hits("1110"),), 0.0),
    (like.exact_memorization, (hits("1110", "0"),), 0.375),
    # A tie is a miss.
    (like.multiple_choice, ([1.0, 2.0, 1.0], [[2.0, 3.0], [1.0, 3.0], [1.0, 2.0]]), 1 / 3),
    # Bin 0.9–1: confidence 0.95, accuracy 0.5; bin 0.2–0.3: confidence 0.25, accuracy 0.
    (like.calibration_error, ([0.95, 0.95, 0.25, 0.25], [1, 0, 0, 0]), (2 * 0.45 + 2 * 0.25) / 4),
    (like.leak_at_k, ([-math.log(Q)], 2), 1 - (1 - Q) ** 2),
    (like.leak_at_k, ([60.0], 128), 128 * math.exp(-60)),
    (like.min_rank_p, (np.full(4, -1.0), np.zeros(76)), 0.05),  # the fewest probes that reject
    (like.auc, ([3, 2], [1, 2]), (1 + 1 + 1 + 0.5) / 4),
    (like.min_k_scores, ([np.array([-1.0, -2.0, -9.0]), np.arange(-10.0, 0.0)],), [-9.0, -9.5]),
    (like.zlib_scores, ([2.0], ["Vekadun"]), [-2.0 / len(zlib.compress(b"Vekadun"))]),
    (like.recall_scores, ([3.0], [2.0]), [1.5]),
    (like.privleak, (0.75, 0.5), 50.0),
]


@pytest.mark.parametrize(("criterion", "arguments", "expected"), BY_HAND)
def test_a_criterion_has_the_value_of_its_formula(criterion, arguments, expected):
    assert criterion(*arguments) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("m", "n"), [(2, 4), (3, 5)])
def test_the_min_rank_p_value_is_that_of_enumeration(m, n):
    ranks = range(m + n)
    for below in range(n + 1):
        some = [c for c in itertools.combinations(ranks, m) if c[0] <= below]
        forget = np.array([below + 0.5] + [100.0] * (m - 1))
        probes = np.concatenate([np.arange(below) - 1.0, np.full(n - below, 50.0)])
        expected = len(some) / math.comb(m + n, m)
        assert like.min_rank_p(forget, probes) == pytest.approx(expected)


def test_min_k_plus_standardizes_under_the_models_own_law():
    chance = np.array([0.5, 0.25, 0.25])
    mean = float(chance @ np.log(chance))
    variance = float(chance @ np.log(chance) ** 2) - mean**2
    got = like.standardize(np.log([0.25]), np.array([mean]), np.array([variance]))
    assert got == pytest.approx([(math.log(0.25) - mean) / math.sqrt(variance)])
