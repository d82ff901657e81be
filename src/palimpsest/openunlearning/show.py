"""The answer about a set of logs: JSON and CSV for programs, text and a page for people."""

from typing import Any

from palimpsest.openunlearning.judging import ALPHA, DAMAGE
from palimpsest.openunlearning.models import Group, LogReport, Model, Outcome, Role
from palimpsest.report import canvas
from palimpsest.report.page import Section, tables_page
from palimpsest.report.table import Row, Table, as_csv, table_lines, wrapped

MISSING = (
    "weights of candidates, full and pretrained model",
    "weights of at least five retrained models of one recipe",
    "re-acquisition: how fast each model relearns the forget questions",
)
SCOPE = (
    "This is no certificate: it compares forward scores with one retraining. A certificate needs "
    f"{'; '.join(MISSING)}."
)
LEGEND = (
    "forget, holdout: median difference from the anchor. below, above: unadjusted p-values that "
    "forget questions score below or above never-taught holdout questions; outcomes are decided at "
    f"{ALPHA} after Holm correction. A model is damaged if a median shifts by more than {DAMAGE} "
    "spreads, a spread being the variation of the retrained model's scores over questions."
)
FORMS = dict.fromkeys(("forget", "holdout"), "+.2f") | dict.fromkeys(("below", "above"), ".2g")
FIELDS = (
    *("name", "role", "split", "benchmark", "base", "checkpoint", "outcome", "reason", "score"),
    *("anchor", "p_below", "p_above", "median_forget", "median_holdout", "left_out"),
    *("distance", "retraining_p", "path", "shifts", "medians", "levels"),
)
"""What JSON says about a model; the last three are numbers by name."""

COLORS = {
    Outcome.STILL_KNOWS: "#b84a00",
    Outcome.OVER_FORGOTTEN: "#0068a3",
    Outcome.DAMAGED: "#8a4380",
    Outcome.NOT_TOLD_APART: "#00734f",
}
TICKS = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50)
MARKERS = {Role.CANDIDATE: "o", Role.RETRAINED: "s", Role.FULL: "^", Role.PRETRAINED: "D"}


# -- for programs ----------------------------------------------------------------------------------


def as_json(report: LogReport) -> dict[str, Any]:
    """Return the whole answer as one JSON document."""
    return {
        "models": [{key: getattr(model, key) for key in FIELDS} for model in _models(report)],
        "groups": [
            {
                "title": group.title,
                "models": [model.name for model in group.models],
                "nearest": {near.name: near.checkpoint for near in group.nearest},
            }
            for group in report.groups
        ],
        "missing_for_certificate": list(MISSING),
        "problems": list(report.problems),
    }


def as_csv_file(report: LogReport) -> str:
    """Return one line per model, with a column per shift, median and level."""
    models = _models(report)
    *plain, shifts, medians, levels = FIELDS
    names = {key: sorted({n for m in models for n in getattr(m, key)}) for key in FIELDS[-3:]}
    rows: list[Row] = [
        {key: getattr(model, key) for key in plain}
        | {"path": str(model.path)}
        | {f"shift of {name}": model.shifts.get(name) for name in names[shifts]}
        | {f"median of {name}": model.medians.get(name) for name in names[medians]}
        | {name: model.levels.get(name) for name in names[levels]}
        for model in models
    ]
    return as_csv(Table.of("logs", "", "", rows))


def _models(report: LogReport) -> list[Model]:
    return [model for group in report.groups for model in group.models]


# -- for people ------------------------------------------------------------------------------------


def as_text(report: LogReport) -> str:
    """Return the answer, then the tables, then what is missing for a certificate."""
    lines: list[str] = []
    for group in report.groups:
        head = f"{group.title}: {setting(group)}"
        lines += [*map(wrapped, [head, *sentences(group)]), ""]
    for group in report.groups:
        tables = [models_table(group), medians_table(group)]
        lines += [f"{table_lines(table)}\n" for table in tables if table.rows]
    return "\n".join([*lines, wrapped(LEGEND), "", *map(wrapped, [SCOPE, *report.problems])])


def setting(group: Group) -> str:
    """Return how the models of a group are compared."""
    first = max(group.models, key=lambda model: model.p_below is not None)
    return f"{first.score}, " + (f"anchored to the {first.anchor} model" if first.anchor else "raw")


def sentences(group: Group) -> list[str]:
    """Return the answer: a sentence per candidate, and the nearest checkpoint of every run."""
    candidates = [model for model in group.models if model.role is Role.CANDIDATE]
    texts = [f"{m.label}: {m.outcome}; {m.reason}." for m in candidates or group.models]
    if group.nearest:
        nearest = ", ".join(model.label for model in group.nearest)
        texts.append(f"Nearest to the retrained model among each run's checkpoints: {nearest}.")
    return texts


def models_table(group: Group) -> Table:
    """Return one row per model, by the number that it has in the picture."""
    rows: list[Row] = [
        {"": str(number), "model": model.label}
        | {"forget": model.median_forget, "holdout": model.median_holdout}
        | {"below": model.p_below, "above": model.p_above, "outcome": str(model.outcome)}
        for number, model in enumerate(group.models, 1)
    ]
    return Table.of("models", group.title, "", rows, FORMS)


def medians_table(group: Group) -> Table:
    """Return the median level of every set of questions; without rows if no log has any."""
    names = list(dict.fromkeys(name for model in group.models for name in model.medians))
    rows: list[Row] = [
        {"": str(number), "model": model.label} | {name: model.medians.get(name) for name in names}
        for number, model in enumerate(group.models, 1)
        if names
    ]
    title = "Median negative log-likelihood of answers, nats per token"
    if any(model.benchmark == "MUSE" for model in group.models):
        title = "Mean ROUGE of answers"
    return Table.of("medians", title, "", rows, dict.fromkeys(names, ".2f"))


def levels_table(group: Group) -> Table:
    """Return the level of every metric, one column per model by its number."""
    names = sorted({name for model in group.models for name in model.levels})
    rows: list[Row] = [
        {"metric": name} | {str(n): m.levels.get(name) for n, m in enumerate(group.models, 1)}
        for name in names
    ]
    return Table.of("levels", "Levels of every metric", "", rows)


@canvas.figure()
def logs_figure(group: Group) -> canvas.Picture:
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
            setting(group),
            [models_table(group), medians_table(group), levels_table(group)],
            sentences(group),
            logs_figure(group),
        )
        for group in report.groups
    ]
    sections.append(Section("How to read this, and its limits", LEGEND, (), report.problems))
    return tables_page("What the evaluation logs show", SCOPE, sections)
