"""Spearman's correlation agrees with R, and its interval covers."""

import math

import numpy as np
import pytest
from tests.stats.test_against_r import cases

from palimpsest.errors import ScoreError
from palimpsest_trials.correlation import spearman


def test_spearman_equals_cor():
    for x, y, _, (rho,) in cases("spearman"):
        assert spearman(x, y).estimate == pytest.approx(rho, abs=1e-12)


def test_spearman_interval_covers_a_known_correlation():
    generator = np.random.default_rng(3)
    rho = 6 / math.pi * math.asin(0.6 / 2)  # Spearman's value of a bivariate normal with r = 0.6
    covered = 0
    for _ in range(400):
        x = generator.normal(size=40)
        y = 0.6 * x + 0.8 * generator.normal(size=40)
        interval = spearman(x, y)
        covered += interval.low <= rho <= interval.high
    assert 0.91 <= covered / 400 <= 0.985


def test_spearman_edges():
    assert spearman([1, 2, 3, 4], [2, 4, 6, 9]).estimate == 1.0
    assert spearman([1, 2, 3, 4], [9, 4, 3, 1]).high == -1.0
    with pytest.raises(ScoreError):
        spearman([1, 2, 3], [1, 2, 3])
    with pytest.raises(ScoreError):
        spearman([1, 1, 1, 1], [1, 2, 3, 4])
