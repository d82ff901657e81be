"""The top of the page: the verdict as a sentence, its reasons, its limits and its counts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from palimpsest.study.results import CellResult, RunResults

REASONS = {
    "underpowered": "too few probes to exclude anybody",
    "not_identifiable": "the never-learned level cannot be told from these facts",
    "all_excluded": "every candidate still knows the forget set",
    "no_candidate_clears_bar": "no candidate clears the bar",
}
LIMITS = (
    "The screen is selective: a candidate that survives is not demonstrably retaining, which is "
    "less than restored.",
    "The test is for methods as they come, not for a model built to defeat it; it gives no privacy "
    "guarantee.",
    "Results hold for the models, facts and doses tested here, and carry no evidence about others.",
)

GLOSSARY = (
    ("base", "the model before it learned what it should forget"),
    ("injected", "the model that learned the forget set beside the rest, and should forget it"),
    ("reference", "a model retrained from base in the same way, without the forget set"),
    ("candidate", "an unlearned model under test"),
    ("forget, retain, probe", "facts that should be gone; that should stay; that nobody learned"),
    ("NLL", "mean negative log-likelihood of an answer's tokens, in nats; lower is better known"),
    ("held-out", "asked in phrasings that no model was trained on"),
    ("delta", "a fact's held-out NLL minus the base model's"),
    ("screen", "a rank test: do the forget facts lie below the probes? Those it excludes still "
     "know them; p-values are adjusted for the number of candidates (Holm)"),
    ("gap", "median forget delta minus median probe delta"),
    ("re-acquisition", "training a model on the forget set again, a given number of steps"),
    ("residual", "how far, in KL, a re-acquired candidate stays from the injected model on retain "
     "facts and general text; the floor is the injected model's own"),
    ("oracle-KL", "KL from the candidate to the reference on phrasings that were trained"),
    ("δ_f, ε_f", "how much two retrainings of the reference differ: on held-out forget facts, and "
     "in retain NLL or residual"),
    ("equivalence", "median forget delta within δ_f of the reference's"),
    ("degeneracy gate", "fails who retains far better than the injected model: it was trained on "
     "the retain set beyond what was asked"),
    ("relearn veto", "fails who relearns the forget set faster than references do: it only hid it"),
    ("worst axis", "the largest of forget distance, retain and round-trip damage, in units of δ_f; "
     "1 is the bar"),
    ("sealed panel", "models with known labels, asked once on phrasings sealed before the run"),
)  # fmt: skip
"""What the page's words mean."""


@dataclass(frozen=True, slots=True)
class Masthead:
    """What the reader sees first."""

    certified: bool | None
    """None where many cells were judged."""
    sentence: str
    reasons: tuple[str, ...]
    """The verdict's paragraph, a sentence each."""
    kind: str
    """What was judged, and against what."""
    counts: tuple[tuple[str, str], ...]
    """Number and what it counts."""
    limits: tuple[str, ...] = LIMITS


def masthead(results: RunResults, summary: Mapping[str, Any] | None = None) -> Masthead:
    """The verdict of the one cell, or the count over cells.

    ``summary`` is an audit's own; where it was stopped before any candidate, it is all there is.
    """
    told = summary or {}
    limits = (*LIMITS, *map(str, told.get("remarks", ())))
    if len(results.planned) == 1 and results.cells:
        return replace(_cell(results.cells[0]), limits=limits)
    if told.get("stopped_early"):
        sentence = f"Uncertified: {REASONS[told['reason']]}."
        kind = "audit, stopped before any candidate"
        return Masthead(False, sentence, sentences(told["paragraph"]), kind, (), limits)
    return _matrix(results)


def _cell(cell: CellResult) -> Masthead:
    verdict = cell.verdict
    if verdict is None:
        text = f"No candidate of {cell.id} could be made, so there is nothing to judge."
        return Masthead(False, "Uncertified: there is no candidate.", (text,), cell.id, ())
    if verdict.candidate is not None:
        sentence = f"Certified: {verdict.candidate}."
    else:
        sentence = f"Uncertified: {REASONS[str(verdict.reason)]}."
    clearing = sum(one.clears for one in verdict.findings)
    counts = [
        (str(len(verdict.findings)), "candidates"),
        (str(len(cell.survivors)), "survive the screen"),
        (str(clearing), "clear the bar"),
    ]
    if cell.tolerances is not None:
        counts.append((f"{cell.tolerances.delta_f:.2f}", "nats of retraining noise, δ_f"))
    kind = (
        "against a retrained reference"
        if verdict.mode == "reference-relative"
        else "against fixed limits, without a replicated reference"
    )
    reasons = sentences(verdict.paragraph())
    return Masthead(verdict.certified, sentence, reasons, f"{cell.id}, {kind}", tuple(counts))


def sentences(paragraph: str) -> tuple[str, ...]:
    """A verdict's paragraph, sentence by sentence, without the first, which is the title."""
    return tuple(re.split(r"(?<=[.)]\.) (?=[A-Z\d])|(?<=[a-z\d]\.) (?=[A-Z\d])", paragraph)[1:])


def _matrix(results: RunResults) -> Masthead:
    judged = [cell for cell in results.cells if cell.verdict is not None]
    certified = [cell for cell in judged if cell.verdict is not None and cell.verdict.certified]
    if not results.cells:
        sentence = f"None of {len(results.planned)} planned cells is finished."
    else:
        sentence = f"{len(certified)} of {len(judged)} cells certify a candidate."
    reasons: dict[str, int] = {}
    for cell in judged:
        if cell.verdict is not None and cell.verdict.reason is not None:
            told = REASONS[cell.verdict.reason]
            reasons[told] = reasons.get(told, 0) + 1
    total = sum(len(cell.candidates) for cell in results.cells)
    kept = sum(len(cell.survivors) for cell in results.cells)
    clearing = sum(
        one.clears for cell in judged if cell.verdict is not None for one in cell.verdict.findings
    )
    parts = []
    if results.cells:
        parts.append(
            f"{total} candidates were screened in {len(results.cells)} cells of "
            f"{len(results.families)} {'family' if len(results.families) == 1 else 'families'}; "
            f"{total - kept} still knew the forget set beyond chance, {kept} survived and "
            f"{clearing} clear every axis of the bar."
        )
    if reasons:
        why = "; ".join(f"{told} ({count})" for told, count in reasons.items())
        parts.append(f"Cells that certify nobody: {why}.")
    if results.missing:
        parts.append(f"{len(results.missing)} of {len(results.planned)} planned cells are missing.")
    counts = (
        (f"{len(results.cells)}/{len(results.planned)}", "cells finished"),
        (str(total), "candidates"),
        (str(kept), "survive the screen"),
        (str(clearing), "clear the bar"),
    )
    kind = f"{len(results.planned)} cells of one plan"
    return Masthead(None, sentence, tuple(parts), kind, counts)
