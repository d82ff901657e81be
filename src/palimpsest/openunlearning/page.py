"""The answer about a set of logs as one page, with a picture per group."""

from palimpsest.openunlearning import show
from palimpsest.openunlearning.models import Group, LogReport, Outcome, Role
from palimpsest.report import canvas
from palimpsest.report.page import Section, tables_page

COLORS = {
    Outcome.STILL_KNOWS: "#b84a00",
    Outcome.OVER_FORGOTTEN: "#0068a3",
    Outcome.DAMAGED: "#8a4380",
    Outcome.NOT_TOLD_APART: "#00734f",
}
TICKS = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50)
MARKERS = {Role.CANDIDATE: "o", Role.RETRAINED: "s", Role.FULL: "^", Role.PRETRAINED: "D"}


@canvas.figure()
def draw(group: Group) -> canvas.Picture:
    """Return where every model lies: holdout deltas to the right, forget deltas upward.

    Both axes are linear near 0, logarithmic further out and have one range, so that a model which
    knows forget and never-taught questions alike lies on the diagonal.
    """
    shown = [m for m in group.models if m.outcome is not Outcome.NOT_JUDGED]
    points = {m: (m.median_holdout or 0.0, m.median_forget or 0.0) for m in shown}
    looks = {m: canvas.Style(COLORS[m.outcome], MARKERS[m.role or Role.CANDIDATE]) for m in shown}
    roles = {m.role or Role.CANDIDATE for m in shown}
    entries = [
        canvas.key(canvas.Style(canvas.QUIET, marker), role)
        for role, marker in MARKERS.items()
        if role in roles
    ]
    outcomes = {m.outcome for m in shown}
    entries += [canvas.key(canvas.Style(c, "o"), o) for o, c in COLORS.items() if o in outcomes]
    figure, (axes,) = canvas.sheet((4.6, 4.6), entries, left=0.9)
    for name in dict.fromkeys(model.name for model in shown):
        run = [point for model, point in points.items() if model.name == name]
        axes.plot(*zip(*run), color=canvas.QUIET, linewidth=0.8, zorder=1.5)
    for model, point in points.items():
        canvas.points(axes, [point], looks[model], size=6)
        number = str(group.models.index(model) + 1)
        above = model.role is not Role.CANDIDATE  # which often lie near a reference
        axes.annotate(number, point, (5, 5 if above else -10), textcoords="offset points")
    reach = [value for point in points.values() for value in point]
    limits = (1.3 * min([-1.0, *reach]), 1.3 * max([1.0, *reach]))
    for which in "xy":
        axes.set(**{f"{which}scale": "symlog"})
        axes.set(**{f"{which}ticks": TICKS, f"{which}lim": limits})
        (axes.xaxis if which == "x" else axes.yaxis).set_major_formatter("{x:g}")
    axes.plot(limits, limits, "--", color=canvas.QUIET, linewidth=0.8, zorder=1.2)
    axes.grid(visible=True)
    axes.set_xlabel("holdout questions, median difference from the anchor")
    axes.set_ylabel("forget questions, median difference")
    about = (
        "Numbers are those of the table; lines connect the checkpoints of a run. On the dashed "
        "line, forget and never-taught questions are known alike; below it the model still knows; "
        "far from the retrained model along it, everything changed."
    )
    return canvas.Picture("logs", "Forget against holdout questions", "", about, figure)


def render_page(report: LogReport) -> str:
    """Return the page; whatever a name holds is escaped."""
    sections = [
        Section(
            group.title,
            show.setting(group),
            [show.models_table(group), show.medians_table(group), show.levels_table(group)],
            show.sentences(group),
            draw(group),
        )
        for group in report.groups
    ]
    sections.append(Section("How to read this, and its limits", show.LEGEND, (), report.problems))
    return tables_page("What the evaluation logs show", show.SCOPE, sections)
