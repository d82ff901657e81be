"""Controls: who is compared with whom, what an audit notices, dose, recipe, odd references."""

from dataclasses import replace

import numpy as np
import pytest
from tests.stats.made_cell import cell, known_label, model, retrained

from palimpsest.stats.controls import (
    Control,
    ControlKind,
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
    assert (powers[0.5].noticed, powers[0.5].tried) == (5, 5)
    assert powers[0.5].at_least == clopper_pearson(5, 5, 0.95, "lower").low
    limit = detection_limit(controls, mixture_powers(controls, RULES), RULES)
    assert limit is not None and limit <= 0.25


def test_the_detection_limit_stops_at_the_first_share_that_is_missed():
    controls = tuple(controls_of(cell(20, retrained())).values())
    accepted = replace(
        next(c for c in controls if c.share == 0.05).comparison, rejected=False, accepted=True
    )
    missed = tuple(replace(c, comparison=accepted) if c.share == 0.25 else c for c in controls)
    assert detection_limit(missed, mixture_powers(missed, RULES), RULES) == 0.5
    blind = tuple(
        replace(c, comparison=accepted) if c.kind is ControlKind.INJECTED else c for c in controls
    )
    assert detection_limit(blind, mixture_powers(blind, RULES), RULES) is None


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


@pytest.mark.parametrize("count", [5, 6, 9, 20])
def test_references_of_the_same_recipe_pass(count):
    for seed in range(30):
        measures = cell(count, seed=seed)
        found = check_recipe(measures, reference_bag(measures, RULES).names)
        assert found.failing == ()


@pytest.mark.parametrize("count", [5, 6, 9, 20])
def test_references_of_another_recipe_are_noticed(count):
    """Trained for a third of the steps: retain facts half learned, general text drifted less."""
    generator = np.random.default_rng(1)
    more = {
        f"reference-{n}": (
            model(f"reference-{n}", generator, retain_nll=2.9 + 0.1 * generator.normal()),
            Model(f"reference-{n}", Role.REFERENCE, seed_no=n),
        )
        for n in range(1, count + 1)
    }
    measures = cell(count, more=more)
    found = check_recipe(measures, reference_bag(measures, RULES).names)
    assert "retain" in found.failing


def test_the_recipe_limit_grows_as_references_are_fewer():
    limits = [check_recipe(c, reference_bag(c, RULES).names).limit for c in map(cell, (5, 9, 20))]
    assert limits[0] > limits[1] > limits[2] > 5
