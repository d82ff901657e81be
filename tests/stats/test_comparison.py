"""The comparison with retrainings: against brute force, its levels, ties, homogeneity."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from palimpsest.errors import ScoreError
from palimpsest.stats.axes import AXES
from palimpsest.stats.comparison import (
    CELL,
    COPY_DISTANCE,
    HOMOGENEITY_LEVEL,
    bag_scores,
    check_homogeneity,
    compare,
    find_copy,
    leave_one_out,
    normal_p_values,
    normal_tail,
    p_value,
    rank_counts,
    required_references,
    which_test,
)
from palimpsest.stats.rules import Rules

RULES = Rules()


CORRELATION = np.array([
    [1.00, 0.25, 0.04, -0.07, 0.00, 0.01, 0.58, 0.35, -0.04, 0.32, -0.03],
    [0.25, 1.00, 0.06, -0.08, 0.04, 0.02, 0.35, 0.19, -0.02, 0.17, -0.02],
    [0.04, 0.06, 1.00, -0.10, 0.07, 0.03, -0.05, -0.03, 0.02, -0.05, 0.00],
    [-0.07, -0.08, -0.10, 1.00, 0.00, -0.04, 0.02, 0.06, 0.50, 0.10, -0.01],
    [0.00, 0.04, 0.07, 0.00, 1.00, 0.02, -0.03, -0.04, 0.00, -0.01, -0.03],
    [0.01, 0.02, 0.03, -0.04, 0.02, 1.00, 0.07, 0.07, 0.27, 0.07, -0.03],
    [0.58, 0.35, -0.05, 0.02, -0.03, 0.07, 1.00, 0.70, -0.04, 0.63, -0.04],
    [0.35, 0.19, -0.03, 0.06, -0.04, 0.07, 0.70, 1.00, -0.01, 0.82, -0.07],
    [-0.04, -0.02, 0.02, 0.50, 0.00, 0.27, -0.04, -0.01, 1.00, -0.01, -0.01],
    [0.32, 0.17, -0.05, 0.10, -0.01, 0.07, 0.63, 0.82, -0.01, 1.00, -0.10],
    [-0.03, -0.02, 0.00, -0.01, -0.03, -0.03, -0.04, -0.07, -0.01, -0.10, 1.00],
])  # fmt: skip
"""Between the standard axes, of 1,305 retrainings in 45 cells of the second edition."""


def brute_t(bag: np.ndarray) -> np.ndarray:
    """t of every model against the others, in plain loops."""
    t = np.zeros_like(bag)
    for j in range(len(bag)):
        others = np.delete(bag, j, axis=0)
        for a in range(bag.shape[1]):
            column = others[:, a]
            spread = column.std(ddof=1) * math.sqrt(1 + 1 / len(column))
            t[j, a] = (bag[j, a] - column.mean()) / spread
    return t


@pytest.mark.parametrize("shape", [(5, 1), (10, 4), (21, 11), (40, 3)])
def test_leave_one_out_is_that_of_plain_loops(shape):
    bag = np.random.default_rng(0).normal(3.0, 2.0, shape)
    np.testing.assert_allclose(leave_one_out(bag), brute_t(bag), rtol=1e-9)


def test_the_rank_rule_counts_models_at_least_as_far_out():
    bag = np.random.default_rng(1).normal(size=(21, 5))
    scores = np.square(brute_t(bag)).sum(axis=1)
    for j in range(len(bag)):
        others = np.delete(bag, j, axis=0)
        expected = Fraction(int((scores >= scores[j] - 1e-9).sum()), len(bag))
        assert p_value(bag[j], others, "rank")[1] == expected


@given(st.permutations(range(8)), st.floats(0.001, 1000), st.floats(-100, 100))
@settings(max_examples=30, deadline=None)
def test_order_units_and_origin_do_not_matter(order, scale, shift):
    bag = np.random.default_rng(2).normal(size=(8, 3))
    base = p_value(bag[0], bag[1:], "normal")[1]
    moved = bag * scale + shift * scale
    others = moved[1:][[n - 1 for n in order if n]]
    assert p_value(moved[0], others, "normal")[1] == pytest.approx(base, abs=1e-4)


def test_ties_count_in_favor_of_the_model():
    bag = np.random.default_rng(3).normal(size=(20, 2))
    twin = np.concatenate([bag[:1], bag])
    counts = rank_counts(bag_scores(twin))
    assert counts == rank_counts(bag_scores(twin), 1)


def test_references_that_do_not_vary():
    flat = np.ones((20, 1))
    assert p_value(np.array([1.0]), flat, "rank")[1] == 1
    assert p_value(np.array([1.1]), flat, "rank")[1] == Fraction(1, 21)
    assert np.isinf(leave_one_out(np.vstack([[1.1], flat]))[0, 0])


@pytest.mark.parametrize(("references", "axes"), [(5, 11), (9, 7), (18, 4)])
def test_the_convolution_is_the_tail_of_a_sum_of_squared_student_t(references, axes):
    """Against simulation: 400,000 sums; the standard error at 5 % is 0.0003."""
    draws = np.random.default_rng(4).standard_t(references - 1, (400_000, axes))
    sums = np.square(draws).sum(axis=1)
    tail = normal_tail(references, axes)
    for level in (0.2, 0.05, 0.01):
        point = np.quantile(sums, 1 - level)
        found = float(np.interp(point / CELL, np.arange(len(tail)), tail))
        assert found == pytest.approx(level, abs=4 * math.sqrt(level / 400_000) + 0.0003)
    assert tail[0] == 1.0 and np.all(np.diff(tail) <= 1e-12)


def test_one_axis_is_student_t_itself():
    """Against scipy: with one axis the rule is the two-sided prediction t-test."""
    draws = np.random.default_rng(5).normal(size=9)
    for x in (0.5, 2.0, 4.0):
        t = (x - draws.mean()) / (draws.std(ddof=1) * math.sqrt(1 + 1 / 9))
        expected = 2 * stats.t.sf(abs(t), 8)
        found = p_value(np.array([x]), draws[:, None], "normal")[1]
        assert found == pytest.approx(expected, abs=3e-3)


@pytest.mark.parametrize("references", [5, 9, 14, 19])
def test_the_level_of_the_normal_rule(references):
    """20,000 bags: below 5 % with the correlation of retrainings; the rule assumes a higher one."""
    bags = np.random.default_rng(6).standard_normal((20_000, references + 1, 11))
    for mixing, low, high in (
        (np.linalg.cholesky(CORRELATION), 0.015, 0.05),
        (np.eye(11), 0, 0.05),
    ):
        scores = bag_scores(bags @ mixing.T)[:, 0]
        rejected = float(np.mean(normal_p_values(scores, references, 11) <= 0.05))
        assert low <= rejected <= high


@pytest.mark.parametrize("references", [19, 20, 40])
@pytest.mark.parametrize("draw", ["normal", "heavy", "skewed"])
def test_the_level_of_the_rank_rule_is_exact_for_any_distribution(references, draw):
    """20,000 bags with dependent axes of any shape: floor(0.05 (K+1)) / (K+1) are rejected."""
    generator = np.random.default_rng(7)
    shape = (20_000, references + 1, 4)
    bags = {
        "normal": generator.standard_normal(shape),
        "heavy": generator.standard_t(2, shape),
        "skewed": generator.exponential(size=shape) ** 2,
    }[draw]
    bags[..., 1] += bags[..., 0]
    allowed = math.floor(0.05 * (references + 1) + 1e-9)
    rejected = float(np.mean(rank_counts(bag_scores(bags)) <= allowed))
    expected = allowed / (references + 1)
    assert rejected == pytest.approx(expected, abs=4 * math.sqrt(expected / 20_000))


def test_candidate_and_controls_use_one_rule():
    assert required_references(0.05) == 19
    assert [which_test(n, 0.05) for n in (5, 19, 20, 40)] == ["normal", "normal", "rank", "rank"]
    assert which_test(9, 0.2) == "rank"


def test_power_of_the_sum_is_not_that_of_one_axis():
    """A small shift on every axis is noticed, which no single axis would show."""
    generator = np.random.default_rng(8)
    bags = generator.standard_normal((2_000, 21, 11))
    bags[:, 0] += 1.5
    noticed = float(np.mean(rank_counts(bag_scores(bags)) <= 1))
    largest = np.abs(leave_one_out(bags)).max(axis=-1)
    alone = float(np.mean((largest >= largest[:, :1]).sum(axis=1) <= 1))
    assert noticed > 0.75 and noticed > alone + 0.25


def table(values, count=6, seed=9):
    draws = np.random.default_rng(seed).normal(0.0, 1.0, (count, len(values)))
    return compare(values, draws, AXES[: len(values)], RULES, test="normal", name="m")


def test_a_rejected_model_names_every_axis_that_gives_it_away():
    found = table([0.0, 40.0, -60.0, 0.0])
    assert found.rejected and not found.accepted
    assert [gap.axis for gap in found.failing] == ["drift", "weakest"]
    assert found.worst.axis == "drift" and found.worst.offset < 0
    assert table([0.0, 0.0, 0.0, 0.0]).failing == ()


def test_an_axis_that_was_not_measured_is_never_accepted():
    found = table([0.0, math.nan, 0.0, 0.0])
    assert found.missing == ("weakest",) and not found.rejected and not found.accepted


def test_equivalence_needs_every_bound_within_the_margin():
    draws = np.random.default_rng(10).normal(0.0, 0.01, (12, 2))
    stakes = {"forget": 2.0, "weakest": None}
    rules = Rules(margin=0.1)
    near = compare([0.0, 0.0], draws, AXES[:2], rules, test="normal", stakes=stakes)
    assert near.equivalent and near.accepted
    far = compare([0.5, 0.0], draws, AXES[:2], rules, test="normal", stakes=stakes)
    assert not far.equivalent and not far.accepted
    odd = compare([0.0, 0.2], draws, AXES[:2], rules, test="normal", stakes=stakes)
    assert not odd.equivalent  # nothing was at stake: it must lie where a retraining may
    # Within the margin, and told apart all the same: a margin asks for more, never for less.
    told = compare([0.15, 0.0], draws, AXES[:2], rules, test="normal", stakes=stakes)
    assert told.equivalent and told.rejected and not told.accepted


def test_two_retrainings_that_agree_on_every_axis_are_copies():
    draws = np.random.default_rng(12).standard_normal((8, 11))
    names = [f"reference-{n}" for n in range(8)]
    apart = {"candidate": draws[3] + 0.5, "unmeasured": np.full(11, math.nan)}
    assert find_copy(names, draws, apart) is None
    again = np.concatenate([draws, draws[2:3] + 0.1 * draws.std(axis=0) * np.sign(draws[0])])
    found = find_copy([*names, "again"], again, {})
    assert (found.reference, found.other, found.crowded) == ("reference-2", "again", 2)
    assert found.distance == pytest.approx(0.1, rel=0.1)
    near = find_copy(names, draws, {"candidate": draws[5] + 0.01})
    assert (near.reference, near.other) == ("reference-5", "candidate")
    assert find_copy(names, draws[:, :3], {"candidate": draws[5, :3]}) is None


def test_many_copies_with_noise_are_found_where_no_pair_is_that_near():
    generator = np.random.default_rng(13)
    five = generator.standard_normal((5, 11))
    copies = np.repeat(five, 3, axis=0) + 0.15 * generator.standard_normal((15, 11))
    bag = np.concatenate([five, copies])
    found = find_copy([f"r{n}" for n in range(20)], bag, {})
    assert found is not None and found.crowded >= 10 and found.distance > COPY_DISTANCE
    # As many independent retrainings have their nearest ones much further away.
    alone = generator.standard_normal((20, 11))
    assert find_copy([f"r{n}" for n in range(20)], alone, {}) is None


def test_far_out_p_is_that_of_the_largest_axis():
    """Against scipy: beyond the reach of the table, not 0, and never larger than within it."""
    scores = np.array([100.0, 300.0, 880.0, 890.0, 1e4, 1e8])
    p_values = normal_p_values(scores, 5, 11)
    assert np.all(np.diff(p_values) <= 0) and p_values[3] > 0
    single = 2 * 4 * stats.t.sf(math.sqrt(1e4 * 4 / 11), 4)
    assert p_values[4] == pytest.approx(single, rel=0.005)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ScoreError):
        compare([1.0], np.ones((6, 2)), AXES[:2], RULES, test="normal")
    with pytest.raises(ScoreError):
        compare([1.0, 1.0], np.full((6, 2), math.nan), AXES[:2], RULES, test="normal")


@pytest.mark.parametrize("count", [5, 9, 20])
def test_the_homogeneity_test_has_its_level(count):
    """20,000 bags of alike references: at most 1 % are called odd, and not far fewer."""
    generator = np.random.default_rng(11)
    bags = generator.standard_normal((20_000, count, 11))
    largest = np.abs(leave_one_out(bags)).max(axis=(1, 2))
    p_values = np.minimum(1, 2 * count * 11 * stats.t.sf(largest, count - 2))
    rate = float(np.mean(p_values <= HOMOGENEITY_LEVEL))
    assert 0.006 <= rate <= 0.0125


def test_an_odd_reference_is_named():
    references = np.random.default_rng(12).normal(size=(20, 11))
    names = [f"r{n}" for n in range(20)]
    assert not check_homogeneity(names, references, AXES).odd
    references[7, 3] += 12.0
    found = check_homogeneity(names, references, AXES)
    assert (found.odd, found.reference, found.axis) == (True, "r7", AXES[3].name)
