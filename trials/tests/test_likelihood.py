"""Likelihood and membership criteria against values computed by hand from their formulas."""

import itertools
import math
import zlib

import numpy as np
import pytest

from palimpsest_trials.criteria import likelihood as like

HALF = math.log(2)


def hits(*words: str) -> list[np.ndarray]:
    return [np.array([letter == "1" for letter in word]) for word in words]


def test_probability_is_the_arithmetic_mean() -> None:
    assert like.probability([HALF, 2 * HALF]) == pytest.approx((0.5 + 0.25) / 2)


def test_the_wrong_answers_of_a_truth_ratio_enter_by_their_geometric_mean() -> None:
    right, wrong = like.truth_ratios([HALF], [[HALF, 3 * HALF]])
    assert right == pytest.approx([0.5]) and wrong == pytest.approx([0.25])
    assert like.truth_ratio([HALF], [[HALF, 3 * HALF]]) == pytest.approx(0.5)
    assert like.truth_ratio([3 * HALF], [[HALF, HALF]]) == pytest.approx(0.25)  # min(r, 1/r)
    assert like.truth_knowledge([HALF], [[HALF, 3 * HALF]]) == pytest.approx(0.5 / 0.75)


def test_forget_quality_of_four_against_four_is_small_only_when_apart() -> None:
    # Of C(8, 4) = 70 arrangements two have D = 1.
    assert like.forget_quality([1, 2, 3, 4], [5, 6, 7, 8]) == pytest.approx(2 / 70)
    assert like.forget_quality([1, 3, 5, 7], [1, 3, 5, 7]) == 1.0


def test_extraction_strength_of_short_and_wrong_answers() -> None:
    assert like.extraction_strength(hits("0")) == 0.0  # released code gives 1
    assert like.extraction_strength(hits("00")) == 0.0  # and here 0.5
    assert like.extraction_strength(hits("1")) == 1.0
    assert like.extraction_strength(hits("0111")) == pytest.approx(0.75)
    assert like.extraction_strength(hits("1110")) == 0.0
    assert like.exact_memorization(hits("1110", "0")) == pytest.approx(0.375)


def test_multiple_choice_counts_a_tie_as_a_miss() -> None:
    assert like.multiple_choice([1.0, 2.0, 1.0], [[2.0, 3.0], [1.0, 3.0], [1.0, 2.0]]) == 1 / 3


def test_calibration_error_by_hand() -> None:
    # Bin 0.9–1: confidence 0.95, accuracy 0.5; bin 0.2–0.3: confidence 0.25, accuracy 0.
    assert like.calibration_error([0.95, 0.95, 0.25, 0.25], [1, 0, 0, 0]) == pytest.approx(
        (2 * 0.45 + 2 * 0.25) / 4
    )


def test_leak_at_k_equals_what_sampling_would_find() -> None:
    q = 0.3
    assert like.leak_at_k([-math.log(q)], 1) == pytest.approx(q)
    assert like.leak_at_k([-math.log(q)], 2) == pytest.approx(1 - 0.7**2)
    assert like.leak_at_k([60.0], 128) == pytest.approx(128 * math.exp(-60), rel=1e-6)


@pytest.mark.parametrize(("m", "n"), [(2, 4), (3, 5)])
def test_the_min_rank_p_value_is_that_of_enumeration(m: int, n: int) -> None:
    ranks = range(m + n)
    for below in range(n + 1):
        some = [c for c in itertools.combinations(ranks, m) if c[0] <= below]
        forget = np.array([below + 0.5] + [100.0] * (m - 1))
        probes = np.concatenate([np.arange(below) - 1.0, np.full(n - below, 50.0)])
        expected = len(some) / math.comb(m + n, m)
        assert like.min_rank_p(forget, probes) == pytest.approx(expected)


def test_seventy_six_probes_are_the_fewest_that_let_four_facts_be_rejected() -> None:
    low, high = np.full(4, -1.0), np.zeros(75)
    assert like.min_rank_p(low, high) > 0.05
    assert like.min_rank_p(low, np.zeros(76)) == pytest.approx(0.05)


def test_auc_counts_ties_one_half() -> None:
    assert like.auc([3, 2], [1, 2]) == pytest.approx((1 + 1 + 1 + 0.5) / 4)


def test_min_k_takes_at_least_one_token_and_the_last_too() -> None:
    tokens = [np.array([-1.0, -2.0, -9.0]), np.arange(-10.0, 0.0)]
    assert like.min_k_scores(tokens, 0.2) == pytest.approx([-9.0, -9.5])


def test_min_k_plus_standardizes_under_the_models_own_law() -> None:
    chance = np.array([0.5, 0.25, 0.25])
    mean = float(chance @ np.log(chance))
    variance = float(chance @ np.log(chance) ** 2) - mean**2
    got = like.standardize(np.log([0.25]), np.array([mean]), np.array([variance]))
    assert got == pytest.approx([(math.log(0.25) - mean) / math.sqrt(variance)])
    flat = like.standardize(np.array([-1.0]), np.array([-1.0]), np.array([0.0]))
    assert flat == pytest.approx([0.0])


def test_zlib_recall_and_privleak_by_hand() -> None:
    size = len(zlib.compress(b"Vekadun"))
    assert like.zlib_scores([2.0], ["Vekadun"]) == pytest.approx([-2.0 / size])
    assert like.recall_scores([3.0], [2.0]) == pytest.approx([1.5])
    assert like.privleak(0.75, 0.5) == pytest.approx(50.0)
