"""The heat map of the trial of criteria: one row per criterion, one column per kind of model."""

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from palimpsest.criteria.trial import FRESH, Trial
from palimpsest.report.canvas import Picture, drawing, sheet, shortened
from palimpsest.report.palette import INK, QUIET

WRONG = LinearSegmentedColormap.from_list("wrong", ["#f6e3cf", "#e8b27a", "#8c2d04"])
RIGHT = LinearSegmentedColormap.from_list("right", ["#dcebe6", "#6fb8a4", "#0b5d48"])
"""From few accepted to all: of models that should not be, and of the others."""


@drawing()
def heat_map(trial: Trial, form: str) -> Picture:
    """Return how many models of each kind a criterion accepts: nothing where it accepts none, a
    dash where none was measured; graded and restored models are behind a line."""
    rows = [row for row in trial.rows if row.form == form]
    columns = [*sorted(trial.kinds, key=lambda kind: not kind.wrong), FRESH]
    figure, (axes,) = sheet((0.37 * len(columns), 1.4 + 0.165 * len(rows)), left=2.4)
    high = -0.5 - 1.4 / 0.165  # room for the names of the columns
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, high), xticks=[])
    for place, row in enumerate(rows):
        for at, kind in enumerate(columns):
            count = row.accepted[kind.label]
            share = count.count / count.total if count.total else 0.0
            if share:
                color = (WRONG if kind.wrong else RIGHT)(share)
                corner = (at - 0.48, place - 0.46)
                axes.add_patch(Rectangle(corner, 0.96, 0.92, color=color, linewidth=0))
            text = "–" if not count.total else str(count.count) if share else ""
            ink = "white" if share > 0.55 else INK
            axes.text(at, place, text, ha="center", va="center", color=ink, fontsize=6)
    axes.set_yticks(range(len(rows)), [shortened(row.name.replace("_", " "), 34) for row in rows])
    for at, kind in enumerate(columns):
        axes.text(at, -0.8, shortened(kind.label, 26), rotation=90, ha="center", va="bottom")
    axes.tick_params(axis="y", length=0, labelcolor=INK, labelsize=7)
    axes.axvline(len(trial.wrong) - 0.5, color=QUIET, linewidth=0.8)
    axes.spines[["left", "bottom"]].set_visible(False)
    how = "each model against the references of its own cell, by the certificate's test"
    if form == "published":
        how = "one threshold over all cells that rejects 5 % of the references"
    about = (
        f"Each row is a criterion, {how}. The number is that of the cells, of {trial.cells}, that "
        "accept a model; empty means none, a dash not measured. Left of the line every accepted "
        "model is an error."
    )
    return Picture(f"criteria-{form}", f"Models accepted, criteria {form}", "", about, figure)
