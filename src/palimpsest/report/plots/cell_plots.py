"""Figures of one cell, every model by name, and relearning curves of many cells."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.analysis.table import counted, number
from palimpsest.criteria.axes import chosen
from palimpsest.criteria.items import Values
from palimpsest.criteria.measures import ModelMeasures
from palimpsest.criteria.screen import screen_alone
from palimpsest.report.palette import BAND, MARKS, Style, in_order, styles
from palimpsest.report.plots.canvas import (
    Picture,
    curve,
    drawing,
    end_labels,
    key,
    legend,
    points,
    rows,
    rule,
    sheet,
    spread,
)
from palimpsest.report.positions import cell_axes

MOST_ROWS = 40
"""Rows of candidates that a figure of one cell shows; all are in the tables."""


@drawing()
def forget_deltas(results: RunResults) -> Picture | None:
    """Return forget facts and probes of every candidate, by NLL minus base's, with the screen's
    p-value."""
    (cell,) = results.cells
    if cell.screen is None or cell.verdict is None:
        return None
    names = [*cell.evaluation.of_role("injected"), *cell.evaluation.references[:3]]
    alone = {name: screen_alone(cell.evaluation[name], results.rules) for name in names}
    p_values = {name: passage.adjusted_p for name, passage in alone.items()}
    p_values |= {name: cell.screen[name].adjusted_p for name in cell.candidates}
    models, looks = _styled(results, cell, [*names, *_shown(results, cell)])
    excluded = [finding.name for finding in cell.verdict.findings if finding.excluded]
    figure, (panel,) = sheet(1, 1, (8.0, 0.22 * len(models) + 0.75))
    notes = [f"{'✕ ' if name in excluded else ''}{p_values[name]:.2g}" for name in models]
    rows(panel, list(models), notes, "p-value")
    probe = styles(())["probe"]
    for place, (name, model) in enumerate(models.items()):
        for facts, deltas, style, kind in (
            (model.probe_facts, model.probe_deltas, probe, "probe"),
            (model.forget_facts, model.forget_deltas, looks[name], "forget fact"),
        ):
            where = [(float(delta), place) for delta in deltas]
            texts = [f"{name}: {kind} {f}, {number(x)} nats" for f, (x, _) in zip(facts, where)]
            points(panel, where, style, texts, size=6 if style is probe else 5)
    every = [x for model in models.values() for x in (*model.forget_deltas, *model.probe_deltas)]
    spread(panel, every)
    rule(panel, 0.0, "base", solid=True)
    panel.set_xlabel("held-out NLL minus base's, nats (left: better known than by base)")
    drawn = {style.name: style for style in looks.values()}
    entries = [key(style, name) for name, style in drawn.items()]
    legend(figure, [*entries, key(probe, "never-learned probes", size=6)])
    reading = (
        f"The screen excludes {len(excluded)} of {counted(len(cell.candidates), 'candidate')}: "
        "their forget facts are known better than never-learned probes, beyond chance."
    )
    return Picture("forget-deltas", reading, figure)


@drawing()
def measures(results: RunResults) -> Picture:
    """Return every axis of one cell in its own unit: one panel per axis, one row per candidate,
    the range of the references shaded."""
    (cell,) = results.cells
    axes = cell_axes(cell, results.rules) or chosen(results.rules)
    models, looks = _styled(results, cell, _shown(results, cell))
    references = [cell.evaluation[name] for name in cell.evaluation.references]
    figure, panels = sheet(len(axes), 2, (4.1, 0.19 * len(models) + 0.85))
    for panel, axis in zip(panels, axes):
        held = [value for reference in references if (value := axis.read(reference)) is not None]
        values = {name: axis.read(model) for name, model in models.items()}
        notes = ["–" if value is None else f"{value:.2f}" for value in values.values()]
        rows(panel, list(models), notes)
        if held:
            panel.axvspan(min(held), max(held), color=BAND, linewidth=0, zorder=0.5)
        for place, (name, value) in enumerate(values.items()):
            if value is not None:
                text = f"{name}: {axis.title} {number(value)} {axis.unit}"
                points(panel, [(value, place)], looks[name], [text], size=5)
        for name in cell.evaluation.of_role("injected"):
            if (value := axis.read(cell.evaluation[name])) is not None:
                rule(panel, value, name)
        panel.set_title(axis.title, pad=14)
        panel.set_xlabel(axis.unit)
    reading = (
        f"{counted(len(models), 'candidate')} on {counted(len(axes), 'axis', 'axes')}, with the "
        f"range of {counted(len(references), 'retraining')}."
    )
    return Picture("measures", reading, figure)


def relearning(results: RunResults) -> Picture | None:
    """Return the relearning curves of one cell."""
    (cell,) = results.cells
    logged = {name: c for name in cell.evaluation if (c := cell.evaluation[name].curve) is not None}
    mine = {n: logged[n].forget_heldout_nll for n in _shown(results, cell) if n in logged}
    held = [logged[n].forget_heldout_nll for n in cell.evaluation.references if n in logged]
    injected = [logged[n].forget_heldout_nll for n in cell.evaluation.of_role("injected")]
    if not mine and not held:
        return None
    steps = next(iter(logged.values())).step.tolist()
    part = Relearned(steps, mine, held, injected[0] if injected else None)
    _, looks = _styled(results, cell, mine)
    reading = f"{counted(len(mine), 'candidate')} learned the forget facts again."
    if held and mine:
        last = min(float(values[-1]) for values in held)
        below = sum(float(values[-1]) < last for values in mine.values())
        reading = (
            f"{below} of {counted(len(mine), 'candidate')} end below every retraining: they "
            "relearn the forget facts further than a model that never knew them."
        )
    return Picture("relearning", reading, _curves({"": part}, looks, "held-out forget NLL, nats"))


def relearning_by_family(results: RunResults) -> Picture | None:
    """Return median relearning curves by family and method."""
    curves: dict[str, dict[str, list[Values]]] = {}
    order = ["reference", "injected", *in_order(results.methods)]
    steps: list[int] = []
    for cell in results.cells:
        base = cell.evaluation.models.get("base")
        for name in cell.evaluation:
            curve, group = cell.evaluation[name].curve, _group(results, cell, name)
            if curve is None or base is None or group not in order:
                continue
            steps = steps or curve.step.tolist()
            if curve.step.tolist() == steps:
                mine = curves.setdefault(cell.family, {}).setdefault(group, [])
                mine.append(curve.forget_heldout_nll - base.forget_nll)
    if not curves:
        return None
    parts = {
        family: Relearned(
            steps,
            {name: np.median(curves_of[name], axis=0) for name in order[2:] if name in curves_of},
            curves_of.get("reference", ()),
            np.median(curves_of["injected"], axis=0) if "injected" in curves_of else None,
        )
        for family, curves_of in curves.items()
    }
    figure = _curves(parts, styles(results.methods), "held-out forget NLL − base's, nats")
    reading = f"Median curves of each method in {counted(len(parts), 'family', 'families')}."
    return Picture("relearning", reading, figure)


LINES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1, 2)))
"""Lines by which the settings of one method are told apart."""
LABELLED = 18
"""Curves of a panel up to which each has its name at its end."""


@dataclass(frozen=True, slots=True)
class Relearned:
    """One panel of relearning: held-out forget NLL at each logged step, by name."""

    steps: Sequence[int]
    curves: Mapping[str, Values]
    references: Sequence[Values]
    injected: Values | None


@drawing()
def _curves(parts: Mapping[str, Relearned], looks: Mapping[str, Style], label: str) -> Figure:
    """Draw the held-out forget NLL of each model while it learns the forget facts again."""
    size = (7.0, 3.6) if len(parts) == 1 else (4.1, 2.6)
    figure, panels = sheet(len(parts), 2, size, sharey=True)
    known = styles(())
    for panel, (title, part) in zip(panels, parts.items()):
        if part.references:
            held = np.stack(list(part.references))
            low, high, middle = held.min(axis=0), held.max(axis=0), np.median(held, axis=0)
            panel.fill_between(part.steps, low, high, color=BAND, linewidth=0)
            panel.plot(part.steps, middle, color=known["reference"].light, linewidth=1.6)
        if part.injected is not None:
            dashed, colour = (0, (4, 3)), known["injected"].light
            panel.plot(part.steps, part.injected, color=colour, linestyle=dashed, zorder=2.5)
        seen: dict[str, int] = {}
        for name, values in part.curves.items():
            style = looks[name]
            line = LINES[seen.setdefault(style.name, 0) % len(LINES)]  # one method, many settings
            seen[style.name] += 1
            curve(panel, part.steps, values, style, name, line)
            where = list(zip(part.steps, values.tolist()))
            names = [f"{name}: step {step}, {number(nll)} nats" for step, nll in where]
            points(panel, where, style, names, size=3.5, model=name)
        if len(parts) == 1 and len(part.curves) <= LABELLED:
            ends = {name: float(values[-1]) for name, values in part.curves.items()}
            end_labels(panel, ends, {name: looks[name].light for name in ends})
        panel.grid(visible=True)
        panel.set_title(title)
        panel.set_xlabel("steps of re-acquisition")
    for panel in panels[::2]:
        panel.set_ylabel(label)
    drawn = {looks[name].name: looks[name] for part in parts.values() for name in part.curves}
    entries = [key(known["reference"], "retrainings: range and median", line="-", size=0)]
    entries += [key(known["injected"], "injected model", line="--", size=0)]
    legend(figure, entries + [key(style, name) for name, style in drawn.items()])
    return figure


def _shown(results: RunResults, cell: CellResult) -> list[str]:
    """Return the candidates in the order of the palette, as many as a figure shows."""
    order, methods = in_order(results.methods), cell.methods
    return sorted(cell.candidates, key=lambda name: order.index(methods[name]))[:MOST_ROWS]


def _styled(
    results: RunResults, cell: CellResult, names: Iterable[str]
) -> tuple[dict[str, ModelMeasures], dict[str, Style]]:
    """Return these models of a cell, and the style of each."""
    known, models = styles(results.methods), {name: cell.evaluation[name] for name in names}
    return models, {name: known[_group(results, cell, name)] for name in models}


def _group(results: RunResults, cell: CellResult, name: str) -> str:
    """Return the style of a model: its method, or its role; an audit's candidates have no method
    and are each its own, unless they are too many for a marker each."""
    role = cell.roles.get(name, {})
    if role.get("role") != "candidate":
        return str(role.get("role", ""))
    if not role.get("method") and len(results.methods) > MARKS:
        return "candidate"
    return cell.methods[name]
