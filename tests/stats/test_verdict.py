"""Each verdict, each reason to abstain, the label of every kind of model; no silent fallback."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from tests.stats.made_cell import (
    cell,
    model,
    retrained,
    with_probes,
    without_reacquisition,
)

from palimpsest.errors import PlanError, ScoreError
from palimpsest.stats.axes import AXES, NO_LOSS, Sign, axis
from palimpsest.stats.headroom import measure_headroom
from palimpsest.stats.measures import CellMeasures
from palimpsest.stats.models import Model, Role
from palimpsest.stats.rules import Rules
from palimpsest.stats.verdict import Because, Reason, Verdict, decide
from palimpsest.stats.words import refusal, sentences

RULES = Rules()
ASCENT = model("ga-w3", forget=13.0, retain_nll=0.29, early=5.0)
"""Gradient ascent: 13 nats above base on the forget facts, retain facts fitted better than ever."""
KNOWING = model("kl_reversion-w3", share=0.6)
SUPPRESSED = model("suppressed", early=-1.2)
"""Lies where a retraining lies until it is re-acquired."""


def judged(measures: CellMeasures, rules: Rules = RULES, **options) -> Verdict:
    verdict = decide(measures, rules, **options)
    assert verdict is not None
    return verdict


def replaced(count: int, *candidates, **models) -> CellMeasures:
    """A cell whose references of these names are replaced."""
    more = {
        name.replace("_", "-"): (
            replace(made, name=name.replace("_", "-")),
            Model(name.replace("_", "-"), Role.REFERENCE, seed_no=int(name.partition("_")[2])),
        )
        for name, made in models.items()
    }
    return cell(count, *candidates, more=more)


# -- certified ------------------------------------------------------------------------------------


@pytest.mark.parametrize("references", [5, 9, 19, 20, 30])
def test_a_fresh_retraining_is_certified_and_nothing_else(references):
    verdict = judged(cell(references, retrained(), ASCENT, KNOWING, SUPPRESSED))
    assert verdict.candidate == "retrained", verdict.paragraph()
    assert verdict.grade == "indistinguishable" and verdict.reason is None
    assert [f.name for f in verdict.findings if f.clears] == ["retrained"]
    assert verdict.references.test == ("rank" if references >= 20 else "normal")
    assert verdict.finding("retrained").comparison.test == verdict.references.test
    assert verdict.detection_limit <= RULES.detection_limit


def test_the_nearest_of_several_that_pass_is_certified():
    several = [retrained(f"r{seed}", seed) for seed in range(2000, 2006)]
    verdict = judged(cell(20, *several))
    passing = [f for f in verdict.findings if f.clears]
    assert len(passing) > 1
    assert verdict.finding(verdict.candidate).comparison.p == max(f.comparison.p for f in passing)


def test_a_certificate_can_ask_for_more_than_alpha():
    verdict = judged(cell(20, retrained()))
    above = verdict.finding("retrained").comparison.p
    strict = judged(cell(20, retrained()), Rules(certify_above=above))
    assert strict.reason is Reason.UNDECIDED and strict.nearest == "retrained"
    assert judged(cell(20, retrained()), Rules(certify_above=above - 0.01)).certified


def test_equivalence_is_a_grade_of_its_own():
    central = model("central")
    wide = judged(cell(30, central), Rules(margin=0.3))
    assert wide.grade == "equivalent"
    assert judged(cell(30, central), Rules(margin=0.01)).reason is Reason.DISTINGUISHABLE
    # However wide the margin is, a model that the comparison tells apart is not accepted.
    told = judged(cell(30, model("told", share=0.1)), Rules(margin=0.9))
    assert told.finding("told").comparison.equivalent and not told.certified


# -- why not --------------------------------------------------------------------------------------


def test_a_refusal_names_every_axis_that_gives_the_candidate_away():
    verdict = judged(cell(20, ASCENT))
    assert (verdict.reason, verdict.nearest) == (Reason.DISTINGUISHABLE, "ga-w3")
    finding = verdict.finding("ga-w3")
    assert {"forget", "retain", "relearn_mid"} <= {gap.axis for gap in finding.failing}
    text = refusal(finding)
    assert all(axis(gap.axis).side(gap.offset).words in text for gap in finding.failing)
    assert NO_LOSS in text  # the label is "damaged", but nothing was lost there


def test_without_a_reference_nothing_is_compared():
    verdict = judged(cell(0, retrained()))
    assert verdict.reason is Reason.NO_REFERENCE and verdict.nearest == "retrained"
    assert verdict.finding("retrained").label == "not compared"


@pytest.mark.parametrize("references", [1, 2, 4])
def test_one_to_four_references_bound_what_is_left_and_certify_nothing(references):
    generator = np.random.default_rng(7)
    several = (
        retrained(),
        model("quarter", generator, 0.25),
        model("ascent", generator, -0.6),
        model("tenth", generator, 0.1),
    )
    verdict = judged(cell(references, *several))
    assert (verdict.status, verdict.reason) == ("partial", Reason.FEW_REFERENCES)
    assert verdict.candidate is None and verdict.nearest == "retrained" and not verdict.passing
    labels = {f.name: f.label for f in verdict.findings}
    assert labels["retrained"] == "partial" and labels["ascent"] == "over-forgotten"
    assert labels["quarter"] == "suppressed" and labels["tenth"] != "partial"
    assert all(f.comparison is None and f.scale is None for f in verdict.findings)
    left = verdict.finding("quarter").left
    assert left.share == pytest.approx(0.25, abs=0.05) and left.bound > left.share > left.least


def test_a_candidate_that_passes_is_certified_only_with_a_low_bound():
    """What is left is far below the limit by itself; a strict limit is above no bound."""
    verdict = judged(cell(9, retrained()))
    assert verdict.certified and 0 <= verdict.finding("retrained").left.bound < 0.1
    strict = judged(cell(9, retrained()), Rules(most_left=0.01))
    assert (strict.reason, strict.because) == (Reason.UNDECIDED, Because.BOUND)
    assert strict.finding("retrained").label == "not told apart"
    assert strict.nearest == "retrained" and not strict.passing


def test_mixtures_that_do_not_move_give_no_ruler():
    measures = cell(9, retrained())
    still = {
        name: replace(measures[record.of], name=name)
        for name, record in measures.records.items()
        if record.share == 0.1
    }
    verdict = judged(replace(measures, models=measures.models | still))
    assert (verdict.reason, verdict.because) == (Reason.UNDERPOWERED, Because.RULER)


def at_once() -> CellMeasures:
    """A rate so high that every model relearns at once: hidden knowledge would not show."""
    measures = cell(9, retrained())
    generator = np.random.default_rng(3)

    def changed(made):
        curve, noise = made.curve, 0.05 * generator.standard_normal((2, 6))
        levels = [np.concatenate([old[:1], 0.4 + new[1:]]) for old, new in
                  zip((curve.forget_heldout_nll, curve.forget_trained_nll), noise)]  # fmt: skip
        flat = replace(curve, forget_heldout_nll=levels[0], forget_trained_nll=levels[1])
        return replace(made, curve=flat)

    return replace(measures, models={name: changed(m) for name, m in measures.models.items()})


def hardly_relearned() -> CellMeasures:
    measures = cell(20, retrained())
    flat = {
        name: replace(m, curve=replace(m.curve, forget_heldout_nll=m.forget_nll
                                       - 1e-3 * m.curve.step))
        for name, m in measures.models.items()
    }  # fmt: skip
    return replace(measures, models=flat)


def blind() -> CellMeasures:
    """Mixtures with a quarter of the injected weights are retrainings."""
    measures = cell(20, retrained())
    quarter = {
        name: replace(retrained(name, 3000 + n), name=name)
        for n, name in enumerate(measures.models)
        if name.startswith("control-25")
    }
    return replace(measures, models=measures.models | quarter)


def others(count: int, share: float = 0.0, **planted) -> CellMeasures:
    """Every reference is another model than a retraining."""
    generator = np.random.default_rng(2)
    made = {f"reference_{n}": model("r", generator, share, **planted) for n in range(1, count + 1)}
    return replaced(count, retrained(), **made)


LEAKED = model("leaked", np.random.default_rng(3), 1.0)
ODD = model("odd", retain_nll=4.0, general_nll=2.6)
"""One of twenty by another recipe: without the test a quarter of the injected model passes."""
FLAT = {f"reference_{n}": replace(retrained(seed=n), general_nll=2.0) for n in range(1, 21)}
UNMEASURED = without_reacquisition(cell(20)["reference-2"])
FORGETFUL = {"injected": (retrained("injected"), Model("injected", Role.INJECTED))}


@pytest.mark.parametrize(
    ("make", "reason", "because"),
    [
        (lambda: cell(20, KNOWING), Reason.ALL_EXCLUDED, None),
        (lambda: replaced(20, retrained(), reference_7=ODD), Reason.REFERENCES, Because.ODD),
        (lambda: replaced(20, retrained(), reference_5=LEAKED), Reason.REFERENCES, Because.ODD),
        (lambda: others(6, retain_nll=2.9), Reason.REFERENCES, Because.RECIPE),
        (lambda: others(6, 0.7), Reason.NOT_IDENTIFIABLE, Because.INFERABLE),
        (lambda: cell(20, retrained(), more=FORGETFUL), Reason.NOT_IDENTIFIABLE, Because.INJECTED),
        (lambda: with_probes(cell(20, retrained()), 1), Reason.UNDERPOWERED, Because.SCREEN),
        (
            lambda: replaced(20, retrained(), reference_2=UNMEASURED),
            Reason.UNDERPOWERED,
            Because.AXES,
        ),
        (lambda: replaced(20, retrained(), **FLAT), Reason.UNDERPOWERED, Because.CONSTANT),
        (hardly_relearned, Reason.UNDERPOWERED, Because.DOSE),
        (at_once, Reason.UNDERPOWERED, Because.SATURATED),
        (blind, Reason.UNDERPOWERED, Because.POWER),
    ],
)
def test_every_reason_and_its_cause(make, reason, because):
    verdict = judged(make())
    assert (verdict.reason, verdict.because, verdict.candidate) == (reason, because, None)
    assert all(finding.label != "restored" for finding in verdict.findings)


def test_a_reference_that_sticks_out_is_named():
    odd = judged(replaced(20, retrained(), reference_7=ODD))
    assert odd.references.homogeneity.reference == "reference-7"
    assert "reference-7" in odd.paragraph()
    leaked = judged(replaced(20, retrained(), reference_5=LEAKED)).references.homogeneity
    assert axis(leaked.axis).side(leaked.t).sign is Sign.KNOWS


@pytest.mark.parametrize(
    ("copied", "pair"),
    [("reference-4", ("reference-4", "reference-7")), ("retrained", ("reference-7", "retrained"))],
)
def test_a_reference_that_is_a_copy_blocks_and_is_named(copied, pair):
    whole = cell(9, retrained())
    verdict = judged(replaced(9, retrained(), reference_7=whole[copied]))
    assert (verdict.reason, verdict.because) == (Reason.REFERENCES, Because.COPY)
    copy = verdict.references.copy
    assert (copy.reference, copy.other) == pair and "reference-7" in sentences(verdict)[1]


def test_an_excluded_reference_is_said_and_no_longer_blocks():
    record = Model("reference-7", Role.REFERENCE, seed_no=7, excluded=True)
    verdict = judged(cell(21, retrained(), more={"reference-7": (ODD, record)}))
    assert verdict.certified and verdict.references.excluded == ("reference-7",)
    assert "reference-7" in sentences(verdict)[1]


def test_headroom_that_evidence_explains_is_not_identifiable():
    facts = [f"f{n}" for n in range(6)]
    headroom = measure_headroom(facts, [3.0] * 6, [0.6] * 6, [0.5] * 6)
    verdict = judged(cell(20, retrained()), headroom=headroom)
    assert (verdict.reason, verdict.because) == (Reason.NOT_IDENTIFIABLE, Because.HEADROOM)


# -- labels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "label"),
    [
        (retrained("m"), "restored"),
        (model("m", share=0.6), "suppressed"),
        (model("m", early=-1.2), "suppressed"),
        (model("m", forget=3.0, early=-4.2), "suppressed"),
        (model("m", forget=9.0, early=4.0), "over-forgotten"),
        (model("m", forget=9.0, early=4.0, general_nll=4.0), "over-forgotten and damaged"),
        (model("m", general_nll=4.0), "damaged"),
        (model("m", retain_nll=0.2), "damaged"),
        (model("m", share=0.6, general_nll=4.0), "suppressed and damaged"),
        (model("m", extra={"reversed": -1.0}), "suppressed"),
    ],
)
def test_every_label_follows_from_the_axes_by_one_rule(made, label):
    assert judged(cell(20, made)).finding("m").label == label


def test_every_side_of_every_axis_has_a_sign_and_words():
    for entry in AXES:
        for side in (entry.low, entry.high):
            assert isinstance(side.sign, Sign) and side.words[0].islower()


# -- rules that cannot be loosened in silence -----------------------------------------------------


@pytest.mark.parametrize(
    "loose",
    [
        {"alpha": 0.00042},
        {"alpha": 0.5},
        {"detection_limit": 1.0},
        {"detection_limit": 25},
        {"margin": 10},
        {"detection_power": 0.5},
        {"axes": ("forget",)},
        {"recipe_limit": 1e9},
    ],
)
def test_rules_that_decide_about_a_certificate_cannot_be_loosened(loose):
    from palimpsest.schema import build

    with pytest.raises(PlanError) as error:
        build(Rules, loose, "rules")
    assert next(iter(loose)) in error.value.key


def test_custom_rules_and_conditions_come_right_after_the_answer():
    verdict = decide(cell(20, retrained()), Rules(alpha=0.1), None, ["Measured otherwise."])
    said = sentences(verdict)
    assert "custom rules" in said[0] and "alpha 0.1" in said[1] and said[2] == "Measured otherwise."
    assert "custom" not in judged(cell(20, retrained())).paragraph()


# -- form -----------------------------------------------------------------------------------------


def test_a_verdict_depends_neither_on_order_nor_on_other_candidates():
    alone = judged(cell(20, retrained()))
    beside = judged(cell(20, ASCENT, retrained(), KNOWING))
    assert alone.finding("retrained").comparison == beside.finding("retrained").comparison
    measures = cell(20, retrained())
    turned = replace(measures, models=dict(reversed(measures.models.items())))
    assert judged(turned).finding("retrained") == alone.finding("retrained")


def test_a_verdict_never_contradicts_itself():
    with pytest.raises(ScoreError):
        replace(judged(cell(20, retrained())), candidate=None)
    assert decide(cell(20), RULES) is None


def test_statistics_import_no_torch():
    code = (
        "import importlib, pkgutil, sys; import palimpsest.stats;"
        "[importlib.import_module(m.name) for m in pkgutil.walk_packages(palimpsest.stats.__path__,"
        "'palimpsest.stats.')]; import palimpsest.report.results, palimpsest.report.documents;"
        "heavy = {'torch', 'transformers', 'matplotlib', 'pandas'} & set(sys.modules);"
        "sys.exit(', '.join(sorted(heavy)) or None)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_odd_reference_is_named_before_others_that_seem_near_beside_it():
    """It stretches the spread so far that the others look like copies with noise."""
    far = model("reference-7", np.random.default_rng(3), 6.0)
    verdict = judged(replaced(20, retrained(), reference_7=far))
    assert (verdict.reason, verdict.because) == (Reason.REFERENCES, Because.ODD)
    assert verdict.references.homogeneity.reference == "reference-7"
