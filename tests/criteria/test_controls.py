"""Controls: who is compared with whom, what the audit would have noticed, dose and recipe."""

from dataclasses import replace

import numpy as np
import pytest
from tests.criteria.made_cell import cell, model, retrained, without_round_trip

from palimpsest.criteria.controls import (
    Control,
    check_recipe,
    detection_limit,
    measure_dose,
    reference_bag,
    run_controls,
)
from palimpsest.criteria.measures import CellMeasures
from palimpsest.criteria.rules import Rules

RULES = Rules()


def controls_of(measures: CellMeasures, rules: Rules = RULES) -> dict[str, Control]:
    bag = reference_bag(measures, measures.roles, rules)
    return {control.name: control for control in run_controls(measures, bag)}


def challenge(name, truth="suppressed", **planted):
    return {name: (model(name, **planted), {"role": "challenge", "truth": truth})}


def test_every_known_model_is_a_control_with_what_is_expected():
    extra = challenge("panel:suppression", early=-1.2) | challenge("panel:half", "partial")
    extra |= challenge("panel:honest", "restored")
    extra["retraining-1"] = (retrained("retraining-1"), {"role": "retraining", "draw": 40})
    found = controls_of(cell(20, retrained(), more=extra))
    kinds = {name: (control.kind, control.expected) for name, control in found.items()}
    assert kinds["injected"] == ("injected", "reject")
    assert kinds["control-25"] == ("interpolation", "reject")
    assert kinds["panel:suppression"] == kinds["panel:half"] == ("suppressor", "reject")
    assert kinds["retraining-1"] == ("retraining", "accept")
    assert kinds["reference-7"] == ("reference", "accept")
    assert not {"base", "retrained", "panel:honest"} & set(found)
    assert found["injected"].rejected and found["panel:suppression"].rejected
    assert found["retraining-1"].as_expected and not found["panel:half"].as_expected


def test_the_reference_a_control_is_made_from_leaves_the_bag():
    measures = cell(20, retrained())
    found = controls_of(measures)
    assert found["control-10"].comparison.references == 19
    assert found["reference-3"].comparison.references == 19
    assert found["injected"].comparison.references == 20
    # A reference placed exactly where its control lies changes nothing for that control.
    twin = replace(measures["control-10"], name="reference")
    moved = cell(20, retrained(), more={"reference": (twin, {"role": "reference", "draw": 0})})
    assert controls_of(moved)["control-10"].comparison.p == found["control-10"].comparison.p


def test_nineteen_references_leave_a_control_to_the_student_t_region():
    found = controls_of(cell(19, retrained()))
    assert found["injected"].comparison.test == "exact"
    assert found["control-25"].comparison.test == "student-t"
    assert controls_of(cell(20, retrained()))["control-25"].comparison.test == "exact"


def test_references_left_out_are_accepted_about_as_often_as_promised():
    accepted = total = 0
    for seed in range(12):
        found = controls_of(cell(20, retrained(), seed=seed)).values()
        mine = [control for control in found if control.kind == "reference"]
        accepted += sum(not control.rejected for control in mine)
        total += len(mine)
    # By construction at most one of the twenty in each bag of nineteen and one.
    assert 0.9 <= accepted / total < 1


def test_what_cannot_be_compared_is_named():
    failed = {"role": "control", "share": 0.5, "of": "reference"}
    failed["failure"] = {"kind": "unavailable", "reason": "the weights are quantised"}
    measures = cell(19, retrained(), shares=(0.25,))
    roles = {**measures.roles, "control-50": failed}
    roles["panel:router"] = {"role": "challenge", "truth": "suppressed"}
    found = controls_of(replace(measures, roles=roles))
    assert found["control-50"].missing == "the weights are quantised"
    assert found["panel:router"].missing == "it has no scores on the evaluation pool"
    assert found["5% of the injected weights"].missing == "no such control was made"
    assert found["control-50"].as_expected is None and not found["control-50"].rejected
    two = controls_of(cell(2, retrained()))
    assert two["reference-1"].missing.startswith("too few references")


def test_a_control_without_a_way_back_is_judged_on_the_way_there():
    broken = without_round_trip(model("panel:embedding", retain_nll=8.0))
    extra = {"panel:embedding": (broken, {"role": "challenge", "truth": "suppressed"})}
    found = controls_of(cell(20, retrained(), more=extra))["panel:embedding"]
    assert found.rejected and found.comparison.rejected
    assert found.comparison.missing == ("residual", "relearn_early", "relearn_late")


# -- the detection limit --------------------------------------------------------------------------


def known(share, rejected, kind="interpolation", compared=True):
    comparison = controls_of(cell(5, retrained()))["injected"].comparison if compared else None
    missing = "" if compared else "unavailable"
    return Control(f"{kind}-{share}", kind, "reject", share, comparison, rejected, missing)


@pytest.mark.parametrize(
    ("injected", "shares", "limit"),
    [
        (True, {0.5: True, 0.25: True, 0.1: True, 0.05: False}, 0.1),
        (True, {0.5: True, 0.25: False, 0.1: True, 0.05: True}, 0.5),
        (True, {0.5: False, 0.25: True}, 1.0),
        (True, {}, 1.0),
        (False, {0.5: True, 0.25: True}, None),
    ],
)
def test_the_limit_is_the_smallest_share_rejected_with_all_larger_ones(injected, shares, limit):
    controls = [known(share, rejected) for share, rejected in shares.items()]
    controls.append(known(None, injected, "injected"))
    assert detection_limit(controls) == limit
    assert detection_limit(controls[::-1]) == limit


