"""Each verdict and each reason to abstain, with the numbers behind it, and no silent fallback."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.criteria.bars import Tolerances
from palimpsest.criteria.headroom import measure_headroom
from palimpsest.criteria.measures import CellMeasures, ModelMeasures, RelearningCurve
from palimpsest.criteria.rules import Rules
from palimpsest.errors import BundleError, PalimpsestError, ScoreError
from palimpsest.verdict import REASONS, Verdict, decide

RULES = Rules()
NOISE = Tolerances(
    delta_f=0.8, epsilon_retain=0.1, epsilon_residual=0.1, fall_deviation=0.05, draws=3
)


def model(name, forget, probe=0.0, retain=1.2, residual=0.9, fall=0.4, probes=16, facts=4):
    """A model whose forget and probe deltas lie around the given shifts."""
    forget_deltas = forget + 0.1 * np.linspace(-1, 1, facts)
    probe_deltas = probe + 0.3 * np.linspace(-1, 1, probes)
    curve = None
    if fall is not None:
        heldout, flat = np.array([3.0, 3.0 - fall]), np.ones(2)
        curve = RelearningCurve(np.arange(2), heldout, heldout, flat, flat, flat)
    return ModelMeasures(
        name=name,
        forget_facts=tuple(f"f{i}" for i in range(facts)),
        probe_facts=tuple(f"p{i}" for i in range(probes)),
        forget_nlls=3 + forget_deltas,
        probe_nlls=3 + probe_deltas,
        forget_deltas=forget_deltas,
        probe_deltas=probe_deltas,
        retain_nll=retain,
        residual=residual,
        curve=curve,
    )


def cell(*models, probes=16, facts=4):
    defaults = [model("injected", -2.0, probes=probes, facts=facts)]
    by_name = {one.name: one for one in [*defaults, *models]}
    return CellMeasures(
        "evaluation",
        by_name["injected"].forget_facts,
        by_name["injected"].probe_facts,
        by_name,
    )


REFERENCE = model("reference", 0.0)
GOOD = model("task_vector-c1", 0.2)
BETTER = model("gate_mask-w3", 0.1)
KNOWING = model("kl_reversion-w3", -1.5)
DAMAGED = model("ga-w3", 0.1, retain=6.0)


def test_reference_relative_certifies_the_smallest_worst_axis():
    measures = cell(REFERENCE, GOOD, BETTER, KNOWING, DAMAGED)
    names = ["task_vector-c1", "gate_mask-w3", "kl_reversion-w3", "ga-w3"]
    verdict = decide(measures, RULES, names, NOISE)
    assert verdict.certified and verdict.mode == "reference-relative"
    assert verdict.candidate == "gate_mask-w3" and verdict.reason is None
    assert verdict.finding("kl_reversion-w3").failures == ("screen", "forget equivalence")
    assert verdict.finding("ga-w3").failures == ("retain damage",)
    assert verdict.numbers["clearing"] == 2 and verdict.numbers["survivors"] == 3


def test_oracle_free_certifies_the_smallest_residual_under_the_absolute_bar():
    first = model("a", 0.2, retain=0.4, residual=0.45)
    second = model("b", 0.2, retain=0.4, residual=0.30)
    tempting = model("c", -1.5, retain=0.1, residual=0.01)  # best residual, still knows
    verdict = decide(cell(first, second, tempting), RULES, ["a", "b", "c"])
    assert verdict.certified and verdict.mode == "oracle-free"
    assert verdict.candidate == "b"
    assert verdict.finding("c").failures == ("screen",)


def test_underpowered_abstains_before_reading_anything_into_survivors():
    measures = cell(
        *(model(f"c{i}", -2.0, probes=4) for i in range(16)), model("injected", -2.0, probes=4)
    )
    verdict = decide(measures, RULES, [f"c{i}" for i in range(16)])
    assert verdict.reason == "underpowered"
    assert verdict.numbers["arrangements"] == 70 and verdict.numbers["required"] == 320
    assert verdict.numbers["min_probes"] == 7
    assert "no candidate could be excluded" in verdict.paragraph()


def test_all_excluded_while_the_reference_passes():
    verdict = decide(cell(REFERENCE, KNOWING), RULES, ["kl_reversion-w3"], NOISE)
    assert verdict.reason == "all_excluded"
    assert verdict.numbers["reference_excluded"] is False


def test_all_excluded_without_a_reference():
    verdict = decide(cell(KNOWING), RULES, ["kl_reversion-w3"])
    assert verdict.reason == "all_excluded" and verdict.mode == "oracle-free"


def test_a_reference_that_is_excluded_with_everyone_means_not_identifiable():
    """TOFU: retraining infers the facts, so nobody reaches the never-learned level."""
    inferring = model("reference", -3.0)
    verdict = decide(cell(inferring, KNOWING), RULES, ["kl_reversion-w3"])
    assert verdict.reason == "not_identifiable"
    assert verdict.numbers["because"] == "reference"
    assert verdict.numbers["reference_p"] == 1 / 4845
    assert "never-learned level cannot be reached" in verdict.paragraph()


def test_an_injected_model_that_knows_nothing_certifies_nobody():
    """A wrong forget file, or base and injected exchanged: everybody would survive."""
    ignorant = model("injected", 0.0, retain=0.3, residual=0.0)
    untouched = model("nothing-done", 0.0, retain=0.3, residual=0.0)
    for tolerances, references in ((None, []), (NOISE, [REFERENCE])):
        verdict = decide(
            cell(ignorant, untouched, *references), RULES, ["nothing-done"], tolerances
        )
        assert verdict.reason == "not_identifiable"
        assert verdict.numbers["because"] == "injected" and verdict.numbers["injected_p"] > 0.05
        assert "base and injected are not exchanged" in verdict.paragraph()


def test_a_bar_that_no_reference_clears_is_said_to_be_stricter_than_retraining():
    scarred = replace(REFERENCE, residual=5.0)
    verdict = decide(cell(scarred, DAMAGED), RULES, ["ga-w3"], NOISE)
    assert verdict.reason == "no_candidate_clears_bar"
    assert verdict.numbers["references_clearing"] == 0
    assert "stricter than retraining" in verdict.paragraph()
    verdict = decide(cell(REFERENCE, DAMAGED), RULES, ["ga-w3"], NOISE)
    assert verdict.numbers["references_clearing"] == 1
    assert "1 of 1 references held to the same bar pass." in verdict.paragraph()


def test_an_absolute_bar_that_injected_itself_is_above_is_said_to_be_out_of_reach():
    verdict = decide(cell(DAMAGED), RULES, ["ga-w3"])
    assert verdict.reason == "no_candidate_clears_bar"
    assert "own retain NLL is 1.20, above that limit already" in verdict.paragraph()


def test_inferable_facts_are_not_identifiable_whatever_the_candidates_do():
    facts = [f"f{i}" for i in range(6)]
    inferable = measure_headroom(facts, np.full(6, 3.0), np.full(6, 0.7), np.full(6, 0.5), RULES)
    verdict = decide(cell(REFERENCE, GOOD), RULES, ["task_vector-c1"], NOISE, headroom=inferable)
    assert verdict.reason == "not_identifiable" and verdict.numbers["because"] == "headroom"
    counterfactual = measure_headroom(
        facts, np.full(6, 3.0), np.full(6, 2.9), np.full(6, 0.5), RULES
    )
    certified = decide(
        cell(REFERENCE, GOOD), RULES, ["task_vector-c1"], NOISE, headroom=counterfactual
    )
    assert certified.certified and certified.numbers["regime"] == "counterfactual"


def test_no_survivor_clears_the_bar_and_the_nearest_is_named_but_not_certified():
    far = model("npo-w3", 9.0)
    verdict = decide(cell(REFERENCE, DAMAGED, far), RULES, ["ga-w3", "npo-w3"], NOISE)
    assert verdict.reason == "no_candidate_clears_bar" and verdict.candidate is None
    assert verdict.numbers["nearest"] == "ga-w3"
    assert "is not certified" in verdict.paragraph()


def test_without_a_reference_nothing_falls_back_to_residual_ranking():
    verdict = decide(cell(GOOD, BETTER), RULES, ["task_vector-c1", "gate_mask-w3"])
    assert verdict.reason == "no_candidate_clears_bar"
    assert verdict.finding("task_vector-c1").failures == ("retain limit", "residual limit")
    assert "absolute one" in verdict.paragraph()


def test_the_relearn_veto_stops_a_suppressed_model_the_forward_axes_accept():
    suppressed = model("suppression", 0.1, fall=2.0)
    names = ["suppression"]
    measures = cell(REFERENCE, suppressed)
    assert decide(measures, RULES, names, NOISE).reason == "no_candidate_clears_bar"
    assert decide(measures, RULES, names, NOISE).finding("suppression").failures == (
        "relearn veto",
    )
    assert decide(measures, replace(RULES, relearn_veto=False), names, NOISE).certified


def test_missing_curves_or_measures_are_errors_and_never_a_pass():
    bare = model("x", 0.1, fall=None)
    with pytest.raises(ScoreError, match="model x has no re-acquisition curve"):
        decide(cell(REFERENCE, bare), RULES, ["x"], NOISE)
    with pytest.raises(ScoreError, match="model y has no residual"):
        decide(cell(model("y", 0.1, residual=None)), RULES, ["y"])
    with pytest.raises(ScoreError, match="no scores of model ghost"):
        decide(cell(), RULES, ["ghost"])


def test_tolerances_come_from_two_or_more_draws():
    second = model("reference-1", 0.3, retain=1.3, residual=1.0, fall=0.45)
    verdict = decide(cell(REFERENCE, second, GOOD), RULES, ["task_vector-c1"])
    assert verdict.mode == "reference-relative"
    assert verdict.numbers["delta_f"] == pytest.approx(0.3)
    assert verdict.numbers["references"] == 2


def test_one_draw_without_tolerances_only_checks_reachability_and_says_so():
    lenient = model("a", 0.2, retain=0.4, residual=0.3)
    verdict = decide(cell(REFERENCE, lenient), RULES, ["a"])
    assert verdict.mode == "oracle-free" and verdict.certified
    assert "served only to check" in verdict.paragraph()
    assert decide(cell(REFERENCE, lenient), RULES, ["a"], references=()).numbers["references"] == 0


def test_ties_go_to_candidate_order():
    twin = replace(GOOD, name="twin")
    measures = cell(REFERENCE, GOOD, twin)
    assert decide(measures, RULES, ["task_vector-c1", "twin"], NOISE).candidate == "task_vector-c1"
    assert decide(measures, RULES, ["twin", "task_vector-c1"], NOISE).candidate == "twin"


def every_verdict():
    names = ["task_vector-c1", "ga-w3"]
    yield decide(cell(REFERENCE, GOOD, DAMAGED), RULES, names, NOISE)
    yield decide(cell(GOOD, DAMAGED), RULES, names)
    yield decide(cell(REFERENCE, KNOWING), RULES, ["kl_reversion-w3"], NOISE)
    yield decide(cell(model("reference", -3.0), KNOWING), RULES, ["kl_reversion-w3"])
    few = cell(model("a", 0.0, probes=1), model("injected", -2.0, probes=1), probes=1)
    yield decide(few, RULES, ["a"])


def test_every_verdict_prints_one_paragraph_and_survives_json():
    reasons = set()
    for verdict in every_verdict():
        text = verdict.paragraph()
        assert "\n" not in text and text.endswith(".") and "None" not in text
        assert text.startswith("Certified: " if verdict.certified else "Uncertified (")
        again = Verdict.from_json(verdict.to_json())
        assert again == verdict and again.to_json() == verdict.to_json()
        assert again.paragraph() == text
        json.loads(verdict.to_json(), parse_constant=lambda name: pytest.fail(name))
        reasons.add(verdict.reason)
    assert reasons == {None, *REASONS}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"findings": [{"name": 1}]}', "null"])
def test_what_is_not_a_verdict_is_refused(text):
    with pytest.raises(BundleError, match="not a verdict"):
        Verdict.from_json(text)


def test_a_verdict_cannot_contradict_itself():
    with pytest.raises(ScoreError):
        Verdict("certified", "oracle-free", None, None, {}, ())
    with pytest.raises(ScoreError):
        Verdict("uncertified", "oracle-free", None, None, {}, ())
    with pytest.raises(ScoreError):
        Verdict("certified", "oracle-free", "a", "all_excluded", {}, ())


shifts = st.floats(-4, 4).map(lambda x: round(x, 2))
amounts = st.floats(0, 4).map(lambda x: round(x, 2))
drawn = st.lists(st.tuples(shifts, amounts, amounts, amounts), min_size=1, max_size=6)


@given(drawn, st.booleans())
def test_whoever_is_certified_clears_every_axis_and_no_clearer_is_better(draws, relative):
    candidates = [
        model(f"c{i}", forget, retain=retain, residual=residual, fall=fall)
        for i, (forget, retain, residual, fall) in enumerate(draws)
    ]
    names = [one.name for one in candidates]
    measures = cell(REFERENCE, *candidates)
    if relative:
        verdict = decide(measures, RULES, names, NOISE)
    else:
        verdict = decide(measures, RULES, names, references=())
    clearing = [one for one in verdict.findings if one.clears]
    if not verdict.certified:
        assert not clearing and verdict.reason in ("all_excluded", "no_candidate_clears_bar")
        return
    pick = verdict.finding(verdict.candidate)
    assert pick in clearing and not pick.excluded
    if relative:
        assert pick.worst_axis <= 1
        assert pick.worst_axis == min(one.worst_axis for one in clearing)
    else:
        assert pick.residual == min(one.residual for one in clearing) <= 0.5


@given(st.sampled_from([np.nan, np.inf, -np.inf]), st.integers(0, 3))
def test_no_broken_score_ever_reaches_a_verdict(value, fact):
    deltas = GOOD.forget_deltas.copy()
    deltas[fact] = value
    with pytest.raises(PalimpsestError, match=f"model task_vector-c1, fact f{fact}"):
        decide(cell(replace(GOOD, forget_deltas=deltas)), RULES, ["task_vector-c1"])


def test_statistics_and_verdicts_import_no_torch():
    code = (
        "import sys; import palimpsest.criteria, palimpsest.verdict; "
        "[getattr(palimpsest.criteria, name) for name in palimpsest.criteria.__all__]; "
        "heavy = {'torch', 'transformers', 'pandas', 'matplotlib', 'pyarrow'} & set(sys.modules); "
        "sys.exit(', '.join(sorted(heavy)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_criteria_alone_loads_no_numerics():
    code = (
        "import sys, palimpsest.criteria.rules; "
        "sys.exit('scipy' in sys.modules or 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
