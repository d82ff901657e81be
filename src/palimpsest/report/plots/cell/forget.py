"""Forget and probe facts of every candidate: what the screen looks at."""

from collections.abc import Sequence

import numpy as np

from palimpsest.criteria.measures import ModelMeasures
from palimpsest.criteria.rules import Rules
from palimpsest.criteria.screen import screen_alone
from palimpsest.report.formats import Table, Value, counted, number
from palimpsest.report.plots.cell.shared import groups, method_legend, style_of
from palimpsest.report.plots.spec import (
    Axis,
    Figure,
    Panel,
    Point,
    Row,
    Rule,
    axis_over,
    far_spread,
)
from palimpsest.study.results import CellResult
from palimpsest.verdict import Finding


def forget_figure(cell: CellResult, rules: Rules) -> Figure | None:
    """Forget and probe deltas of every candidate, with the screen's p-value."""
    if cell.verdict is None or cell.screen is None:
        return None
    known = ("injected", *cell.evaluation.references)
    models = [cell.evaluation[name] for name in (*known, *cell.candidates)]
    every = np.concatenate([np.r_[one.forget_deltas, one.probe_deltas] for one in models])
    x = axis_over("NLL − base's, nats", every.tolist(), also=(0.0,), scale=far_spread(every))
    shown = [("known models", known), *groups(cell)]
    return Figure(
        "forget-deltas",
        "Forget and probe facts",
        f"{_reading(cell.verdict.findings)}.",
        "Each row is a model. Large markers are its forget facts, thin ticks its never-learned "
        "probes, placed by how much their held-out NLL rose over base. At the right the "
        "Holm-adjusted p-value of the screen; a cross marks an excluded candidate.",
        tuple(_panel(cell, title, names, x, rules) for title, names in shown),
        _table(models),
        legend=(
            *method_legend(cell),
            ("probe", "never-learned probe", False),
            ("excluded", "excluded by the screen", False),
        ),
    )


def _reading(findings: Sequence[Finding]) -> str:
    kept = [one for one in findings if not one.excluded]
    reading = (
        f"The screen excludes {len(findings) - len(kept)} of "
        f"{counted(len(findings), 'candidate')}, whose forget facts lie below their never-learned "
        "probes beyond chance"
    )
    gaps = [one.median_gap for one in kept]
    if len(kept) == 1:
        reading += f"; the median gap of the one survivor is {number(gaps[0])} nats"
    elif kept:
        reading += (
            f"; the median gap of the {len(kept)} survivors lies between {number(min(gaps))} and "
            f"{number(max(gaps))} nats"
        )
    return reading


def _panel(cell: CellResult, title: str, names: Sequence[str], x: Axis, rules: Rules) -> Panel:
    rows, points = [], []
    for place, name in enumerate(names):
        model = cell.evaluation[name]
        style = cell.methods.get(name, name.partition("-")[0])
        judged = cell.screen is not None and name in cell.methods
        found = cell.screen[name] if cell.screen and judged else screen_alone(model, rules)
        note = f"{'✕ ' if found.excluded else ''}{found.adjusted_p:.2g}"
        outcome = f", {'adjusted ' if judged else ''}p {found.adjusted_p:.3g}"
        outcome += ", excluded" if found.excluded else ", survives"
        rows.append(Row(name, note))
        for fact, delta in zip(model.probe_facts, model.probe_deltas):
            label = f"{name}: probe {fact}, {number(float(delta))} nats"
            points.append(Point(float(delta), place, "probe", label, small=True))
        for fact, delta in zip(model.forget_facts, model.forget_deltas):
            label = f"{name}: forget fact {fact}, {number(float(delta))} nats{outcome}"
            points.append(Point(float(delta), place, style, label))
    style = style_of(cell, title)
    return Panel(
        title,
        x,
        rows=tuple(rows),
        points=tuple(points),
        rules=(Rule(0.0, "base", solid=True),),
        style=style,
        notes="adjusted p" if style or title == "candidates" else "p",
    )


def _table(models: Sequence[ModelMeasures]) -> Table:
    rows: list[tuple[Value, ...]] = []
    for model in models:
        facts = [("forget", *one) for one in zip(model.forget_facts, model.forget_deltas)]
        facts += [("probe", *one) for one in zip(model.probe_facts, model.probe_deltas)]
        rows += [(model.name, which, fact, float(delta)) for which, fact, delta in facts]
    return Table("forget-deltas", "Deltas", "", ("model", "set", "fact", "delta"), tuple(rows))
