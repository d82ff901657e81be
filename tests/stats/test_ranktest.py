"""The rank test is exact, with and without ties, and never turns a bad score into a p-value."""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from palimpsest.errors import ScoreError
from palimpsest.stats.ranktest import rank_test, rank_tests, tail_count


def enumerated_tail_counts(pooled: np.ndarray, m: int) -> list[int]:
    """How many m-subsets have 2 U <= u, for every u, by listing them all."""
    doubled = np.rint(2 * stats.rankdata(pooled)).astype(int)
    subsets = np.array(list(combinations(range(len(pooled)), m)))
    doubled_u = doubled[subsets].sum(axis=1) - m * (m + 1)
    counts = np.bincount(doubled_u, minlength=2 * m * (len(pooled) - m) + 1)
    return np.cumsum(counts).tolist()


def block_sizes(pooled: np.ndarray) -> tuple[int, ...]:
    return tuple(np.unique(pooled, return_counts=True)[1].tolist())


def compositions(total: int):
    for cuts in range(2 ** (total - 1)):
        sizes, run = [], 1
        for bit in range(total - 1):
            if cuts >> bit & 1:
                sizes.append(run)
                run = 1
            else:
                run += 1
        yield (*sizes, run)


@pytest.mark.parametrize("m", range(1, 9))
@pytest.mark.parametrize("n", range(1, 9))
def test_every_lattice_point_matches_enumeration_up_to_eight_by_eight(m, n):
    generator = np.random.default_rng(100 * m + n)
    samples = [np.arange(m + n)]  # no ties
    samples += [generator.integers(levels, size=m + n) for levels in (1, 2, 3, 5, 9, 14)]
    for pooled in samples:
        blocks = block_sizes(pooled)
        expected = enumerated_tail_counts(pooled, m)
        assert [tail_count(blocks, m, u) for u in range(len(expected))] == expected


@pytest.mark.parametrize("total", range(2, 9))
def test_every_tie_pattern_of_up_to_eight_values_matches_enumeration(total):
    for blocks in compositions(total):
        pooled = np.repeat(np.arange(len(blocks)), blocks)
        for m in range(1, total):
            expected = enumerated_tail_counts(pooled, m)
            assert [tail_count(blocks, m, u) for u in range(len(expected))] == expected


@pytest.mark.parametrize("tied", [False, True])
def test_p_value_matches_enumeration_of_labels(tied):
    generator = np.random.default_rng(3)
    for m, n in ((4, 8), (8, 4), (5, 5), (1, 7)):
        forget = generator.normal(size=m).round(0 if tied else 12)
        probe = generator.normal(size=n).round(0 if tied else 12)
        result = rank_test(forget, probe)
        expected = enumerated_tail_counts(np.concatenate([forget, probe]), m)
        assert result.exact_p == Fraction(
            expected[round(2 * result.statistic)], math.comb(m + n, m)
        )
        assert result.method == ("exact-ties" if tied else "exact")
        above = (forget[:, None] > probe).sum() + 0.5 * (forget[:, None] == probe).sum()
        assert result.statistic == above


def test_the_least_p_at_four_against_sixteen_is_one_in_4845():
    result = rank_test([-4.0, -3.0, -2.0, -1.0], np.arange(16.0))
    assert result.exact_p == Fraction(1, 4845)
    assert result.p_value == 1 / 4845
    assert rank_test([16.0, 17.0, 18.0, 19.0], np.arange(16.0)).p_value == 1.0


@pytest.mark.parametrize(("m", "n"), [(4, 16), (25, 40), (60, 60), (3, 100), (100, 100)])
def test_untied_p_values_agree_with_scipy_exact(m, n):
    generator = np.random.default_rng(m + n)
    for shift in (0.0, 0.5, 1.0):
        forget, probe = generator.normal(-shift, 1, m), generator.normal(0, 1, n)
        outside = stats.mannwhitneyu(forget, probe, alternative="less", method="exact").pvalue
        assert rank_test(forget, probe).p_value == pytest.approx(outside, rel=1e-10)


def test_large_tied_samples_keep_the_whole_distribution_exact():
    generator = np.random.default_rng(8)
    blocks = block_sizes(generator.integers(40, size=120))
    m = n = 60
    tails = [tail_count(blocks, m, u) for u in range(0, 2 * m * n + 1, 240)]
    assert tails == sorted(tails) and tails[-1] == math.comb(120, 60)
    # The distribution of 2 U is mirrored when the order of the pooled sample is reversed.
    for u in (1500, 3000, 3599, 3600, 5000):
        mirrored = math.comb(120, 60) - tail_count(blocks[::-1], m, 2 * m * n - u - 1)
        assert tail_count(blocks, m, u) == mirrored


def test_mean_and_variance_of_the_tied_null_are_the_textbook_ones():
    blocks, m = (3, 1, 4, 2, 2, 5, 1, 6), 9
    total = sum(blocks)
    n = total - m
    tails = [tail_count(blocks, m, u) for u in range(2 * m * n + 1)]
    counts = np.diff([0, *tails])
    arrangements = math.comb(total, m)
    mean = Fraction(sum(u * int(c) for u, c in enumerate(counts)), 2 * arrangements)
    square = Fraction(sum(u * u * int(c) for u, c in enumerate(counts)), 4 * arrangements)
    ties = Fraction(sum(t**3 - t for t in blocks), total * (total - 1))
    assert mean == Fraction(m * n, 2)
    assert square - mean**2 == Fraction(m * n, 12) * (total + 1 - ties)


