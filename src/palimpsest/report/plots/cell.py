"""Figures of one cell: every model by name."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from palimpsest.criteria.axes import Axis
from palimpsest.criteria.measures import ModelMeasures, RelearningCurve
from palimpsest.report.formats import number
from palimpsest.report.palette import BAND, Style, styles
from palimpsest.report.plots.canvas import (
    drawing,
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
    every = [x for one in models.values() for x in (*one.forget_deltas, *one.probe_deltas)]
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
        held = [value for one in references if (value := axis.read(one)) is not None]
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


@drawing()
def relearning(
    curves: Mapping[str, RelearningCurve],
    looks: Mapping[str, Style],
    references: Sequence[RelearningCurve],
    injected: RelearningCurve | None = None,
) -> Figure:
    """Draw the held-out forget NLL of each model while it learns the forget facts again."""
    figure, (panel,) = sheet(1, 1, (7.0, 3.6))
    known = styles(())
    entries = []
    if references:
        draw_range(panel, references)
        entries.append(key(known["reference"], "retrainings: range and mean", line="-", size=0))
    if injected is not None:
        panel.plot(
            *(injected.step, injected.forget_heldout_nll),
            color=known["injected"].light,
            linestyle=(0, (4, 3)),
            zorder=2.5,
        )
        entries.append(key(known["injected"], "injected model", line="--", size=0))
    for name, curve in curves.items():
        style = looks[name]
        panel.plot(curve.step, curve.forget_heldout_nll, color=style.light, zorder=2.6)
        where = list(zip(curve.step.tolist(), curve.forget_heldout_nll.tolist()))
        names = [f"{name}: step {step}, held-out forget NLL {number(nll)}" for step, nll in where]
        points(panel, where, style, names, size=3.5)
    drawn = {style.name: style for style in (looks[name] for name in curves)}
    entries += [key(style, name) for name, style in drawn.items()]
    panel.grid(visible=True)
    panel.set_xlabel("steps of re-acquisition")
    panel.set_ylabel("held-out forget NLL, nats")
    legend(figure, entries)
    return figure


def draw_range(panel: Axes, curves: Sequence[RelearningCurve]) -> None:
    """Shade the range of several curves and draw their mean."""
    steps = curves[0].step
    heights = np.stack([one.forget_heldout_nll for one in curves if len(one.step) == len(steps)])
    panel.fill_between(steps, heights.min(axis=0), heights.max(axis=0), color=BAND, linewidth=0)
    panel.plot(steps, heights.mean(axis=0), color=styles(())["reference"].light, linewidth=1.6)
