"""The screen on arrays, against scipy, brute force and the two-sample AUC."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

import palimpsest
from palimpsest.errors import ScoreError
from palimpsest.openunlearning.screening import FEWEST


def test_the_example_of_the_docstring_is_true() -> None:
    found = palimpsest.screen([2.1, 0.4, 0.9], [2.8, 3.0, 3.3], [3.0, 2.9, 3.1], [2.9, 3.2, 3])
    assert (found.p_below, found.auc, found.method) == (0.05, 1.0, "exact")


@pytest.mark.parametrize(("forget", "holdout"), [(5, 7), (FEWEST, FEWEST), (30, 400)])
def test_both_sides_are_scipys(forget: int, holdout: int) -> None:
    random = np.random.default_rng(3)
    mine, theirs = random.normal(-0.3, 1, forget), random.normal(0, 1, holdout)
    found = palimpsest.screen(mine, theirs)
    method = "exact" if forget < FEWEST else "asymptotic"
    for p, side in ((found.p_below, "less"), (found.p_above, "greater")):
        test = mannwhitneyu(mine, theirs, alternative=side, method=method)
        assert p == pytest.approx(test.pvalue)
    assert found.auc == pytest.approx(np.mean(mine[:, None] < theirs))
    assert not found.anchored


def test_ties_get_the_distribution_of_their_pattern() -> None:
    mine, theirs = [0.0, 1.0, 1.0], [1.0, 2.0, 2.0, 3.0]
    pooled = mine + theirs

    def auc(indices: tuple[int, ...]) -> float:
        others = [v for i, v in enumerate(pooled) if i not in indices]
        chosen = [pooled[i] for i in indices]
        return float(np.mean([(a < b) + (a == b) / 2 for a in chosen for b in others]))

    every = [auc(indices) for indices in combinations(range(7), 3)]
    found = palimpsest.screen(mine, theirs)
    assert found.auc == pytest.approx(auc((0, 1, 2)))
    assert found.p_below == pytest.approx(np.mean(np.array(every) >= found.auc - 1e-12))


def test_what_is_not_finite_is_left_out_of_its_pair() -> None:
    anchors = [[0.0, 0.0, np.inf, 0.0], [0.0, np.nan, 0.0]]
    found = palimpsest.screen([1.0, np.nan, np.inf, 2.0], [3.0, 4.0, 5.0], *anchors)
    assert (found.forget, found.holdout, found.left_out) == (2, 2, 3)
    assert (found.median_forget, found.median_holdout, found.anchored) == (1.5, 4.0, True)


@pytest.mark.parametrize(
    "arrays",
    [
        ([1.0], [2.0], [1.0], None),
        ([1.0], [2.0], None, [1.0]),
        ([1.0], [2.0], [1.0, 2.0], [1.0]),
        ([[1.0]], [2.0]),
        ([], [2.0]),
        ([np.nan], [2.0]),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays: Any) -> None:
    with pytest.raises(ScoreError):
        palimpsest.screen(*arrays)
