"""Controls: who is compared with whom, what an audit notices, dose, recipe, odd references."""

from dataclasses import replace

import numpy as np
import pytest
from tests.stats.made_cell import cell, known_label, model, retrained

from palimpsest.stats.controls import (
    Control,
    ControlKind,
    RecipeCheck,
    axis_sensitivity,
    check_recipe,
    detection_limit,
    measure_dose,
    mixture_powers,
    reference_bag,
    run_controls,
)
from palimpsest.stats.intervals import clopper_pearson
from palimpsest.stats.measures import CellMeasures
from palimpsest.stats.models import Model, ModelFailure, Role
from palimpsest.stats.rules import Rules

RULES = Rules()


def controls_of(measures: CellMeasures, rules: Rules = RULES) -> dict[str, Control]:
    return {c.name: c for c in run_controls(measures, reference_bag(measures, rules))}


def test_every_known_model_is_a_control_with_what_is_expected():
    extra = known_label("suppression", early=-1.2) | known_label("honest", "restored")
    extra |= {"retraining-1": (retrained("retraining-1"), Model("retraining-1", Role.RETRAINING))}
    same = Model("reference", Role.REFERENCE, seed_no=0, same_draw=True)
    extra |= {"reference": (retrained("reference", 2), same)}
    found = controls_of(cell(20, retrained(), more=extra))
    assert found["injected"].kind is ControlKind.INJECTED and found["injected"].rejected
    assert found["suppression"].kind is ControlKind.KNOWN_LABEL and found["suppression"].rejected
    assert found["reference"].kind is ControlKind.SAME_DRAW and found["reference"].as_expected
    assert found["retraining-1"].as_expected
    assert found["control-25-1"].share == 0.25
    assert not {"honest", "reference-1", "retrained", "base"} & set(found)


def test_a_mixture_is_not_compared_with_the_reference_it_is_made_of():
    measures = cell(20, retrained())
    found = controls_of(measures)
    assert found["control-10-1"].comparison.references == 19
    assert found["injected"].comparison.references == 20
    assert found["control-10-1"].comparison.test == found["injected"].comparison.test == "rank"
    twin = replace(measures["control-10-1"], name="reference-1")
    record = Model("reference-1", Role.REFERENCE, seed_no=1)
    moved = cell(20, retrained(), more={"reference-1": (twin, record)})
    assert controls_of(moved)["control-10-1"].comparison.p == found["control-10-1"].comparison.p


def test_neither_the_same_draw_nor_an_excluded_reference_is_in_the_bag():
    same = Model("reference", Role.REFERENCE, seed_no=0, same_draw=True)
    out = Model("reference-3", Role.REFERENCE, seed_no=3, excluded=True)
    measures = cell(20, retrained())
    measures = cell(
        20,
        retrained(),
        more={
            "reference": (retrained("reference"), same),
            "reference-3": (measures["reference-3"], out),
        },
    )
    bag = reference_bag(measures, RULES)
    assert len(bag.names) == 19 and not {"reference", "reference-3"} & set(bag.names)


def test_power_is_a_rate_over_mixtures_with_an_exact_bound():
    measures = cell(20, retrained())
    controls = tuple(controls_of(measures).values())
    powers = {power.share: power for power in mixture_powers(controls, RULES)}
    assert set(powers) == {0.25, 0.1}
    assert (powers[0.25].noticed, powers[0.25].tried) == (5, 5)
    assert powers[0.25].at_least == clopper_pearson(5, 5, 0.95, "lower").low
    limit = detection_limit(controls, mixture_powers(controls, RULES), RULES)
    assert limit is not None and limit <= 0.25


def test_the_detection_limit_stops_at_the_first_share_that_is_missed():
    controls = tuple(controls_of(cell(20, retrained())).values())
    rules = Rules(control_shares=(0.5, 0.25, 0.1))
    accepted = replace(
        next(c for c in controls if c.share == 0.05).comparison, rejected=False, accepted=True
    )
    missed = tuple(replace(c, comparison=accepted) if c.share == 0.25 else c for c in controls)
    assert detection_limit(missed, mixture_powers(missed, rules), rules) == 0.5
    blind = tuple(
        replace(c, comparison=accepted) if c.kind is ControlKind.INJECTED else c for c in controls
    )
    assert detection_limit(blind, mixture_powers(blind, rules), rules) is None


def test_what_cannot_be_compared_is_named_and_notices_nothing():
    failed = Model(
        *("control-50-1", Role.CONTROL), share=0.5, of="reference-1",
        failure=ModelFailure("unavailable", "the weights are integers"),
    )  # fmt: skip
    measures = cell(20, retrained(), more={"control-50-1": (retrained("control-50-1"), failed)})
    found = controls_of(measures)["control-50-1"]
    assert found.missing and found.as_expected is None and not found.rejected


