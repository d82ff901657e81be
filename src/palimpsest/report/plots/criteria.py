"""The heat map of the trial of criteria: one row per criterion, one column per kind of model."""

from collections.abc import Mapping, Sequence

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from palimpsest.report.palette import INK, QUIET
from palimpsest.report.plots import canvas

WRONG = LinearSegmentedColormap.from_list("wrong", ["#f6e3cf", "#e8b27a", "#8c2d04"])
RIGHT = LinearSegmentedColormap.from_list("right", ["#dcebe6", "#6fb8a4", "#0b5d48"])
"""From few accepted to all: of models that should not be, and of the others."""
LIGHT, DARK = "#fdf8f0", "#3a2a1a"
"""Ink on fields, whose colours are the same on a dark page."""

Counts = Mapping[str, tuple[int, int]]
"""Accepted, of how many, by kind of model."""


@canvas.drawing()
def heat_map(
    rows: Sequence[tuple[str, Counts]],
    columns: Sequence[str],
    dividers: Sequence[int],
    rights: int,
) -> Figure:
    """Draw how many models of each kind a criterion accepts: nothing where it accepts none, a dash
    where none was measured.

    dividers: rows before which a group of criteria begins; rights: how many of the last columns are
    graded or restored models, which a line sets apart.
    """
    size = (2.1 + 0.37 * len(columns), 1.5 + 0.165 * len(rows))
    figure, (panel,) = canvas.sheet(1, 1, size)
    panel.set_xlim(-0.5, len(columns) - 0.5)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    for place, (_, counts) in enumerate(rows):
        for at, column in enumerate(columns):
            accepted, total = counts.get(column, (0, 0))
            if total and not accepted:
                continue
            share = accepted / total if total else 0.0
            shades = RIGHT if at >= len(columns) - rights else WRONG
            if total:
                corner = (at - 0.48, place - 0.46)
                panel.add_patch(Rectangle(corner, 0.96, 0.92, color=shades(share), linewidth=0))
            ink = LIGHT if share > 0.55 else DARK if total else QUIET
            text = str(accepted) if total else "–"
            panel.text(at, place, text, ha="center", va="center", color=ink, fontsize=6)
    panel.set_yticks(range(len(rows)), [canvas.shortened(name, 34) for name, _ in rows])
    panel.set_xticks(range(len(columns)), [canvas.shortened(name, 30) for name in columns])
    panel.tick_params(
        axis="x", rotation=90, length=0, labelcolor=INK, labeltop=True, labelbottom=False
    )
    panel.tick_params(axis="y", length=0, labelcolor=INK, labelsize=7)
    for divider in dividers:
        panel.axhline(divider - 0.5, color=QUIET, linewidth=0.8)
    if rights:
        panel.axvline(len(columns) - rights - 0.5, color=QUIET, linewidth=0.8)
    for side in ("left", "bottom"):
        panel.spines[side].set_visible(False)
    return figure
