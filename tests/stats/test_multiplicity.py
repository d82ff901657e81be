"""Holm, the certifiability bound with the paper's own arithmetic, and exact power."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.errors import PlanError, ScoreError
from palimpsest.stats.multiplicity import (
    certifiability,
    critical_value,
    holm,
    minimum_matched,
    screen_power,
)
from palimpsest.stats.ranktest import rank_tests, tail_count


def test_the_bound_has_the_papers_arithmetic():
    bound = certifiability(4, 4, 20, 0.05)
    assert (bound.arrangements, bound.required, bound.certifiable) == (70, 400, False)
    assert certifiability(4, 16, 20, 0.05).min_p == 1 / 4845
    assert [certifiability(4, 16, k, 0.05).min_probes for k in (16, 20)] == [7, 8]
    assert minimum_matched(16, 0.05) == minimum_matched(20, 0.05) == 6


@given(st.integers(1, 12), st.integers(1, 60), st.sampled_from([0.05, 0.01, 0.1]))
def test_minimum_probes_is_where_the_bound_turns(forget, candidates, alpha):
    least = certifiability(forget, 1, candidates, alpha).min_probes
    assert certifiability(forget, least, candidates, alpha).certifiable
    if least > 1:
        assert not certifiability(forget, least - 1, candidates, alpha).certifiable


def worst_case_screen(m, n, candidates):
    """Every candidate under-forgets as badly as ranks can show."""
    forget = np.tile(np.arange(m) - 100.0, (candidates, 1))
    probe = np.tile(np.arange(float(n)), (candidates, 1))
    return holm([test.exact_p for test in rank_tests(forget, probe)], 0.05)


@pytest.mark.parametrize(("m", "n", "candidates"), [(4, 4, 16), (4, 6, 16), (4, 7, 20), (1, 9, 1)])
def test_below_the_bound_nobody_is_excluded_at_any_effect_size(m, n, candidates):
    assert not certifiability(m, n, candidates, 0.05).certifiable
    assert not any(worst_case_screen(m, n, candidates).rejected)


@pytest.mark.parametrize(("m", "n", "candidates"), [(4, 7, 16), (4, 8, 20), (1, 19, 1), (3, 3, 1)])
def test_at_the_bound_the_worst_candidates_are_excluded(m, n, candidates):
    assert certifiability(m, n, candidates, 0.05).certifiable
    assert all(worst_case_screen(m, n, candidates).rejected)


def test_a_p_value_exactly_on_the_boundary_rejects():
    """C(400, 1) = 400 arrangements for 20 candidates: 20 * (1/400) is 0.05, without rounding."""
    assert holm([Fraction(1, 400)] + [Fraction(1)] * 19, 0.05).rejected[0]
    assert holm([Fraction(1, 399)] + [Fraction(1)] * 19, 0.05).rejected[0] is False


probabilities = st.lists(
    st.integers(0, 1000).map(lambda i: Fraction(i, 1000)), min_size=1, max_size=9
)


@given(probabilities)
def test_holm_lies_between_no_correction_and_bonferroni(p_values):
    result = holm(p_values, 0.05)
    for p, adjusted, rejected in zip(p_values, result.adjusted, result.rejected):
        assert float(p) <= adjusted <= min(1.0, len(p_values) * float(p)) + 1e-15
        assert rejected == (Fraction(adjusted) <= Fraction(1, 20) or adjusted == 0.05)
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    assert [result.adjusted[i] for i in order] == sorted(result.adjusted)


def holm_by_steps(p_values, alpha):
    """The procedure as Holm words it: step down until one hypothesis is kept."""
    rejected = [False] * len(p_values)
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] * (len(p_values) - rank) > alpha:
            break
        rejected[index] = True
    return rejected


@given(probabilities, st.sampled_from([Fraction(1, 20), Fraction(1, 10), Fraction(1, 2)]))
def test_holm_decisions_equal_the_step_down_procedure(p_values, alpha):
    assert list(holm(p_values, float(alpha)).rejected) == holm_by_steps(p_values, alpha)


def test_family_wise_error_under_the_null_is_at_most_alpha():
    generator = np.random.default_rng(11)
    families, candidates = 2000, 20
    shape = (families * candidates,)
    tests = rank_tests(generator.normal(size=(*shape, 4)), generator.normal(size=(*shape, 16)))
    p = [test.exact_p for test in tests]
    wrong = [
        any(holm(p[start : start + candidates], 0.05).rejected)
        for start in range(0, len(p), candidates)
    ]
    assert np.mean(wrong) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / families)


@pytest.mark.parametrize("p", [float("nan"), -0.1, 1.1, float("inf")])
def test_holm_refuses_what_is_not_a_probability(p):
    with pytest.raises(ScoreError):
        holm([0.5, p], 0.05)


@pytest.mark.parametrize(
    ("probes", "alpha"), [(16, 0.0), (16, 1.0), (16, float("nan")), (16, -1.0), (0, 0.05)]
)
def test_counts_must_be_positive_and_alpha_a_level(probes, alpha):
    with pytest.raises(PlanError):
        certifiability(4, probes, 20, alpha)


# --- power --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n"), [(4, 16), (16, 4), (9, 9), (20, 20)])
def test_power_without_a_shift_is_the_exact_null_tail(m, n):
    critical = critical_value(m, n, Fraction(1, 20))
    exact = tail_count((1,) * (m + n), m, 2 * critical) / math.comb(m + n, m)
    assert screen_power(m, n, 1, 0.05, 0.0) == pytest.approx(exact, abs=0.006)


def test_power_of_one_against_one_is_a_normal_probability():
    phi = 0.5 * math.erfc(-1 / 2)  # Phi(1 / sqrt 2)
    assert screen_power(1, 1, 1, 0.5, 1.0) == pytest.approx(phi, abs=0.012)


@pytest.mark.parametrize(("shift", "power"), [(1.0, 0.0978), (2.0, 0.5643), (4.0, 0.9972)])
def test_power_is_that_of_numerical_integration(shift, power):
    """Values by integrating the joint law of U and the largest delta."""
    assert screen_power(4, 16, 20, 0.05, shift) == pytest.approx(power, abs=0.012)


def test_power_grows_with_the_shift_and_is_zero_below_the_bound():
    powers = [screen_power(4, 16, 20, 0.05, shift) for shift in (0.0, 0.5, 1, 2, 3, 5)]
    assert powers == sorted(powers) and powers[-1] > 0.99
    assert powers[0] <= 0.004
    assert screen_power(4, 7, 20, 0.05, 9.0) == 0.0


def test_large_designs_have_a_power_too():
    generator = np.random.default_rng(1)
    forget, probe = generator.normal(-0.3, 1, (800, 150)), generator.normal(0, 1, (800, 150))
    rejected = [test.exact_p <= Fraction(1, 20) for test in rank_tests(forget, probe)]
    assert screen_power(150, 150, 1, 0.05, 0.3) == pytest.approx(np.mean(rejected), abs=0.06)


def test_critical_value_is_the_last_that_rejects():
    for m, n, level in (
        (4, 16, Fraction(1, 400)),
        (6, 6, Fraction(1, 20)),
        (4, 8, Fraction(1, 400)),
    ):
        critical = critical_value(m, n, level)
        total = math.comb(m + n, m)
        assert Fraction(tail_count((1,) * (m + n), m, 2 * critical), total) <= level
        assert Fraction(tail_count((1,) * (m + n), m, 2 * critical + 2), total) > level
    assert critical_value(4, 4, Fraction(1, 400)) is None


def test_power_refuses_a_shift_that_is_not_a_number():
    with pytest.raises(PlanError):
        screen_power(4, 16, 20, 0.05, float("nan"))