def test_a_share_without_a_comparison_is_passed_over_and_two_of_a_share_must_agree():
    injected = known(None, True, "injected")
    assert detection_limit([injected, known(0.5, False, compared=False), known(0.25, True)]) == 0.25
    assert detection_limit([injected, known(0.5, True), known(0.5, False)]) == 1.0
    assert detection_limit([]) is None


def test_a_made_cell_notices_a_quarter_and_not_nothing():
    limit = detection_limit(tuple(controls_of(cell(20, retrained())).values()))
    assert limit is not None and 0.05 <= limit <= 0.25


# -- dose and recipe ------------------------------------------------------------------------------


def test_the_dose_is_how_far_references_came_towards_the_injected_model():
    measures = cell(5, retrained())
    dose = measure_dose(measures, measures.references, RULES)
    # From 3.0 to 1.2, where the injected model is at 0.5: 1.8 of 2.5 nats.
    assert dose.fraction == pytest.approx(1.8 / 2.5, abs=0.05) and dose.enough
    assert (dose.steps, dose.required) == (75, 0.5)
    weak = cell(5, retrained(), more=_late(5, 1.6))
    dose = measure_dose(weak, weak.references, RULES)
    assert dose.fraction == pytest.approx(0.08, abs=0.05) and not dose.enough
    assert dose.suggested_steps > 75


def _late(count, late):
    names = [f"reference-{draw}" if draw else "reference" for draw in range(count)]
    return {
        name: (model(name, late=late), {"role": "reference", "draw": draw})
        for draw, name in enumerate(names)
    }


def test_a_dose_that_relearns_nothing_suggests_a_rate_and_not_a_number_of_steps():
    nothing = cell(3, retrained(), more=_late(3, 1.8))
    dose = measure_dose(nothing, nothing.references, RULES)
    assert dose.fraction == pytest.approx(0.0, abs=0.01) and dose.suggested_steps is None


def test_without_curves_there_is_no_dose():
    bare = {"reference": (without_round_trip(model("reference")), {"role": "reference", "draw": 0})}
    measures = cell(3, retrained(), more=bare)
    assert measure_dose(measures, measures.references, RULES) is None
    assert measure_dose(cell(0, retrained()), (), RULES) is None


def test_references_of_another_recipe_lie_far_from_the_injected_model():
    measures = cell(9, retrained())
    near = check_recipe(measures, measures.references, RULES)
    assert set(near.z) == {"drift", "retain", "general"} and not near.far
    other = model("injected", np.random.default_rng(5), 1.0, general_nll=2.6)
    measures = cell(9, retrained(), more={"injected": (other, {"role": "injected"})})
    far = check_recipe(measures, measures.references, RULES)
    assert far.far and far.axis == "general" and far.z["general"] > 10
    assert check_recipe(measures, ("reference",), RULES) is None


# -- the bag --------------------------------------------------------------------------------------


def test_stakes_are_distances_to_the_injected_model_or_to_base():
    measures = cell(20, retrained())
    stakes = reference_bag(measures, measures.roles, RULES).stakes
    assert stakes["forget"] == pytest.approx(2.5, abs=0.2)
    assert stakes["drift"] == stakes["forget"]  # drift has no stake of its own
    assert stakes["retain"] == pytest.approx(4.8, abs=0.1)
    assert stakes["relearn_early"] == pytest.approx(1.4, abs=0.1)


def test_nothing_is_at_stake_where_the_stake_model_looks_like_a_retraining():
    base = (model("base", retain_nll=6.0, general_nll=2.01, residual=None), {"role": "base"})
    measures = cell(20, retrained(), more={"base": base})
    stakes = reference_bag(measures, measures.roles, RULES).stakes
    assert stakes["general"] is None and stakes["residual"] is None


def test_axes_without_values_or_spread_are_listed():
    broken = model("reference-2", extra={}, general_nll=float("nan"))
    more = {"reference-2": (broken, {"role": "reference", "draw": 2})}
    measures = cell(5, retrained(), more=more)
    bag = reference_bag(measures, measures.roles, RULES)
    assert bag.unmeasured == {"general": ("reference-2",), "reversed": ("reference-2",)}
    assert "general" not in [axis.name for axis in bag.axes] and bag.values.shape == (5, 7)
    same = _late(5, 0.0)
    measures = cell(5, retrained(), more=same)
    bag = reference_bag(measures, measures.roles, RULES)
    assert bag.constant == tuple(axis.name for axis in bag.axes)


def test_a_control_that_only_lacks_axes_neither_counts_as_rejected_nor_lowers_the_limit():
    made = cell(20, retrained())
    bare = without_round_trip(retrained("control-10", 7))
    measures = replace(made, models={**made.models, "control-10": bare})
    controls = {
        c.name: c for c in run_controls(measures, reference_bag(measures, measures.roles, Rules()))
    }
    unmeasured = controls["control-10"]
    assert unmeasured.comparison is None and not unmeasured.rejected
    assert "no finite value on residual" in unmeasured.missing
    assert detection_limit(list(controls.values())) != 0.1
