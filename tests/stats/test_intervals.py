"""Intervals cover what they say, and refuse what they cannot answer."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from palimpsest.errors import ScoreError
from palimpsest.stats.intervals import (
    clopper_pearson,
    clopper_pearson_clustered,
    cluster_bootstrap,
    tost,
)


@pytest.mark.parametrize(
    ("successes", "trials", "percent"), [(0, 45, 6.4), (0, 9, 28.3), (12, 45, 39.6)]
)
def test_the_papers_upper_bounds(successes, trials, percent):
    bound = clopper_pearson(successes, trials, side="upper")
    assert round(100 * bound.high, 1) == percent
    assert bound.low == 0.0


def test_never_in_45_cells_of_nine_architectures_is_28_percent_clustered():
    cells = [False] * 45
    architectures = [cell // 5 for cell in range(45)]
    bound = clopper_pearson_clustered(cells, architectures, side="upper")
    assert round(100 * bound.high, 1) == 28.3
    assert "clustered" in bound.method


def test_one_bad_cell_makes_its_whole_architecture_count():
    cells = [False] * 45
    cells[7] = True
    clustered = clopper_pearson_clustered(cells, [cell // 5 for cell in range(45)], side="upper")
    assert clustered.estimate == 1 / 9
    assert clustered.high == clopper_pearson(1, 9, side="upper").high


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_clopper_pearson_limits_invert_the_binomial_tails(case):
    x, n = case
    interval = clopper_pearson(x, n)
    assert interval.low <= interval.estimate <= interval.high
    if x > 0:
        assert stats.binom.sf(x - 1, n, interval.low) == pytest.approx(0.025, rel=1e-6)
    if x < n:
        assert stats.binom.cdf(x, n, interval.high) == pytest.approx(0.025, rel=1e-6)


@pytest.mark.parametrize(("successes", "trials"), [(-1, 3), (4, 3), (0, 0)])
def test_impossible_counts_are_refused(successes, trials):
    with pytest.raises(ScoreError):
        clopper_pearson(successes, trials)


# --- bootstrap ----------------------------------------------------------------------------------


def clustered_sample(seed, clusters=30, size=6):
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(clusters), size)
    values = generator.normal(0, 1, clusters)[labels] + generator.normal(0, 0.3, len(labels))
    return values, labels.tolist()


def test_singleton_clusters_agree_with_scipys_bootstrap():
    data = np.random.default_rng(4).gamma(2.0, size=60)
    ours = cluster_bootstrap(data, range(60), resamples=20_000, seed=1)
    outside = stats.bootstrap(
        (data,),
        np.mean,
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((outside.low, outside.high), abs=0.02)
    assert ours.estimate == pytest.approx(data.mean(), rel=1e-12)


def test_a_resample_takes_whole_clusters():
    """Uneven clusters, the bootstrap written out."""
    values, labels = clustered_sample(0, clusters=7, size=3)
    values, labels = values[:-1], np.array(labels[:-1])
    drawn = np.random.default_rng(5).multinomial(7, np.full(7, 1 / 7), size=300)
    for name, function in (("mean", np.mean), ("median", np.median)):
        means = [function(np.repeat(values, row[labels])) for row in drawn]
        found = cluster_bootstrap(values, labels.tolist(), name, 300, seed=5)
        expected = np.quantile(means, [0.025, 0.975])
        assert (found.low, found.high) == pytest.approx(tuple(expected), rel=1e-12)


def test_clusters_widen_the_interval():
    values, labels = clustered_sample(1)
    by_cell = cluster_bootstrap(values, labels)
    by_item = cluster_bootstrap(values, range(len(values)))
    assert by_cell.high - by_cell.low > 1.7 * (by_item.high - by_item.low)


def test_bootstrap_by_cell_covers_the_truth():
    covered = 0
    for seed in range(200):
        interval = cluster_bootstrap(*clustered_sample(seed), resamples=400, seed=seed)
        covered += interval.low <= 0 <= interval.high
    assert 0.88 <= covered / 200 <= 0.99


def test_the_seed_decides_the_interval():
    values, labels = clustered_sample(2)
    first = cluster_bootstrap(values, labels, resamples=500, seed=9)
    assert cluster_bootstrap(values, labels, resamples=500, seed=9) == first
    assert cluster_bootstrap(values, labels, resamples=500, seed=10) != first


@pytest.mark.parametrize(
    ("values", "clusters"),
    [([1.0, 2.0], ["a", "a"]), ([1.0, math.nan], ["a", "b"]), ([1.0, 2.0], ["a"])],
)
def test_bootstrap_refusals(values, clusters):
    with pytest.raises(ScoreError):
        cluster_bootstrap(values, clusters)


# --- equivalence --------------------------------------------------------------------------------


def test_rank_tost_accepts_closeness_and_rejects_distance():
    probe = np.linspace(-0.4, 0.4, 16)
    near, far = probe[[2, 6, 9, 13]] + 0.01, probe[[2, 6, 9, 13]] + 1.2
    assert tost(near, probe, 0.93) <= 0.05
    assert tost(far, probe, 0.93) > 0.05


def test_tost_is_the_larger_of_two_scipy_tests():
    generator = np.random.default_rng(0)
    for _ in range(5):
        x, y = generator.normal(0.1, 0.4, 8), generator.normal(0, 0.6, 16)
        outside = [
            stats.mannwhitneyu(x + shift, y, alternative=side, method="exact").pvalue
            for shift, side in ((0.93, "greater"), (-0.93, "less"))
        ]
        assert tost(x, y, 0.93) == pytest.approx(max(outside), rel=1e-9)


def test_tost_at_the_margin_is_rarely_wrong():
    """At a true difference equal to the margin, equivalence is claimed alpha of the time."""
    generator = np.random.default_rng(6)
    wrong = sum(
        tost(generator.normal(0.93, 0.3, 6), generator.normal(0, 0.3, 16), 0.93) <= 0.05
        for _ in range(2000)
    )
    assert wrong / 2000 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)


def test_screen_survivor_is_not_thereby_equivalent():
    """Over-forgetting passes the one-sided screen and fails equivalence."""
    from palimpsest.stats.ranktest import rank_test

    probe = np.linspace(-0.3, 0.3, 16)
    over_forgotten = np.array([9.0, 10.0, 11.0, 12.0])
    assert rank_test(over_forgotten, probe).p_value == 1.0
    assert tost(over_forgotten, probe, 0.93) > 0.05


@pytest.mark.parametrize(("delta", "margin"), [(1.0, 0.0), (math.inf, 1.0)])
def test_tost_refusals(delta, margin):
    with pytest.raises(ScoreError):
        tost([delta], [1.0], margin)
