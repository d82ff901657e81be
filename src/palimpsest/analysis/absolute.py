"""The absolute bar under audit: can the reference and the injected model pass it themselves?

Screen, retain NLL and residual against fixed limits, component by component and cell by cell, for
the two models whose truth is known; the candidates under the same bar; and how the injected model's
own residual, the floor, grows with the re-acquisition budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from palimpsest.analysis.results import RunResults
from palimpsest.criteria.bars import AbsoluteBar, absolute_bar
from palimpsest.criteria.screen import screen_alone

AUDITED = ("reference", "injected")


@dataclass(frozen=True, slots=True)
class AuditedModel:
    """A model of known truth under the absolute bar in one cell."""

    cell: str
    family: str
    model: str
    p_value: float
    retain_nll: float
    residual: float
    bar: AbsoluteBar


@dataclass(frozen=True, slots=True)
class Summary:
    """Median and range of a measure over cells."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ComponentCounts:
    """How many of ``total`` pass each component of the bar, and all of them."""

    total: int
    screen: int
    retain: int
    residual: int
    all: int


@dataclass(frozen=True, slots=True)
class BudgetPoint:
    """The injected model's self-closure after some steps of re-acquisition, in a family."""

    family: str
    step: int
    residual: Summary
    closes: int
    """Cells with a residual at most the limit."""
    cells: int


def audit_models(results: RunResults) -> tuple[AuditedModel, ...]:
    """Return reference and injected model through every component, in every cell."""
    rows = []
    for cell in results.cells:
        for name in AUDITED:
            if name not in cell.evaluation:
                continue
            model = cell.evaluation[name]
            screened = screen_alone(model, results.rules)
            bar = absolute_bar(model, not screened.excluded, results.rules)
            numbers = (screened.test.p_value, model.need("retain_nll"), model.need("residual"))
            rows.append(AuditedModel(cell.id, cell.family, name, *numbers, bar))
    return tuple(rows)


def components(bars: Sequence[AbsoluteBar]) -> ComponentCounts:
    """Return how many pass each component."""
    names = ("screen", "retain", "residual", "clears")
    return ComponentCounts(len(bars), *(sum(getattr(bar, n) for bar in bars) for n in names))


def candidate_bars(results: RunResults, method: str | None = None) -> tuple[AbsoluteBar, ...]:
    """Return every candidate (of a method) under the absolute bar, with Holm's screen."""
    return tuple(
        absolute_bar(cell.evaluation[name], cell.survives(name), results.rules)
        for cell, name in results.candidates()
        if method is None or cell.methods[name] == method
    )


def budget_curve(results: RunResults) -> tuple[BudgetPoint, ...]:
    """Return the injected model's residual at every logged step, by family.

    Re-acquisition is one run at a constant rate, so its log after k steps is the round trip with a
    budget of k steps.
    """
    points = []
    for family in results.families:
        by_step: dict[int, list[float]] = {}
        for cell in results.of_family(family):
            curve = cell.evaluation.injected.need_curve()
            residual = 0.5 * (curve.residual_retain + curve.residual_general)
            for step, value in zip(curve.step.tolist(), residual.tolist()):
                by_step.setdefault(step, []).append(value)
        for step, values in sorted(by_step.items()):
            if step == 0:
                continue
            closes = sum(value <= results.rules.residual_limit for value in values)
            points.append(BudgetPoint(family, step, summary(values), closes, len(values)))
    return tuple(points)


def floors(results: RunResults, family: str | None = None) -> Summary | None:
    """Return the floor over all cells or a family's; None without cells."""
    cells = results.cells if family is None else results.of_family(family)
    values = [cell.evaluation.floor for cell in cells]
    return summary(values) if values else None


def summary(values: Sequence[float]) -> Summary:
    """Return median and range."""
    return Summary(float(np.median(values)), float(min(values)), float(max(values)))
