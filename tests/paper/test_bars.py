"""The paper's bars, axis by axis, the relearn veto, and the tolerances behind them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from palimpsest.errors import ScoreError
from palimpsest.paper import bars
from palimpsest.paper.bars import (
    Tolerances,
    absolute_bar,
    damage_bar,
    measure_tolerances,
    relearn_veto,
)
from palimpsest.stats.measures import CellMeasures, ModelMeasures, RelearningCurve
from palimpsest.stats.models import Model, Role

NOISE = Tolerances(0.8, epsilon_retain=0.1, epsilon_residual=0.2, fall_deviation=0.05, freedom=2)
SLOW = (3.0, 2.6, 2.3)


def model(
    name: str,
    forget: Any = 0.0,
    retain: float = 1.2,
    residual: float = 0.9,
    falls: tuple[float, ...] | None = SLOW,
    oracle_kl: float = 1.0,
) -> ModelMeasures:
    """Deltas around base, the residual as its sum, and the held-out log of re-acquisition."""
    deltas, probes = np.zeros(4) + forget, np.zeros(16)
    facts, names = tuple(f"f{n}" for n in range(4)), tuple(f"p{n}" for n in range(16))
    curve = None
    if falls is not None:
        flat = np.ones(len(falls))
        curve = RelearningCurve(np.arange(len(falls)), flat, np.array(falls), flat, flat, flat)
    return ModelMeasures(
        name, facts, names, 3 + deltas, 3 + probes, deltas, probes,
        retain_nll=retain, oracle_kl=oracle_kl, residual=residual, curve=curve,
    )  # fmt: skip


def cell(**candidates: dict[str, Any]) -> CellMeasures:
    """Injected retain NLL 1.2 and floor 0.9; the same-draw reference's median forget delta is 0."""
    models = [
        model("base"),
        model("injected", -2.0, falls=(1.0, 0.4), oracle_kl=4.0),
        model("reference", [-0.1, 0.0, 0.0, 0.1], 1.3, 1.0, oracle_kl=0.0),
        *(model(name, **options) for name, options in candidates.items()),
    ]
    records = {one.name: Model(one.name, Role.CANDIDATE) for one in models}
    records["reference"] = Model("reference", Role.REFERENCE, seed_no=0, same_draw=True)
    by_name = {one.name: one for one in models}
    return CellMeasures(
        "evaluation", models[0].forget_facts, models[0].probe_facts, by_name, records
    )


def failures(measures: CellMeasures, name: str, noise: Tolerances = NOISE, **more: Any) -> tuple:
    return damage_bar(measures, name, True, noise, **more).failures


def test_what_is_restored_towards_fails_the_absolute_bar_and_clears_the_other():
    measures = cell()
    for name in ("injected", "reference"):
        bar = absolute_bar(measures[name], True)
        assert not bar["retain"] and not bar["residual"] and not bar["all three"]
    assert failures(measures, "reference") == ()


@pytest.mark.parametrize(
    ("near", "far", "failure"),
    [
        ({"forget": 0.79}, {"forget": 0.81}, "forget equivalence"),
        ({"forget": -0.79}, {"forget": -0.81}, "forget equivalence"),
        # NLL - (1.2 - 0.1) <= 0.8; residual - (0.9 - 0.2) <= 0.8; the gate: 1.2 - NLL > 0.1
        ({"retain": 1.89}, {"retain": 1.91}, "retain damage"),
        ({"residual": 1.49}, {"residual": 1.51}, "re-acquisition damage"),
        ({"retain": 1.11}, {"retain": 1.09}, "degeneracy gate"),
    ],
)
def test_every_axis_has_its_limit(near, far, failure):
    measures = cell(near=near, far=far)
    assert failures(measures, "near") == () and failures(measures, "far") == (failure,)


def test_the_margins_count_against_every_model_alike():
    """Candidate, known-label model, same-draw reference and reference of another draw."""
    measures = cell(mine={"retain": 1.85, "residual": 1.55})
    records = [Model("mine", Role.CANDIDATE), Model("mine", Role.KNOWN_LABEL)]
    records += [Model("mine", Role.REFERENCE, seed_no=0, same_draw=True)]
    records += [Model("mine", Role.REFERENCE, seed_no=2)]
    for record in records:
        one = replace(measures, records=dict(measures.records) | {"mine": record})
        bar = damage_bar(one, "mine", True, replace(NOISE, fall_deviation=1.0))
        assert bar.failures == ("re-acquisition damage",)
        assert (bar.retain_damage, bar.residual_damage) == pytest.approx((0.75, 0.85))


