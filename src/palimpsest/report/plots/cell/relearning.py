"""Held-out forget NLL of every candidate while the forget set is trained again."""

from collections.abc import Sequence

import numpy as np

from palimpsest.criteria.measures import RelearningCurve
from palimpsest.report.formats import Table, Value, counted, number
from palimpsest.report.plots.cell.shared import Legend, groups, method_legend, style_of
from palimpsest.report.plots.spec import (
    Axis,
    Band,
    Figure,
    Line,
    Panel,
    Point,
    axis_over,
    far_spread,
)
from palimpsest.study.results import CellResult
from palimpsest.verdict import Finding

Curves = dict[str, RelearningCurve]


def relearning_figure(cell: CellResult) -> Figure | None:
    """Held-out forget NLL while the forget set is re-acquired, against the reference's band."""
    shown = _curves(cell, cell.candidates)
    if not shown:
        return None
    injected = _curves(cell, ("injected",))
    references = _curves(cell, cell.evaluation.references)
    held = tuple(references.values())
    every = [*held, *injected.values(), *shown.values()]
    heights = np.concatenate([curve.forget_heldout_nll for curve in every])
    x = axis_over("steps of re-acquisition", every[0].step.tolist(), margin=0.02)
    y = axis_over("held-out forget NLL, nats", heights.tolist(), scale=far_spread(heights, 12.0))
    rows: list[tuple[Value, ...]] = [
        (name, int(step), float(nll))
        for name, curve in (injected | references | shown).items()
        for step, nll in zip(curve.step, curve.forget_heldout_nll)
    ]
    columns = ("model", "step", "held-out forget NLL")
    panels = groups(cell)
    return Figure(
        "relearning",
        "Relearning curves",
        f"{_reading(cell.verdict.findings if cell.verdict else (), len(shown), held)}.",
        f"{'One panel' if len(panels) == 1 else 'One panel a method'}: held-out forget NLL while "
        "the forget set is trained again. The grey "
        "band spans the reference draws, the plain line is their mean, the dashed line is the "
        "injected model. A model that only hides the facts falls faster than the references.",
        tuple(
            _panel(cell, title, _curves(cell, names), injected, held, x, y)
            for title, names in panels
        ),
        Table("relearning", "Relearning curves", "", columns, tuple(rows)),
        legend=(
            *(_names(cell, shown) if len(panels) == 1 else ()),  # else each panel is of one
            *((("reference", "plain line: references, in their range", False),) if held else ()),
            ("injected", "dashed line: injected", False),
        ),
    )


def _names(cell: CellResult, shown: Curves) -> Legend:
    """A marker for every method that has a curve."""
    drawn = {cell.methods[name] for name in shown}
    return tuple(entry for entry in method_legend(cell) if entry[0] in drawn)


def _curves(cell: CellResult, names: Sequence[str]) -> Curves:
    """The curves of those that have one."""
    found = {name: cell.evaluation[name].curve for name in names}
    return {name: curve for name, curve in found.items() if curve is not None}


def _reading(findings: Sequence[Finding], shown: int, held: Sequence[RelearningCurve]) -> str:
    relearned = f"{counted(shown, 'candidate')} relearned the forget set"
    if not held:
        return f"{relearned}; without a reference there is no band to compare with"
    falls = [one.fall for one in findings if one.fall is not None]
    if not falls:
        return relearned
    vetoed = sum("relearn veto" in one.failures for one in findings)
    mean_fall = float(np.mean([curve.first_fall for curve in held]))
    return (
        f"{vetoed} of {counted(len(falls), 'candidate')} would be vetoed for relearning "
        f"faster than a further reference draw; over the first {int(held[0].step[1])} steps "
        f"the references fall by {number(mean_fall)} nats on average and the candidates by "
        f"{_from_to(falls)}"
    )


def _from_to(values: Sequence[float]) -> str:
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def _panel(
    cell: CellResult,
    title: str,
    shown: Curves,
    injected: Curves,
    held: Sequence[RelearningCurve],
    x: Axis,
    y: Axis,
) -> Panel:
    lines = [_line(name, curve, name, dashed=True) for name, curve in injected.items()]
    lines += [_line(name, curve, cell.methods[name]) for name, curve in shown.items()]
    points = [
        Point(
            step,
            nll,
            cell.methods[name],
            f"{name}: step {step}, held-out forget NLL {number(nll)}",
            small=True,
        )
        for name, curve in shown.items()
        for step, nll in zip(curve.step.tolist(), curve.forget_heldout_nll.tolist())
    ]
    bands: tuple[Band, ...] = ()
    if held:
        steps = tuple(held[0].step.tolist())
        heights = np.stack([curve.forget_heldout_nll for curve in held])
        mean = tuple(heights.mean(axis=0).tolist())
        lines.append(Line(steps, mean, "reference", "mean of reference draws"))
        low, high = heights.min(axis=0), heights.max(axis=0)
        label = (
            "the reference"
            if len(held) == 1
            else f"{len(held)} reference draws, smallest to largest"
        )
        bands = (Band(steps, tuple(low.tolist()), tuple(high.tolist()), label),)
    return Panel(
        title,
        x,
        y,
        lines=tuple(lines),
        bands=bands,
        points=tuple(points),
        style=style_of(cell, title),
    )


def _line(name: str, curve: RelearningCurve, style: str, dashed: bool = False) -> Line:
    steps, nlls = curve.step.tolist(), curve.forget_heldout_nll.tolist()
    return Line(tuple(steps), tuple(nlls), style, name, dashed)
