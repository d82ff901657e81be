"""The absolute and the recalibrated bar, axis by axis, and the relearn veto."""

from dataclasses import replace

import numpy as np
import pytest

from palimpsest.criteria.bars import (
    Tolerances,
    absolute_bar,
    damage_bar,
    measure_tolerances,
    rated_adequate,
    relearn_veto,
)
from palimpsest.criteria.measures import measure_cell
from palimpsest.criteria.rules import Rules
from palimpsest.errors import ScoreError

RULES = Rules()
NOISE = Tolerances(
    delta_f=0.8, epsilon_retain=0.1, epsilon_residual=0.2, fall_deviation=0.05, draws=3
)
PROBE = [3.0] * 16


@pytest.fixture
def build(made, make_tables, make_roles):
    """A cell with injected retain NLL 1.2, floor 0.9, reference median forget delta 0; residuals
    are given as their sum."""

    def cell(**candidates):
        slow = [3.0, 2.6, 2.3]
        models = {
            "base": made([3.0] * 4, PROBE),
            "injected": made(
                [1.0] * 4, PROBE, retain=1.2, oracle_kl=4.0, residual=(0.4, 0.5), falls=[1, 0.4]
            ),
            "reference": made(
                [2.9, 3.0, 3.0, 3.1], PROBE, 1.3, oracle_kl=0.0, residual=(0.5, 0.5), falls=slow
            ),
            **{
                name: made(
                    [3.0 + options.pop("forget", 0.0)] * 4,
                    PROBE,
                    options.pop("retain", 1.2),
                    residual=(options.pop("residual", 0.9) / 2,) * 2,
                    falls=options.pop("falls", slow),
                    oracle_kl=options.pop("oracle_kl", 1.0),
                )
                for name, options in candidates.items()
            },
        }
        return measure_cell(*make_tables(models), roles=make_roles(models))

    return cell


def failures(cell, name, tolerances=NOISE, rules=RULES, **more):
    return damage_bar(cell, name, True, tolerances, rules, **more).failures


def test_absolute_bar_is_screen_and_two_limits(build):
    cell = build(a={"retain": 0.5, "residual": 0.5}, b={"retain": 0.51, "residual": 0.4})
    assert absolute_bar(cell["a"], True, RULES).clears
    assert not absolute_bar(cell["a"], False, RULES).clears
    bar = absolute_bar(cell["b"], True, RULES)
    assert (bar.screen, bar.retain, bar.residual) == (True, False, True)


def test_the_injected_model_and_the_reference_fail_the_absolute_bar(build):
    """The limits lie below the task's operating point: what is restored toward cannot pass."""
    cell = build()
    for name in ("injected", "reference"):
        bar = absolute_bar(cell[name], True, RULES)
        assert not bar.retain and not bar.residual


def test_the_reference_clears_the_recalibrated_bar(build):
    assert failures(build(), "reference") == ()


@pytest.mark.parametrize("side", [1, -1])
def test_forget_equivalence_is_two_sided_at_delta(build, side):
    cell = build(near={"forget": side * 0.79}, far={"forget": side * 0.81})
    assert failures(cell, "near") == ()
    assert failures(cell, "far") == ("forget equivalence",)


def test_retain_damage_is_measured_from_the_injected_model(build):
    """NLL - 1.2 <= 0.8: a candidate is of the injected model's own draw, so nothing is shifted."""
    cell = build(near={"retain": 1.99}, far={"retain": 2.01})
    assert failures(cell, "near") == ()
    assert failures(cell, "far") == ("retain damage",)
    assert damage_bar(cell, "near", True, NOISE, RULES).retain_damage == pytest.approx(0.79)


def test_round_trip_damage_subtracts_the_floor(build):
    """residual - 0.9 <= 0.8, so the limit is 1.7."""
    cell = build(near={"residual": 1.69}, far={"residual": 1.71})
    assert failures(cell, "near") == ()
    assert failures(cell, "far") == ("round-trip damage",)


def test_a_model_of_another_draw_is_shifted_by_epsilon(build):
    """Retain: NLL - (1.2 - 0.1) <= 0.8; round trip: residual - (0.9 - 0.2) <= 0.8."""
    cell = build(mine={"retain": 1.95, "residual": 1.6})
    assert failures(cell, "mine") == ()
    roles = dict(cell.roles) | {"mine": {"role": "reference", "draw": 2}}
    across = replace(cell, roles=roles)
    assert failures(across, "mine") == ("retain damage", "round-trip damage")


def test_degeneracy_gate_catches_retaining_better_than_injected(build):
    """1.2 - NLL > 0.1 + 0.8: below 0.3."""
    cell = build(near={"retain": 0.31}, collapsed={"retain": 0.29})
    assert failures(cell, "near") == ()
    assert failures(cell, "collapsed") == ("degeneracy gate",)


def test_failing_the_screen_is_listed_first(build):
    cell = build(bad={"forget": 5.0, "retain": 9.0})
    bar = damage_bar(cell, "bad", False, NOISE, RULES)
    assert bar.failures == ("screen", "forget equivalence", "retain damage")


