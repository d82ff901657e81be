"""The heat map of the trial of criteria: one row per criterion, one column per kind of model."""

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from palimpsest.analysis.criteria import Row, Trial
from palimpsest.report.palette import INK, QUIET
from palimpsest.report.plots import canvas

WRONG = LinearSegmentedColormap.from_list("wrong", ["#f6e3cf", "#e8b27a", "#8c2d04"])
RIGHT = LinearSegmentedColormap.from_list("right", ["#dcebe6", "#6fb8a4", "#0b5d48"])
"""From few accepted to all: of models that should not be, and of the others."""
LIGHT, DARK = "#fdf8f0", "#3a2a1a"
"""Ink on fields, whose colours are the same on a dark page."""

FRESH = "fresh retraining"


@canvas.drawing()
def heat_map(trial: Trial, form: str) -> Figure:
    """Draw how many models of each kind a criterion accepts: nothing where it accepts none, a dash
    where none was measured; graded and restored models are behind a line."""
    rows = [row for row in trial.rows if row.form == form]
    right = [adversary.label for adversary in trial.adversaries if not adversary.wrong] + [FRESH]
    columns = [adversary.label for adversary in trial.adversaries if adversary.wrong] + right
    size = (2.1 + 0.37 * len(columns), 1.5 + 0.165 * len(rows))
    figure, (panel,) = canvas.sheet(1, 1, size)
    panel.set_xlim(-0.5, len(columns) - 0.5)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    for place, row in enumerate(rows):
        counts = {**row.accepted, FRESH: row.fresh}
        for at, column in enumerate(columns):
            accepted, total = counts.get(column, (0, 0))
            if total and not accepted:
                continue
            share = accepted / total if total else 0.0
            shades = RIGHT if column in right else WRONG
            if total:
                corner = (at - 0.48, place - 0.46)
                panel.add_patch(Rectangle(corner, 0.96, 0.92, color=shades(share), linewidth=0))
            ink = LIGHT if share > 0.55 else DARK if total else QUIET
            text = str(accepted) if total else "–"
            panel.text(at, place, text, ha="center", va="center", color=ink, fontsize=6)
    panel.set_yticks(range(len(rows)), [canvas.shortened(_title(row), 34) for row in rows])
    panel.set_xticks(range(len(columns)), [canvas.shortened(name, 30) for name in columns])
    panel.tick_params(
        axis="x", rotation=90, length=0, labelcolor=INK, labeltop=True, labelbottom=False
    )
    panel.tick_params(axis="y", length=0, labelcolor=INK, labelsize=7)
    groups = [row.criterion.group if row.criterion else "certificate" for row in rows]
    for place in range(1, len(rows)):
        if groups[place] != groups[place - 1]:
            panel.axhline(place - 0.5, color=QUIET, linewidth=0.8)
    panel.axvline(len(columns) - len(right) - 0.5, color=QUIET, linewidth=0.8)
    for side in ("left", "bottom"):
        panel.spines[side].set_visible(False)
    return figure


def _title(row: Row) -> str:
    return f"{row.criterion.number or '–'} {row.criterion.title}" if row.criterion else row.name
