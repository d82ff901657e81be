"""The statistics agree with R; tests/oracles/statistics.R made the values."""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from palimpsest.paper.bars import draw_gaps
from palimpsest.stats.intervals import clopper_pearson
from palimpsest.stats.multiplicity import holm
from palimpsest.stats.ranktest import rank_test

TABLE = Path(__file__).parents[1] / "oracles" / "statistics.tsv"


def numbers(text: str) -> list[float]:
    return [float(value) for value in text.split(";")]


ROWS = [line.split("\t") for line in TABLE.read_text().splitlines() if not line.startswith("#")]


def cases(*kinds: str) -> list[tuple[list[float], list[float], str, list[float]]]:
    found = [
        (numbers(first), numbers(second), setting, numbers(result))
        for kind, first, second, setting, result in ROWS
        if kind in kinds
    ]
    assert found
    return found


def test_rank_test_without_ties_equals_wilcox_test():
    for forget, probe, _, (p,) in cases("wilcox.test"):
        result = rank_test(forget, probe)
        assert result.method == "exact"
        assert result.p_value == pytest.approx(p, rel=1e-9)


def test_rank_test_with_ties_equals_exactranktests_and_coin():
    for forget, probe, _, (p,) in cases("wilcox.exact", "coin"):
        result = rank_test(forget, probe)
        assert result.method == "exact-ties"
        assert result.p_value == pytest.approx(p, rel=1e-9, abs=1e-14)


def test_holm_equals_p_adjust():
    for p_values, _, _, adjusted in cases("holm"):
        assert holm(p_values, 0.05).adjusted == pytest.approx(adjusted, rel=1e-12)
        assert holm([Fraction(p) for p in p_values], 0.05).rejected == tuple(
            p <= 0.05 for p in adjusted
        )


def test_clopper_pearson_equals_binom_test():
    for (successes,), (trials,), _, (upper, lower, low, high) in cases("binom.test"):
        x, n = int(successes), int(trials)
        assert clopper_pearson(x, n, side="upper").high == pytest.approx(upper, rel=1e-10)
        assert clopper_pearson(x, n, side="lower").low == pytest.approx(lower, rel=1e-10)
        both = clopper_pearson(x, n)
        assert (both.low, both.high) == pytest.approx((low, high), rel=1e-10)


def test_replication_gap_is_rs_default_quantile_of_the_gaps():
    for gaps, (percentile,), _, (expected,) in cases("quantile"):
        draws = np.array([np.zeros(len(gaps)), gaps])
        found = np.percentile(draw_gaps(draws), percentile)
        assert found == pytest.approx(expected, rel=1e-12) and math.isfinite(expected)
