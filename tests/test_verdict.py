"""Each verdict and each reason to abstain, with the numbers behind it, and no silent fallback."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.criteria import axes as table
from palimpsest.criteria.headroom import measure_headroom
from palimpsest.criteria.measures import CellMeasures
from palimpsest.criteria.rules import Rules
from palimpsest.errors import PalimpsestError, ScoreError
from palimpsest.verdict import REASONS, Verdict, decide
from palimpsest.verdict_words import refusals
from tests.criteria.made_cell import cell, model, retrained, with_probes, without_round_trip

RULES = Rules()
ASCENT = model("ga-w3", forget=13.0, retain_nll=0.29, early=5.0, late=3.0)
"""Gradient ascent: 13 nats above base on the forget facts, retain facts fitted better than ever."""
KNOWING = model("kl_reversion-w3", share=0.6)
SUPPRESSED = model("suppressed", early=-1.2, late=-0.6)
"""Lies where a retraining lies until it is re-acquired."""


def judged(measures: CellMeasures, rules: Rules = RULES, **options) -> Verdict:
    return decide(measures, None, rules, **options)


def noisy(name, seed=7, **planted):
    return model(name, np.random.default_rng(seed), **planted)


# -- certified ------------------------------------------------------------------------------------


@pytest.mark.parametrize("references", [5, 19, 20, 30])
def test_a_fresh_retraining_is_certified(references):
    verdict = judged(cell(references, retrained(), ASCENT, KNOWING))
    assert verdict.certified and verdict.candidate == "retrained", verdict.paragraph()
    assert verdict.grade == "indistinguishable" and verdict.reason is None
    assert verdict.finding("kl_reversion-w3").failures[0] == "screen"
    assert not verdict.finding("ga-w3").clears
    test = "student-t" if references < 19 else "exact"
    assert verdict.numbers["test"] == verdict.finding("retrained").comparison.test == test
    assert verdict.detection_limit <= RULES.detection_limit


def test_the_paragraph_says_what_was_shown_and_what_would_have_been_noticed():
    extra = {
        "panel:suppression": (replace(SUPPRESSED, name="panel:suppression"),
                              {"role": "challenge", "truth": "suppressed"}),
    }  # fmt: skip
    verdict = judged(cell(30, retrained(), more=extra))
    text = verdict.paragraph()
    assert text.startswith(
        "Certified: retrained. Indistinguishable from 30 retrainings on 9 axes (p = "
    )
    assert "worst axis: " in text and " sd). This audit would have noticed 5 % of" in text
    known = "the injected model and the known-label model that keeps the facts"
    assert f"it rejected {known}, and accepted 2" in text
    assert "of 30 retrainings. It is " in text and "% restored (largest gap: " in text
    others = [c.comparison.restored for c in verdict.controls if c.kind == "reference"]
    low, high = (f"{100 * share:.3g} %" for share in (min(others), max(others)))
    assert f"by the same measure the retrainings are {low} to {high} restored." in text


def test_every_refusal_is_put_into_words():
    verdict = judged(cell(30, retrained(), ASCENT, KNOWING, replace(KNOWING, name="kl-2")))
    screened, ascent = refusals(verdict)
    known = "kl_reversion-w3, kl-2 still know the forget facts beyond chance (screen)."
    assert screened == known
    far = verdict.finding("ga-w3").comparison
    side = table.axis(far.worst.axis)
    did = side.high if far.worst.direction == "high" else side.low
    assert ascent.startswith(f"ga-w3 {did} (") and ascent.endswith(f"p = {far.p:.2g}).")
    assert refusals(judged(cell(30, retrained()))) == []


def test_a_model_screened_out_for_its_lost_probes_is_told_so():
    damaged = model("mine-w1")
    damaged = replace(
        damaged, probe_deltas=damaged.probe_deltas + 3, probe_nlls=damaged.probe_nlls + 3
    )
    screened, lost = refusals(judged(cell(30, damaged, KNOWING)))
    assert screened == "kl_reversion-w3 still knows the forget facts beyond chance (screen)."
    assert lost.startswith("mine-w1 knows the forget facts better than the never-learned probes")
    assert "because it lost the probes (drift, +" in lost


def test_fresh_retrainings_are_rejected_about_as_often_as_alpha():
    fresh = [retrained(f"retrained-{n}", 2000 + n) for n in range(200)]
    verdict = judged(cell(39, *fresh), replace(RULES, alpha=0.05))
    rejected = np.mean([not f.comparison.accepted for f in verdict.findings])
    # One bag for all 200: its luck is shared, so the band is wide.
    assert 0.0 < rejected < 0.15


def test_among_several_the_largest_p_is_certified():
    several = [retrained(f"r{n}", 50 + n) for n in range(6)]
    verdict = judged(cell(20, *several))
    passing = [f for f in verdict.findings if f.clears]
    pick = verdict.finding(verdict.candidate)
    assert pick.comparison.p == max(f.comparison.p for f in passing)
    ties = [f for f in passing if f.comparison.p == pick.comparison.p]
    assert abs(pick.comparison.worst.sd) == min(abs(f.comparison.worst.sd) for f in ties)
    assert "more candidates pass" in verdict.paragraph()


def test_equals_keep_the_order_they_were_listed_in():
    twins = retrained("a"), retrained("b")
    assert judged(cell(20, *twins)).candidate == "a"
    assert judged(cell(20, *twins[::-1])).candidate == "b"


def test_a_margin_certifies_equivalence_and_never_calls_it_indistinguishable():
    close = noisy("close", general_nll=2.08)  # 5 sd off, and 8 % of what was at stake
    assert judged(cell(20, close)).reason == "distinguishable"
    verdict = judged(cell(20, close), replace(RULES, margin=0.3))
    assert verdict.certified and verdict.grade == "equivalent"
    assert "Equivalent within 30 % to 20 retrainings" in verdict.paragraph()
    assert "ndistinguishable" not in verdict.paragraph()
    # Controls are judged by the same rule, so a wide margin notices less.
    wide = judged(cell(20, close), replace(RULES, margin=0.9))
    assert wide.reason == "underpowered" and wide.because == "detection_limit"


# -- not certified --------------------------------------------------------------------------------


@pytest.mark.parametrize("references", [0, 1, 2])
def test_without_references_nothing_is_certified(references):
    """The false certificate of the first edition: ascent by 13 nats, without references."""
    verdict = judged(cell(references, ASCENT, retrained()))
    assert verdict.reason == "no_reference" and verdict.candidate is None
    assert verdict.nearest in ("ga-w3", "retrained")
    assert all(f.comparison is None and not f.clears for f in verdict.findings)
    text = verdict.paragraph()
    assert "a ranking, not a certificate" in text and "give at least 3" in text
    assert text.startswith("Uncertified (no_reference). ")


@pytest.mark.parametrize("references", [5, 19, 30])
@pytest.mark.parametrize(
    ("planted", "axis", "direction"),
    [
        ({"forget": 13.0}, "forget", "high"),
        ({"early": -1.2}, "relearn_early", "low"),
        ({"retain_nll": 6.0}, "retain", "high"),
        ({"retain_nll": 0.2}, "retain", "low"),
        ({"residual": 0.0}, "residual", "low"),
    ],
)
def test_what_is_not_retraining_is_distinguishable_by_name(references, planted, axis, direction):
    verdict = judged(cell(references, noisy("candidate", **planted)))
    assert verdict.reason == "distinguishable" and verdict.nearest == "candidate"
    worst = verdict.finding("candidate").comparison.worst
    assert (worst.axis, worst.direction) == (axis, direction)
    assert verdict.finding("candidate").failures == (axis,)
    text = verdict.paragraph()
    entry = table.axis(axis)
    assert (entry.high if direction == "high" else entry.low) in text and " sd; p = " in text


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("references", [5, 19, 30])
def test_a_share_of_the_injected_weights_is_never_certified(share, references):
    verdict = judged(cell(references, noisy("left", share=share), retrained()))
    assert verdict.candidate == "retrained" and not verdict.finding("left").clears


def test_the_nearest_of_the_distinguishable_is_named():
    far, near = noisy("far", retain_nll=6.0), noisy("near", retain_nll=1.5)
    verdict = judged(cell(20, far, near))
    assert verdict.reason == "distinguishable" and verdict.nearest == "near"
    assert "The nearest, near, lost retain facts" in verdict.paragraph()


def test_one_axis_noise_is_not_used_for_another():
    """Twelve retain standard deviations, less than one in units of forget noise."""
    damaged = noisy("damaged", retain_nll=1.2 + 12 * 0.03)
    assert judged(cell(19, damaged)).finding("damaged").comparison.worst.axis == "retain"
    assert judged(cell(19, damaged)).reason == "distinguishable"


def test_all_excluded_while_references_pass():
    verdict = judged(cell(5, KNOWING))
    assert verdict.reason == "all_excluded"
    assert "The references themselves survive it." in verdict.paragraph()
    assert judged(cell(0, KNOWING)).reason == "all_excluded"


def test_inferable_facts_are_not_identifiable_whatever_the_candidates_do():
    facts = [f"f{i}" for i in range(6)]
    levels = {"inferable": 0.7, "counterfactual": 2.9}
    for regime, evidence in levels.items():
        headroom = measure_headroom(
            facts, np.full(6, 3.0), np.full(6, evidence), np.full(6, 0.5), RULES
        )
        verdict = judged(cell(20, retrained()), headroom=headroom)
        assert verdict.numbers["regime"] == regime
        assert verdict.certified == (regime == "counterfactual")
        if not verdict.certified:
            assert (verdict.reason, verdict.because) == ("not_identifiable", "headroom")
            assert "The facts are inferable" in verdict.paragraph()


def test_an_injected_model_that_knows_nothing_certifies_nobody():
    """A wrong forget file, or base and injected exchanged: everybody would survive."""
    ignorant = {"injected": (noisy("injected"), {"role": "injected"})}
    for references in (0, 20):
        verdict = judged(cell(references, retrained(), more=ignorant))
        assert (verdict.reason, verdict.because) == ("not_identifiable", "injected")
        assert verdict.numbers["injected_p"] > 0.05
        assert "base and injected are not swapped" in verdict.paragraph()


@pytest.mark.parametrize("draw", [0, 3])
def test_a_reference_that_the_screen_excludes_is_never_certified_on(draw):
    name = f"reference-{draw}" if draw else "reference"
    contaminated = {name: (noisy(name, share=1.0), {"role": "reference", "draw": draw})}
    verdict = judged(cell(5, retrained(), more=contaminated))
    assert (verdict.reason, verdict.because) == ("not_identifiable", "reference")
    assert verdict.numbers["excluded_reference"] == name
    assert "1 of 5 references are excluded" in verdict.paragraph()


# -- underpowered, and by what --------------------------------------------------------------------


def test_underpowered_by_the_screen_abstains_before_reading_anything_into_survivors():
    few = [replace(retrained(f"c{n}", n), name=f"c{n}") for n in range(16)]
    verdict = judged(with_probes(cell(20, *few), 4))
    assert (verdict.reason, verdict.because) == ("underpowered", "screen")
    assert verdict.numbers["arrangements"] == 70 and verdict.numbers["required"] == 320
    assert verdict.numbers["min_probes"] == 7
    assert "no candidate could be excluded" in verdict.paragraph()


def test_underpowered_by_the_detection_limit():
    blind = {
        f"control-{percent}": (noisy(f"control-{percent}", seed=percent),
                               {"role": "control", "share": percent / 100, "of": "reference"})
        for percent in (50, 25, 10, 5)
    }  # fmt: skip
    verdict = judged(cell(20, retrained(), more=blind))
    assert (verdict.reason, verdict.because) == ("underpowered", "detection_limit")
    assert verdict.detection_limit == 1.0 and verdict.finding("retrained").clears
    assert "More references (20 were given)" in verdict.paragraph()
    assert judged(cell(20, retrained(), more=blind), replace(RULES, detection_limit=1.0)).certified


def test_missing_controls_are_named_and_certify_nothing():
    verdict = judged(cell(20, retrained(), shares=()))
    assert (verdict.reason, verdict.because) == ("underpowered", "detection_limit")
    assert "Controls that could not be compared: 50% of the injected weights" in verdict.paragraph()


def test_underpowered_by_a_dose_that_relearns_nothing():
    weak = {
        f"reference-{d}" if d else "reference": (
            model(f"reference-{d}" if d else "reference", np.random.default_rng(d), late=1.6),
            {"role": "reference", "draw": d},
        )
        for d in range(20)
    }
    verdict = judged(cell(20, noisy("fresh", late=1.6), more=weak))
    assert (verdict.reason, verdict.because) == ("underpowered", "dose")
    text = verdict.paragraph()
    assert "Re-acquisition is too weak: in 75 steps it brought the references" in text
    assert "% of the way" in text and "higher learning rate" in text
    forward = tuple(a.name for a in table.AXES if a.needs == "forward")
    assert judged(cell(20, noisy("fresh"), more=weak), replace(RULES, axes=forward)).certified


def test_references_that_do_not_vary_are_said_and_never_certified_on():
    same = {
        f"reference-{d}" if d else "reference": (
            model(f"reference-{d}" if d else "reference", general_nll=2.0 + 0.01 * d),
            {"role": "reference", "draw": d},
        )
        for d in range(5)
    }
    verdict = judged(cell(5, model("copy"), more=same))
    assert (verdict.reason, verdict.because) == ("underpowered", "constant")
    assert "do not vary at all on forget, weakest, drift, retain, residual" in verdict.paragraph()


def test_an_axis_that_a_reference_lacks_names_the_reference():
    bare = {"reference-1": (without_round_trip(noisy("reference-1")),
                            {"role": "reference", "draw": 1})}  # fmt: skip
    verdict = judged(cell(5, retrained(), more=bare))
    assert (verdict.reason, verdict.because) == ("underpowered", "axes")
    assert "residual, relearn early, relearn late have no finite value for reference-1" in (
        verdict.paragraph()
    )


def test_an_underpowered_audit_still_says_what_it_rejects():
    verdict = judged(cell(20, noisy("damaged", retain_nll=6.0), shares=()))
    assert verdict.reason == "underpowered"
    assert "Even so, damaged is distinguishable from retraining." in verdict.paragraph()


# -- broken numbers -------------------------------------------------------------------------------


def test_nan_on_an_axis_fails_that_candidate_with_the_axis_named():
    broken = replace(retrained("broken"), general_nll=float("nan"))
    verdict = judged(cell(20, broken, retrained()))
    finding = verdict.finding("broken")
    assert verdict.candidate == "retrained"
    assert finding.failure == "not a finite number on general"
    assert finding.failures == ("general",) and finding.values["general"] is None
    alone = judged(cell(20, broken))
    assert alone.reason == "distinguishable"
    assert "broken could not be compared: it is not a finite number on general." in (
        alone.paragraph()
    )


def test_what_was_not_measured_is_never_a_pass():
    verdict = judged(cell(20, without_round_trip(retrained("bare"))))
    assert not verdict.certified
    assert verdict.finding("bare").failure == (
        "not measured on residual, relearn early, relearn late"
    )
    with pytest.raises(ScoreError, match="no scores of model ghost"):
        judged(cell(3, retrained()), candidates=["ghost"])
    with pytest.raises(ScoreError, match="at least one"):
        judged(cell(3))


@given(st.sampled_from([np.nan, np.inf, -np.inf]), st.integers(0, 3))
def test_no_broken_score_ever_reaches_a_verdict(value, fact):
    deltas = retrained("x").forget_deltas.copy()
    deltas[fact] = value
    with pytest.raises(PalimpsestError, match=f"model x, fact f{fact}"):
        judged(cell(3, replace(retrained("x"), forget_deltas=deltas)))


def test_another_recipe_and_a_passed_suppressor_are_remarked():
    other = {"injected": (noisy("injected", share=1.0, general_nll=2.8), {"role": "injected"})}
    verdict = judged(cell(20, retrained(), more=other))
    assert verdict.recipe.far and "may come from another recipe" in verdict.paragraph()
    passing = {"panel:clever": (noisy("panel:clever", seed=8),
                                {"role": "challenge", "truth": "suppressed"})}  # fmt: skip
    verdict = judged(cell(20, retrained(), more=passing))
    assert (
        "Known-label models that keep the facts and passed the comparison: panel:clever."
        in verdict.remarks[0]
    )


# -- what a verdict may depend on -----------------------------------------------------------------


def without_names(verdict: Verdict) -> dict:
    document = json.loads(verdict.to_json())
    document["numbers"].pop("excluded_reference")
    document["controls"] = sorted(
        json.dumps({**control, "name": "", "comparison": {**control["comparison"], "name": ""}})
         for control in document["controls"] if control["kind"] == "reference"
    )  # fmt: skip
    return document


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(6)), st.integers(0, 50))
def test_the_order_of_the_references_does_not_matter(order, seed):
    measures = cell(6, retrained(), ASCENT, seed=seed)
    draws = measures.references
    renamed = {draws[place]: replace(measures[name], name=draws[place])
               for place, name in zip(order, draws)}  # fmt: skip
    models = {**measures.models, **renamed}
    roles = {
        name: {**role, "of": draws[order[0]]} if role["role"] == "control" else role
        for name, role in measures.roles.items()
    }
    again = replace(measures, models=dict(reversed(models.items())), roles=roles)
    names = ["retrained", "ga-w3"]
    one, other = judged(measures, candidates=names), judged(again, candidates=names)
    assert without_names(one) == without_names(other)


def test_other_models_of_the_cell_do_not_change_a_comparison():
    alone = judged(cell(20, retrained())).finding("retrained").comparison
    others = judged(cell(20, ASCENT, retrained(), noisy("y", retain_nll=5.0)))
    assert others.finding("retrained").comparison == alone


def test_an_axis_added_to_the_table_reaches_the_verdict(monkeypatch):
    further = replace(
        table.axis("retain"),
        name="quantised",
        read=lambda m: m.extra.get("quantised"),
        recipe=False,
    )
    monkeypatch.setattr(table, "AXES", (*table.AXES, further))
    measures = cell(20, retrained(), noisy("brittle"))
    generator = np.random.default_rng(1)
    extra = {n: 1.0 + 0.1 * generator.standard_normal() for n in measures} | {"brittle": 9.0}
    models = {n: replace(m, extra={"quantised": extra[n]}) for n, m in measures.models.items()}
    verdict = judged(replace(measures, models=models), Rules())
    brittle = verdict.finding("brittle")
    assert brittle.values["quantised"] == 9.0
    assert brittle.comparison.worst.axis == "quantised" and not brittle.clears
    assert "quantised" in json.loads(verdict.to_json())["findings"][0]["values"]


# -- as a document --------------------------------------------------------------------------------


def every_verdict():
    yield judged(cell(20, retrained(), ASCENT))
    yield judged(cell(5, retrained()), replace(RULES, margin=0.5))
    yield judged(cell(0, retrained()))
    yield judged(cell(20, ASCENT))
    yield judged(cell(20, KNOWING))
    yield judged(cell(20, retrained(), shares=()))
    yield judged(with_probes(cell(20, retrained()), 1))
    yield judged(
        cell(20, retrained(), more={"injected": (noisy("injected"), {"role": "injected"})})
    )


def test_every_verdict_prints_one_paragraph_and_plain_json():
    reasons = set()
    for verdict in every_verdict():
        text = verdict.paragraph()
        assert "\n" not in text and text.endswith(".") and "None" not in text and "nan" not in text
        assert text.startswith("Certified: " if verdict.certified else "Uncertified (")
        json.loads(verdict.to_json(), parse_constant=lambda name: pytest.fail(name))
        reasons.add(verdict.reason)
    assert reasons == {None, *REASONS}


@pytest.mark.parametrize(
    ("status", "grade", "candidate", "reason"),
    [
        ("certified", None, None, None),
        ("certified", "indistinguishable", "a", "all_excluded"),
        ("certified", None, "a", None),
        ("uncertified", None, None, None),
        ("uncertified", "equivalent", None, "no_reference"),
    ],
)
def test_a_verdict_cannot_contradict_itself(status, grade, candidate, reason):
    with pytest.raises(ScoreError, match="contradicts itself"):
        Verdict(status, grade, candidate, reason)


def test_statistics_and_verdicts_import_no_torch():
    code = (
        "import importlib, pkgutil, sys; import palimpsest.criteria, palimpsest.verdict_words; "
        "[importlib.import_module('palimpsest.criteria.' + module.name) "
        "for module in pkgutil.iter_modules(palimpsest.criteria.__path__)]; "
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