def test_the_screen_is_listed_first_and_the_worst_axis_is_in_units_of_delta():
    measures = cell(bad={"forget": 5.0, "retain": 9.0}, a={"forget": 0.4, "retain": 1.7})
    bar = damage_bar(measures, "bad", False, NOISE)
    assert bar.failures == ("screen", "forget equivalence", "retain damage")
    assert damage_bar(measures, "a", True, NOISE).worst_axis == pytest.approx(0.6 / 0.8)


def test_forward_only_battery_leaves_out_what_needs_reacquisition():
    measures = cell(suppressed={"residual": 9.0, "falls": (12.0, 0.5)})
    assert failures(measures, "suppressed") == ("re-acquisition damage", "relearn veto")
    assert failures(measures, "suppressed", forward_only=True) == ()


def test_relearn_veto_uses_the_prediction_bound_of_the_draws():
    """The reference falls 0.4; t(2) at 0.95 is 2.92, times 0.05 times sqrt 2 gives 0.206."""
    margin = 2.919986 * 0.05 * np.sqrt(2)
    measures = cell(like={"falls": (3.0, 2.6001 - margin)}, fast={"falls": (3.0, 2.5999 - margin)})
    assert failures(measures, "like") == () and failures(measures, "fast") == ("relearn veto",)
    assert failures(measures, "fast", veto=False) == ()
    still = replace(NOISE, fall_deviation=0.0)  # the margin of the rules guards identical draws
    assert failures(cell(a={"falls": (3.0, 2.55)}), "a", still) == ()
    assert failures(cell(a={"falls": (3.0, 2.45)}), "a", still) == ("relearn veto",)


def test_relearn_veto_falsely_vetoes_a_further_draw_at_most_alpha_of_the_time(monkeypatch):
    """Under its own null, draws and candidate from one normal distribution."""
    generator = np.random.default_rng(7)
    monkeypatch.setattr(bars, "VETO_MARGIN", 0.0)
    vetoed = 0
    for _ in range(2000):
        falls = generator.normal(0.4, 0.1, 4)
        noise = replace(NOISE, fall_deviation=float(np.std(falls[:3], ddof=1)))
        draws = [model("d", falls=(3.0, 3.0 - fall)) for fall in falls]
        vetoed += relearn_veto(draws[3], draws[:3], noise)
    assert vetoed / 2000 == pytest.approx(0.05, abs=3 * np.sqrt(0.05 * 0.95 / 2000))


def test_relearn_veto_without_curves_is_an_error_not_a_pass():
    with pytest.raises(ScoreError):
        failures(cell(bare={"falls": None}), "bare")
    with pytest.raises(ScoreError):
        failures(cell(), "reference", replace(NOISE, fall_deviation=None))


def draws() -> list[ModelMeasures]:
    return [
        model("a", [0.0, 0.1, 0.2, 0.3], 1.0, 2.0, (3, 2.5)),
        model("b", [0.5, 0.1, 0.0, 0.3], 1.3, 2.2, (3, 2.4)),
        model("c", [0.1, 0.9, 0.2, 0.0], 1.1, 2.4, (3, 2.7)),
    ]


def test_tolerances_of_three_draws():
    noise = measure_tolerances([draws()])
    gaps = [0.5, 0, 0.2, 0, 0.1, 0.8, 0, 0.3, 0.4, 0.8, 0.2, 0.3]
    assert noise.delta_f == pytest.approx(np.percentile(gaps, 90))
    assert (noise.epsilon_retain, noise.epsilon_residual) == pytest.approx((0.3, 0.4))
    assert noise.fall_deviation == pytest.approx(np.std([0.5, 0.6, 0.3], ddof=1))
    assert noise.freedom == 2
    bare = [replace(draw, curve=None) for draw in draws()]
    assert measure_tolerances([bare]).fall_deviation is None


def test_several_replicated_cells_are_pooled():
    near = [replace(draw, forget_deltas=draw.forget_deltas / 2, retain_nll=1.0) for draw in draws()]
    noise = measure_tolerances([draws(), near[:2]])
    gaps = [0.5, 0, 0.2, 0, 0.1, 0.8, 0, 0.3, 0.4, 0.8, 0.2, 0.3, 0.25, 0, 0.1, 0]
    assert noise.delta_f == pytest.approx(np.percentile(gaps, 90))
    assert noise.epsilon_retain == pytest.approx((0.3 + 0.0) / 2)
    squares = 2 * np.var([0.5, 0.6, 0.3], ddof=1) + np.var([0.5, 0.6], ddof=1)
    assert noise.fall_deviation == pytest.approx(np.sqrt(squares / 3)) and noise.freedom == 3


def test_one_draw_or_identical_draws_give_no_tolerances():
    for several in ([draws()[:1]], [draws()[:1] * 2], []):
        with pytest.raises(ScoreError):
            measure_tolerances(several)
