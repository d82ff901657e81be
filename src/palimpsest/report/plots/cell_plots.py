"""Figures of one cell: every model by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from palimpsest.analysis.table import number
from palimpsest.criteria.axes import Axis
from palimpsest.criteria.items import Values
from palimpsest.criteria.measures import ModelMeasures
from palimpsest.report.palette import BAND, Style, styles
from palimpsest.report.plots.canvas import (
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


@drawing()
def forget_deltas(
    models: Mapping[str, ModelMeasures],
    looks: Mapping[str, Style],
    p_values: Mapping[str, float],
    excluded: Sequence[str] = (),
) -> Figure:
    """Draw forget facts and never-learned probes of each model, by NLL minus base's.

    models: one row each. p_values: of the screen, for the notes at the right.
    """
    figure, (panel,) = sheet(1, 1, (8.0, 0.22 * len(models) + 0.75))
    notes = [
        f"{'✕ ' if name in excluded else ''}{p_values[name]:.2g}" if name in p_values else ""
        for name in models
    ]
    rows(panel, list(models), notes, "p-value")
    probe = styles(())["probe"]
    for place, (name, model) in enumerate(models.items()):
        for facts, deltas, style, kind in (
            (model.probe_facts, model.probe_deltas, probe, "probe"),
            (model.forget_facts, model.forget_deltas, looks[name], "forget fact"),
        ):
            where = [(float(delta), place) for delta in deltas]
            names = [f"{name}: {kind} {f}, {number(x)} nats" for f, (x, _) in zip(facts, where)]
            points(panel, where, style, names, size=6 if style is probe else 5)
    every = [x for model in models.values() for x in (*model.forget_deltas, *model.probe_deltas)]
    spread(panel, every)
    rule(panel, 0.0, "base", solid=True)
    panel.set_xlabel("held-out NLL minus base's, nats (left: better known than by base)")
    drawn = {style.name: style for style in looks.values()}
    entries = [key(style, name) for name, style in drawn.items()]
    entries += [key(probe, "never-learned probes", size=6)]
    legend(figure, entries)
    return figure


@drawing()
def measures(
    axes: Sequence[Axis],
    references: Sequence[ModelMeasures],
    models: Mapping[str, ModelMeasures],
    looks: Mapping[str, Style],
    anchors: Mapping[str, ModelMeasures],
) -> Figure:
    """Draw every axis in its own unit: one panel per axis, one row per model.

    references: their range is shaded. anchors: models shown as vertical lines, by label.
    """
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
        for label, model in anchors.items():
            value = axis.read(model)
            if value is not None:
                rule(panel, value, label)
        panel.set_title(axis.title, pad=14)
        panel.set_xlabel(axis.unit)
    return figure


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
def relearning(parts: Mapping[str, Relearned], looks: Mapping[str, Style], label: str) -> Figure:
    """Draw the held-out forget NLL of each model while it learns the forget facts again.

    parts: panels by title. label: what the y axis shows.
    """
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
