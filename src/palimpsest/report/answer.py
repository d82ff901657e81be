"""The top of the page: the verdict as a sentence, what supports it, and its limits."""

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.analysis.table import counted, listed, percent
from palimpsest.criteria.axes import chosen
from palimpsest.criteria.controls import Control
from palimpsest.criteria.rules import Rules
from palimpsest.verdict import Verdict
from palimpsest.verdict_words import sentences

WORDS: dict[str, Any] = tomllib.loads(
    (Path(__file__).parent / "template" / "words.toml").read_text(encoding="utf-8")
)
"""Figures, glossary, limits and reasons in words."""
REASONS: dict[str, str] = WORDS["reasons"]


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


def glossary(rules: Rules) -> dict[str, str]:
    """Return the meaning of every axis and of every other term of the page."""
    terms: dict[str, str] = WORDS["glossary"]
    return {axis.title: axis.meaning for axis in chosen(rules)} | terms


def answer(results: RunResults, summary: Mapping[str, Any] | None = None) -> Answer:
    """Return the verdict of the one cell, or the counts over cells.

    ``summary`` is an audit's own; where it ended before any candidate, it is all there is.
    """
    if len(results.planned) == 1 and results.cells:
        return _cell(results.cells[0])
    if summary and summary.get("stopped_early"):
        return Answer(
            False,
            f"Uncertified: {REASONS[summary['reason']]}.",
            (str(summary["paragraph"]),),
            "audit, ended before any candidate was scored",
            (),
        )
    return _cells(results)


def _cell(cell: CellResult) -> Answer:
    verdict = cell.verdict
    if verdict is None:
        text = f"No candidate of {cell.id} could be made, so there is nothing to judge."
        return Answer(False, "Uncertified: there is no candidate.", (text,), cell.id, ())
    head = f"Certified: {verdict.candidate}."
    _, *details = sentences(verdict)
    if verdict.reason is not None:
        head = f"Uncertified: {REASONS[verdict.reason]}."
        if verdict.because != "screen":
            screened, *others, closing = details
            details = [*others, screened, closing]  # what decided comes first
        if verdict.reason == "distinguishable":
            details[:2] = [" ".join(details[:2])]  # with the nearest candidate and its axis
    return Answer(
        verdict.certified,
        head,
        tuple(details),
        cell.id,
        tuple(_counts(verdict)),
    )


def _counts(verdict: Verdict) -> list[tuple[str, str]]:
    name = verdict.candidate or verdict.nearest
    counts: list[tuple[str, str]] = []
    if name is not None:
        compared = verdict.finding(name).comparison
        who = "" if verdict.certified else ", nearest candidate"
        if compared is not None and compared.restored is not None:
            counts.append((f"{percent(compared.restored)}", f"restored{who}"))
        if compared is not None:
            counts.append((f"{compared.p:.2g}", f"p{who}"))
    counts.append((str(verdict.numbers["references"]), "retrainings to compare with"))
    if verdict.controls:
        limit = verdict.detection_limit
        counts.append(("none" if limit is None else f"{percent(limit)}", "detection limit"))
        counts += acceptance_counts(verdict.controls)
    return counts


def acceptance_counts(controls: tuple[Control, ...]) -> list[tuple[str, str]]:
    """Return how many known retrainings were accepted and how many suppressors rejected."""
    counts = []
    for kinds, words in (
        (("retraining", "reference"), "retrainings accepted"),
        (("suppressor",), "known-label models that keep the facts, rejected"),
    ):
        known = [c for c in controls if c.kind in kinds and c.comparison is not None]
        if known:
            right = sum(bool(control.as_expected) for control in known)
            counts.append((f"{right} of {len(known)}", words))
    return counts


def _cells(results: RunResults) -> Answer:
    verdicts, certified = [verdict for _, verdict in results.judged], results.certified
    sentence = f"None of {counted(len(results.planned), 'planned cell')} is finished."
    if results.cells:
        verb = "certifies" if certified == 1 else "certify"
        sentence = f"{certified} of {len(verdicts)} cells {verb} a candidate."
    details = []
    reasons = Counter(verdict.reason for verdict in verdicts if verdict.reason)
    if reasons:
        why = [f"{REASONS[reason]} ({count})" for reason, count in reasons.most_common()]
        details.append(f"In the other cells: {listed(why)}.")
    controls = tuple(control for verdict in verdicts for control in verdict.controls)
    counts = [
        (f"{len(results.cells)} of {len(results.planned)}", "cells finished"),
        (str(sum(len(cell.candidates) for cell in results.cells)), "candidates"),
        *acceptance_counts(controls),
    ]
    limits = sorted(v.detection_limit for v in verdicts if v.detection_limit is not None)
    if limits:
        middle = limits[len(limits) // 2]
        counts.append(
            (f"{percent(middle)}", f"detection limit, median ({percent(limits[-1])} at most)")
        )
    return Answer(
        None, sentence, tuple(details), f"{len(results.planned)} cells of one plan", tuple(counts)
    )
