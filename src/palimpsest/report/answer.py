"""The top of the page: the verdict as a sentence, what supports it, and its limits."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.criteria.axes import chosen
from palimpsest.criteria.controls import Control
from palimpsest.criteria.rules import Rules
from palimpsest.report.formats import counted, listed
from palimpsest.verdict import Verdict
from palimpsest.verdict_words import sentences

REASONS = {
    "underpowered": "this audit could not have noticed what is left",
    "not_identifiable": "these facts do not show what forgetting would look like",
    "all_excluded": "every candidate still knows forget facts",
    "no_reference": "there are too few retrained models to compare with",
    "distinguishable": "every candidate can be told from a retrained model",
}
"""Why nothing is certified, to follow "Not certified:"."""
LIMITS = (
    "Surviving the screen means that no retained knowledge was detected; it does not show "
    "restoration.",
    "The test is empirical and covers methods as produced; it is no guarantee against a model "
    "built to defeat it, and no privacy guarantee.",
    "Results hold for the models, facts and doses tested here.",
)
TERMS = {
    "base": "The model before it learned anything that it should forget.",
    "injected": "The model trained on forget and retain data; unlearning starts from it.",
    "retraining, reference": "A model trained from base like the injected one, without the forget "
    "facts. What unlearning should arrive at.",
    "candidate": "An unlearned model under test.",
    "forget, retain, probe": "Facts to be forgotten; facts to be kept; facts no model was taught.",
    "NLL": "Mean negative log-likelihood of an answer's tokens, in nats. Lower is better known.",
    "held-out": "Asked in phrasings that no model was trained on.",
    "standard deviation (sd)": "Of the retrainings, axis by axis: the unit of every distance.",
    "p": "Share of models, candidate and retrainings together, that lie at least as far out as the "
    "candidate. With fewer than 19 retrainings it comes from Student's t and assumes normally "
    "distributed retrainings.",
    "gap, restored": "Distance from the mean retraining as a share of what was at stake; restored "
    "is 1 minus the largest gap.",
    "screen": "A rank test: are forget facts known better than probes? Excluded candidates still "
    "know them. p-values are Holm-corrected over the candidates.",
    "control": "A model whose truth is known, sent through the same comparison. Interpolations "
    "keep a share of the injected weights.",
    "detection limit": "Smallest share of injected weights that this audit rejects, together with "
    "all larger ones.",
    "re-acquisition, dose": "Training a model on the forget facts again; the dose is how far the "
    "retrainings come towards the injected model.",
    "cell": "One base model with one seed: its facts, trained models, candidates and verdict.",
}
"""Terms of the page that are not axes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the reader sees first."""

    certified: bool | None
    """None where many cells were judged."""
    sentence: str
    details: tuple[str, ...]
    kind: str
    """What was judged."""
    counts: tuple[tuple[str, str], ...]
    """Number and what it counts."""
    limits: tuple[str, ...] = LIMITS
    remarks: tuple[str, ...] = ()


def glossary(rules: Rules) -> dict[str, str]:
    """Return the meaning of every axis and of every other term of the page."""
    return {axis.title: axis.meaning for axis in chosen(rules)} | TERMS


def answer(results: RunResults, summary: Mapping[str, Any] | None = None) -> Answer:
    """Return the verdict of the one cell, or the counts over cells.

    ``summary`` is an audit's own; where it ended before any candidate, it is all there is.
    """
    if len(results.planned) == 1 and results.cells:
        return _cell(results.cells[0])
    if summary and summary.get("stopped_early"):
        return Answer(
            False,
            f"Not certified: {REASONS[summary['reason']]}.",
            (str(summary["paragraph"]),),
            "audit, ended before any candidate was scored",
            (),
            remarks=tuple(map(str, summary.get("remarks", ()))),
        )
    return _cells(results)


def _cell(cell: CellResult) -> Answer:
    verdict = cell.verdict
    if verdict is None:
        text = f"No candidate of {cell.id} could be made, so there is nothing to judge."
        return Answer(False, "Not certified: there is no candidate.", (text,), cell.id, ())
    head = f"Not certified: {REASONS[str(verdict.reason)]}."
    if verdict.certified:
        head = f"Certified: {verdict.candidate}."
    return Answer(
        verdict.certified,
        head,
        tuple(sentences(verdict))[1:],
        cell.id,
        tuple(_counts(verdict)),
        remarks=verdict.remarks,
    )


def _counts(verdict: Verdict) -> list[tuple[str, str]]:
    name = verdict.candidate or verdict.nearest
    counts: list[tuple[str, str]] = []
    if name is not None:
        compared = verdict.finding(name).comparison
        who = "" if verdict.certified else ", nearest candidate"
        if compared is not None and compared.restored is not None:
            counts.append((f"{compared.restored:.0%}", f"restored{who}"))
        if compared is not None:
            counts.append((f"{compared.p:.2g}", f"p{who}"))
    counts.append((str(verdict.numbers["references"]), "retrainings to compare with"))
    if verdict.controls:
        limit = verdict.detection_limit
        counts.append(("none" if limit is None else f"{limit:.0%}", "detection limit"))
        counts += acceptance_counts(verdict.controls)
    return counts


def acceptance_counts(controls: tuple[Control, ...]) -> list[tuple[str, str]]:
    """Return how many known retrainings were accepted and how many suppressors rejected."""
    counts = []
    for kinds, expected, words in (
        (("retraining", "reference"), "accept", "retrainings accepted"),
        (("suppressor",), "reject", "known suppressors rejected"),
    ):
        known = [c for c in controls if c.kind in kinds and c.comparison is not None]
        if known:
            right = sum(bool(control.as_expected) for control in known)
            counts.append((f"{right} of {len(known)}", words))
    return counts


def _cells(results: RunResults) -> Answer:
    verdicts = [cell.verdict for cell in results.cells if cell.verdict is not None]
    certified = sum(verdict.certified for verdict in verdicts)
    sentence = f"None of {counted(len(results.planned), 'planned cell')} is finished."
    if results.cells:
        verb = "certifies" if certified == 1 else "certify"
        sentence = f"{certified} of {len(verdicts)} cells {verb} a candidate."
    details = []
    reasons = Counter(verdict.reason for verdict in verdicts if verdict.reason)
    if reasons:
        why = [f"{REASONS[reason]} ({count})" for reason, count in reasons.most_common()]
        details.append(f"In the other cells: {listed(why)}.")
    if results.missing:
        details.append(
            f"{len(results.missing)} of {counted(len(results.planned), 'planned cell')} are missing."
        )
    controls = tuple(control for verdict in verdicts for control in verdict.controls)
    counts = [
        (f"{len(results.cells)} of {len(results.planned)}", "cells finished"),
        (str(sum(len(cell.candidates) for cell in results.cells)), "candidates"),
        *acceptance_counts(controls),
    ]
    limits = sorted(v.detection_limit for v in verdicts if v.detection_limit is not None)
    if limits:
        middle = limits[len(limits) // 2]
        counts.append((f"{middle:.0%}", f"detection limit, median ({limits[-1]:.0%} at most)"))
    return Answer(
        None, sentence, tuple(details), f"{len(results.planned)} cells of one plan", tuple(counts)
    )