def test_beyond_the_exact_range_the_result_says_normal_and_stays_close():
    generator = np.random.default_rng(5)
    forget, probe = generator.normal(-0.3, 1, 45).round(1), generator.normal(0, 1, 50).round(1)
    exact = rank_test(forget, probe)
    approximate = rank_test(forget, probe, exact_pairs=100)
    assert (exact.method, approximate.method) == ("exact-ties", "normal")
    assert approximate.count is None
    assert approximate.p_value == pytest.approx(exact.p_value, rel=0.05)
    scipy = stats.mannwhitneyu(forget, probe, alternative="less", method="asymptotic").pvalue
    assert approximate.p_value == pytest.approx(scipy, rel=1e-12)


def test_the_approximation_is_never_below_what_the_lattice_allows():
    result = rank_test([0.0, 1.0], [5.0, 6.0], exact_pairs=0)
    assert result.method == "normal"
    assert result.p_value >= 1 / 6
    assert rank_test([1.0, 1.0], [1.0, 1.0], exact_pairs=0).p_value == 1.0


def test_all_values_equal_give_p_one():
    result = rank_test(np.zeros(4), np.zeros(16))
    assert result.p_value == 1.0
    assert result.method == "exact-ties"


def test_under_the_null_rejections_stay_at_or_below_alpha():
    generator = np.random.default_rng(20_250)
    forget, probe = generator.normal(size=(20_000, 4)), generator.normal(size=(20_000, 16))
    for decimals in (12, 0):  # continuous, then heavily tied
        p = np.array([r.p_value for r in rank_tests(forget.round(decimals), probe.round(decimals))])
        for alpha in (0.05, 0.01, 0.0025):
            standard_error = math.sqrt(alpha * (1 - alpha) / len(p))
            assert (p <= alpha).mean() <= alpha + 3 * standard_error


def test_exact_level_under_the_null_is_never_above_alpha():
    """No simulation: the chance of p <= alpha, summed over the exact null lattice."""
    for blocks in ((1,) * 20, (2, 3, 1, 1, 5, 1, 1, 1, 1, 4), (10, 10)):
        total = math.comb(20, 4)
        for alpha in (Fraction(1, 20), Fraction(1, 100), Fraction(1, 400)):
            tails = [tail_count(blocks, 4, u) for u in range(129)]
            assert (
                max((t for t in tails if Fraction(t, total) <= alpha), default=0) <= alpha * total
            )


def test_batched_tests_equal_single_tests():
    generator = np.random.default_rng(2)
    forget = generator.normal(size=(60, 4)).round(1)
    probe = generator.normal(size=(60, 16)).round(1)
    assert rank_tests(forget, probe) == tuple(rank_test(f, p) for f, p in zip(forget, probe))


whole = st.lists(st.integers(-6, 6), min_size=1, max_size=12)


@given(whole, whole)
def test_swapping_the_groups_gives_the_other_tail(forget, probe):
    one, other = rank_test(forget, probe), rank_test(probe, forget)
    assert one.statistic + other.statistic == len(forget) * len(probe)
    # P(U <= u) + P(U >= u) - P(U = u) = 1, and P(U >= u) is the p-value of the negated sample.
    negated = rank_test([-x for x in forget], [-x for x in probe])
    assert negated.exact_p == other.exact_p
    assert one.exact_p + other.exact_p >= 1


@given(whole, whole, st.integers(-5, 5), st.integers(1, 4))
def test_only_order_matters(forget, probe, shift, scale):
    moved = rank_test([scale * x + shift for x in forget], [scale * x + shift for x in probe])
    assert moved == rank_test(forget, probe)


@given(whole, whole, st.randoms())
def test_order_of_facts_does_not_matter(forget, probe, random):
    before = rank_test(forget, probe)
    random.shuffle(forget)
    random.shuffle(probe)
    assert rank_test(forget, probe) == before


@settings(max_examples=50)
@given(whole, whole, st.integers(1, 5))
def test_lower_forget_deltas_never_raise_the_p_value(forget, probe, drop):
    """Monotone in the data as long as the pooled tie pattern is that of distinct values."""
    forget = [7 * x + 0.013 * i for i, x in enumerate(forget)]
    probe = [7 * x + 0.5 + 0.017 * i for i, x in enumerate(probe)]
    lowered = rank_test([x - drop for x in forget], probe)
    original = rank_test(forget, probe)
    if original.method == lowered.method == "exact":
        assert lowered.exact_p <= original.exact_p


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_score_that_is_not_finite_is_an_error(value):
    with pytest.raises(ScoreError, match="forget"):
        rank_test([0.0, value], [1.0, 2.0])
    with pytest.raises(ScoreError, match="probe"):
        rank_tests([[0.0], [0.0]], [[1.0], [value]])


@pytest.mark.parametrize(
    ("test", "forget", "probe"),
    [
        (rank_test, [], [1.0]),
        (rank_test, [1.0], []),
        (rank_test, [[1.0]], [1.0]),
        (rank_tests, [[1.0]], [[1.0], [2.0]]),
    ],
)
def test_no_scores_or_too_many_are_an_error(test, forget, probe):
    with pytest.raises(ScoreError):
        test(forget, probe)
