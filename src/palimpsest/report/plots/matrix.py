"""Figures of a run of many cells: one dot per model and cell, one row per kind of model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from palimpsest.analysis.cost import cost_table, prices
from palimpsest.analysis.results import RunResults
from palimpsest.criteria.axes import Axis
from palimpsest.report.palette import BAND, QUIET, STRIPE, Style, styles
from palimpsest.report.plots import canvas
from palimpsest.report.plots.canvas import LINEAR


@dataclass(frozen=True, slots=True)
class Judged:
    """One model in one cell: how far from the retrainings it lies, and whether it was accepted."""

    name: str
    """With its cell, for a reader who points at it."""
    z: Mapping[str, float]
    """Distance by axis, in standard deviations of retraining."""
    accepted: bool | None

    @property
    def farthest(self) -> float:
        """Its largest distance on any axis, without sign."""
        return max((abs(value) for value in self.z.values()), default=0.0)


Groups = Mapping[str, tuple[Style, Sequence[Judged]]]
"""Rows of a figure: label, style and models."""


@canvas.drawing()
def acceptance(groups: Groups, level: float, *, divide: int = 0, narrow: bool = False) -> Figure:
    """Draw for every kind of model how far it lies from retraining, cell by cell.

    Filled: accepted as one more retraining. level: the share of true retrainings that the test
    rejects by design. divide: how many rows are controls, which a line sets apart.
    """
    width = 3.9 if narrow else 8.4
    figure, (panel,) = canvas.sheet(1, 1, (width, 0.36 * len(groups) + 0.95))
    canvas.rows(panel, list(groups))
    every = [model.farthest for _, models in groups.values() for model in models]
    reach = canvas.distances(panel, every, signed=False)
    if divide:
        panel.axhline(divide - 0.5, color=QUIET, linewidth=0.8, zorder=1)
    for place, (style, models) in enumerate(groups.values()):
        if place % 2:
            panel.axhspan(place - 0.5, place + 0.5, color=STRIPE, linewidth=0, zorder=0)
        for accepted in (False, True):
            mine = [(n, model) for n, model in enumerate(models) if model.accepted is accepted]
            where = [(min(model.farthest, reach), place + canvas.jitter(n)) for n, model in mine]
            names = [f"{model.name}: {model.farthest:.1f} sd at worst" for _, model in mine]
            canvas.points(panel, where, style, names, hollow=not accepted, size=4)
        known = [model.accepted for model in models if model.accepted is not None]
        note = f"{sum(known)} of {len(known)}"
        right = panel.get_yaxis_transform()
        panel.text(1.015, place, note, transform=right, va="center", color=QUIET)
    panel.text(
        *(1.015, 1.0, "accepted"),
        transform=panel.transAxes,
        va="bottom",
        color=QUIET,
        fontsize=7,
    )
    panel.set_xlabel(
        "largest distance from the mean retraining on any axis, in standard deviations"
        if not narrow
        else "largest distance on any axis, sd"
    )
    plain = styles(())["reference"]
    wrong = f"{1 - level:.0%} of true retrainings are accepted by design"
    entries = [canvas.key(plain, "accepted as a retraining")]
    entries += [canvas.key(plain, "rejected", hollow=True)]
    entries += [] if narrow else [canvas.key(plain, wrong, size=0)]
    canvas.legend(figure, entries, 1 if narrow else 3)
    return figure


@canvas.drawing()
def closeness(results: RunResults) -> canvas.Picture | None:
    """Return how near to retraining every candidate comes, against its cost in retrainings.

    Filled: indistinguishable from a retraining in at least one cell.
    """
    priced, looks = prices(results), styles(results.methods)
    if not priced:
        return None
    figure, (panel,) = canvas.sheet(1, 1, (7.0, 4.0))
    for price in priced:
        share = f"{price.clears} of {price.cells}"
        name = (
            f"{price.candidate}: {price.retrainings:.2f} retrainings, {price.sd:.1f} sd at worst, "
            f"indistinguishable from a retraining in {share} cells"
        )
        where = [(price.retrainings, price.sd)]
        style = looks[price.method]
        canvas.points(
            panel, where, style, [name], hollow=not price.clears, size=6, model=price.candidate
        )
    panel.set_yscale("symlog", linthresh=LINEAR)
    panel.set_ylim(0, 1.5 * max(LINEAR, *(price.sd for price in priced)))
    panel.set_xlim(0, 1.1 * max(1.0, *(price.retrainings for price in priced)))
    panel.yaxis.set_major_locator(FixedLocator([0, 1, 2, 3, 10, 30, 100, 300, 1000]))
    panel.yaxis.set_major_formatter("{x:g}")
    canvas.rule(panel, 1.0, "one retraining")
    distances = [
        abs(control.comparison.worst.sd)
        for _, verdict in results.judged
        for control in verdict.controls
        if control.expected == "accept"
        and control.comparison is not None
        and control.comparison.worst.sd is not None
    ]
    if distances:
        usual = float(np.median(distances))
        panel.axhline(usual, color=QUIET, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1.5)
        right = panel.get_yaxis_transform()
        panel.text(1.01, usual, "retrainings", transform=right, va="center", fontsize=7)
    panel.grid(visible=True)
    panel.set_xlabel("cost, in tokens of one retraining")
    panel.set_ylabel("worst axis, standard deviations of retraining")
    methods = {price.method: looks[price.method] for price in priced}
    canvas.legend(figure, [canvas.key(style, name) for name, style in methods.items()])
    return canvas.Picture("cost", cost_table(results).reading, figure)


@canvas.drawing()
def axes_by_group(axes: Sequence[Axis], groups: Groups) -> Figure:
    """Draw every axis as a panel: one row per kind of model, one dot per model and cell."""
    figure, panels = canvas.sheet(len(axes), 2, (4.1, 0.2 * len(groups) + 0.8))
    for panel, axis in zip(panels, axes):
        canvas.rows(panel, list(groups))
        every = [
            model.z[axis.name]
            for _, some in groups.values()
            for model in some
            if axis.name in model.z
        ]
        reach = canvas.distances(panel, every)
        panel.axvspan(-2, 2, color=BAND, linewidth=0, zorder=0.5)
        for place, (style, models) in enumerate(groups.values()):
            mine = [
                (n, model, model.z[axis.name])
                for n, model in enumerate(models)
                if axis.name in model.z
            ]
            where = [(min(max(z, -reach), reach), place + canvas.jitter(n)) for n, _, z in mine]
            names = [f"{model.name}: {axis.title} {z:+.1f} sd" for _, model, z in mine]
            names = names if len(names) < 200 else []  # they would fill the page
            canvas.points(panel, where, style, names, size=3, alpha=0.8)
        panel.set_title(axis.title)
    return figure