def test_forward_only_battery_leaves_out_what_needs_reacquisition(build):
    cell = build(suppressed={"residual": 9.0, "falls": [12.0, 0.5]})
    assert failures(cell, "suppressed") == ("round-trip damage", "relearn veto")
    assert failures(cell, "suppressed", forward_only=True) == ()


def test_relearn_veto_uses_the_prediction_bound_of_the_draws(build):
    """The reference falls 0.4; t(2) at 0.95 is 2.92, times 0.05 times sqrt 2 gives 0.206."""
    margin = 2.919986 * 0.05 * np.sqrt(2)
    cell = build(like={"falls": [3.0, 2.6001 - margin]}, fast={"falls": [3.0, 2.5999 - margin]})
    assert failures(cell, "like") == () and failures(cell, "fast") == ("relearn veto",)
    assert failures(cell, "fast", rules=replace(RULES, relearn_veto=False)) == ()


def test_relearn_margin_guards_against_identical_draws(build):
    cell = build(slightly={"falls": [3.0, 2.55]}, fast={"falls": [3.0, 2.45]})
    still = replace(NOISE, fall_deviation=0.0)
    assert failures(cell, "slightly", still) == ()
    assert failures(cell, "fast", still) == ("relearn veto",)


def test_relearn_veto_falsely_vetoes_a_further_draw_at_most_alpha_of_the_time(build):
    """Under its own null, draws and candidate from one normal distribution."""
    generator = np.random.default_rng(7)
    rules = replace(RULES, relearn_margin=0.0)
    curve = build()["reference"].curve
    model = build()["reference"]

    def falling(by):
        return replace(model, curve=replace(curve, forget_heldout_nll=np.array([3.0, 3.0 - by])))

    vetoed = 0
    for _ in range(2000):
        falls = generator.normal(0.4, 0.1, 4)
        noise = replace(NOISE, fall_deviation=float(np.std(falls[:3], ddof=1)))
        references = [falling(by) for by in falls[:3]]
        vetoed += relearn_veto(falling(falls[3]), references, noise, rules)
    assert vetoed / 2000 == pytest.approx(0.05, abs=3 * np.sqrt(0.05 * 0.95 / 2000))


def test_relearn_veto_without_curves_is_an_error_not_a_pass(build, made, make_tables):
    cell = build(bare={"falls": None})
    with pytest.raises(ScoreError, match="model bare has no re-acquisition curve"):
        failures(cell, "bare")
    with pytest.raises(ScoreError, match="draws without re-acquisition curves"):
        failures(build(), "reference", replace(NOISE, fall_deviation=None))
    with pytest.raises(ScoreError, match="at least one reference draw"):
        relearn_veto(cell["reference"], [], NOISE, RULES)


# --- tolerances ---------------------------------------------------------------------------------


@pytest.fixture
def replicated(made, make_tables, make_roles):
    models = {
        "base": made([3.0] * 4, PROBE),
        "reference": made([3.0, 3.1, 3.2, 3.3], PROBE, 1.0, residual=(1, 1), falls=[3, 2.5]),
        "reference-1": made([3.5, 3.1, 3.0, 3.3], PROBE, 1.3, residual=(1.2, 1), falls=[3, 2.4]),
        "reference-2": made([3.1, 3.9, 3.2, 3.0], PROBE, 1.1, residual=(1, 1.4), falls=[3, 2.7]),
    }
    return measure_cell(*make_tables(models), roles=make_roles(models))


def test_tolerances_of_three_draws(replicated):
    noise = measure_tolerances(replicated, RULES)
    gaps = [0.5, 0, 0.2, 0, 0.1, 0.8, 0, 0.3, 0.4, 0.8, 0.2, 0.3]
    assert noise.delta_f == pytest.approx(np.percentile(gaps, 90))
    assert noise.epsilon_retain == pytest.approx(0.3)
    assert noise.epsilon_residual == pytest.approx(0.4)  # of the sums 2, 2.2 and 2.4
    assert noise.fall_deviation == pytest.approx(np.std([0.5, 0.6, 0.3], ddof=1))
    assert noise.draws == 3


def test_one_draw_or_identical_draws_give_no_tolerances(replicated):
    with pytest.raises(ScoreError, match="at least 2 independent retrainings"):
        measure_tolerances(replicated, RULES, ["reference"])
    with pytest.raises(ScoreError, match="not independent retrainings"):
        measure_tolerances(replicated, RULES, ["reference", "reference"])


@pytest.mark.parametrize("field", ["delta_f", "epsilon_retain", "fall_deviation"])
def test_tolerances_refuse_what_is_not_a_number(field):
    with pytest.raises(ScoreError, match=field):
        replace(NOISE, **{field: float("nan")})


# --- picks --------------------------------------------------------------------------------------


def test_rated_adequate_is_half_of_the_injected_models_own(build):
    cell = build(near={"oracle_kl": 2.0}, far={"oracle_kl": 2.01})
    assert rated_adequate(cell["near"], cell.injected, RULES)
    assert not rated_adequate(cell["far"], cell.injected, RULES)


def test_worst_axis_is_in_units_of_delta(build):
    bar = damage_bar(build(a={"forget": 0.4, "retain": 1.7}), "a", True, NOISE, RULES)
    assert bar.worst_axis == pytest.approx((1.7 - 1.2) / 0.8)
    assert bar.clears == (bar.worst_axis <= 1)