def test_sensitivity_is_the_share_at_which_a_move_on_one_axis_is_noticed():
    measures = cell(20, retrained())
    bag = reference_bag(measures, RULES)
    found = axis_sensitivity(measures, bag)
    assert set(found) == {axis.name for axis in bag.axes}
    assert found["retain"] is None  # the injected model lies among the retrainings there
    share = found["forget"]
    assert share is not None and 0 < share < 1
    # A retraining moved that far on that axis alone is rejected, one moved a third of it is not.
    place = [axis.name for axis in bag.axes].index("forget")
    way = measures["injected"].median_forget_delta - bag.values[:, place].mean()
    rejected = []
    for part in (1.2 * share, share / 3):
        moved = measures["reference-1"]
        moved = replace(moved, forget_deltas=moved.forget_deltas + part * way)
        values = bag.values.copy()
        values[0, place] += part * way
        rejected.append(bag.compare(moved, "reference-1").gaps["forget"].fails)
    assert rejected == [True, False]


def test_the_dose_is_how_far_references_relearned():
    measures = cell(6, retrained())
    dose = measure_dose(measures, reference_bag(measures, RULES).names)
    assert dose.enough and 0.5 < dose.fraction < 1.5
    weak = cell(6, retrained())
    flat = {
        name: replace(m, curve=replace(m.curve, forget_heldout_nll=np.full(6, m.forget_nll)))
        for name, m in weak.models.items()
        if m.curve is not None
    }
    weak = replace(weak, models=weak.models | flat)
    assert not measure_dose(weak, reference_bag(weak, RULES).names).enough


@pytest.mark.parametrize("count", [5, 20])
def test_references_of_the_same_recipe_pass_and_of_another_are_noticed(count):
    """Trained for a third of the steps: retain facts half learned."""
    for seed in range(30):
        assert not recipe_of(cell(count, seed=seed)).failing
    generator = np.random.default_rng(1)
    more = {
        f"reference-{n}": (
            model(f"reference-{n}", generator, retain_nll=2.9 + 0.1 * generator.normal()),
            Model(f"reference-{n}", Role.REFERENCE, seed_no=n),
        )
        for n in range(1, count + 1)
    }
    assert recipe_of(cell(count, more=more)).failing


def recipe_of(measures: CellMeasures) -> RecipeCheck:
    found = check_recipe(measures, reference_bag(measures, RULES).names)
    assert found is not None
    return found


def test_a_harmless_distance_between_very_reproducible_models_is_no_other_recipe():
    """Ten standard deviations, and two percent of base's distance."""
    generator = np.random.default_rng(2)
    more = {
        f"reference-{n}": (
            model(f"reference-{n}", generator, retain_nll=1.1 + 0.01 * generator.normal()),
            Model(f"reference-{n}", Role.REFERENCE, seed_no=n),
        )
        for n in range(1, 10)
    }
    found = recipe_of(cell(9, more=more))
    assert 0 < found.retain_share < 0.05 and not found.failing


def test_recorded_recipes_are_compared_as_they_are():
    def recorded(rate: float) -> CellMeasures:
        measures = cell(5)
        own, other = {"learning_rate": 1e-4, "seed": 1}, {"learning_rate": rate, "seed": 7}
        records = dict(measures.records)
        records["injected"] = replace(records["injected"], recipe=own)
        records["reference-2"] = replace(records["reference-2"], recipe=other)
        return replace(measures, records=records)

    assert recipe_of(recorded(2e-4)).recorded == {"learning_rate": (1e-4, 2e-4)}
    assert recipe_of(recorded(2e-4)).failing and not recipe_of(recorded(1e-4)).failing


def test_an_interpolation_of_the_panel_is_no_second_control_beside_the_mixture():
    extra = known_label("interpolation-25", "partial") | known_label("suppression", early=-1.2)
    assert "interpolation-25" not in controls_of(cell(6, retrained(), more=extra))
    assert "suppression" in controls_of(cell(6, retrained(), more=extra))


def test_a_model_that_passes_only_with_one_odd_reference_hinges_on_it():
    measures = cell(5, retrained())
    odd = model("reference-5", np.random.default_rng(4), 1.0)
    candidate = model("like-it", np.random.default_rng(5), 1.0)
    widened = cell(5, candidate, more={"reference-5": (odd, measures.records["reference-5"])})
    bag = reference_bag(widened, RULES)
    assert bag.hinges(widened["like-it"]) == ("reference-5",)
    assert reference_bag(measures, RULES).hinges(measures["retrained"]) == ()
