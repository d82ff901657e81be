"""The answer about a set of logs: JSON and CSV for programs, text and a page for people."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from palimpsest.openunlearning.judging import ALPHA
from palimpsest.openunlearning.models import Group, LogReport, Model, Outcome, Role
from palimpsest.report import canvas
from palimpsest.report.page import Section, tables_page
from palimpsest.report.table import P_VALUE, Row, Table, as_csv, table_lines, width, wrapped
from palimpsest.text import shortened

MISSING = (
    "weights of candidates, full and pretrained model",
    "weights of at least five retrained models of one recipe",
    "re-acquisition: how fast each model relearns the forget questions",
)
SCOPE = (
    "No certificate: forward scores of single models are compared. A certificate needs weights of "
    "these models and of five or more retrainings, and what each model relearns (palimpsest audit)."
)
LEGEND = (
    "AUC: chance that a forget question is better known than a never-taught one; p: of the side "
    f"that AUC points to, told apart where adjusted is at most {ALPHA}. path, one letter for each "
    "checkpoint: k still knows, o over-forgotten, = not told apart, - not judged; capitals: "
    "damaged too (D: alone), over twice as far from the retrained model as the full model is, "
    "where unlearning should change nothing."
)
LETTERS = dict(zip(Outcome, "kKoOD=a-"))
FORMS = {"AUC": ".2f", "p": P_VALUE, "adjusted": P_VALUE, "Δ forget": "+.2f", "Δ holdout": "+.2f"}
SCREEN, NOTES = 60, 7
"""Lines of one screen, and remarks on it."""
FIELDS = (
    *("name", "role", "split", "benchmark", "base", "checkpoint", "last", "outcome", "reason"),
    *("score", "anchor", "family", "auc", "p_below", "p_above", "adjusted_below"),
    *("adjusted_above", "median_forget", "median_holdout", "left_out", "distance", "retraining_p"),
    *("path", "anchor_logs", "reference_logs", "shifts", "medians", "levels"),
)
"""What JSON says about a model; the last three are numbers by name."""
COLORS = {
    Outcome.STILL_KNOWS: "#b84a00",
    Outcome.OVER_FORGOTTEN: "#0068a3",
    Outcome.DAMAGED: "#8a4380",
    Outcome.NOT_TOLD_APART: "#00734f",
}
COLORS |= {o: COLORS[Outcome(o.removesuffix(" and damaged"))] for o in Outcome if " and " in o}
TICKS = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50)
MARKERS = {Role.CANDIDATE: "o", Role.RETRAINED: "s", Role.FULL: "^", Role.PRETRAINED: "D"}
NUMBERED = 60
"""Models up to which the picture says their numbers."""


# -- for programs ----------------------------------------------------------------------------------


def as_json(report: LogReport) -> dict[str, Any]:
    """Return the whole answer as one JSON document."""
    counts = _counts(report)
    return {
        "models": [_record(model) for model in _models(report)],
        "groups": [
            {
                "title": group.title,
                "setting": setting(group),
                "models": [model.name for model in group.models],
                "nearest": {near.name: near.checkpoint for near in group.nearest},
            }
            for group in report.groups
        ],
        "counts": {role: {o: counts[role, o] for o in Outcome if counts[role, o]} for role in Role},
        "missing_for_certificate": list(MISSING),
        "problems": list(report.problems),
    }


def _record(model: Model) -> dict[str, Any]:
    return {key: getattr(model, key, getattr(model.screen, key, None)) for key in FIELDS}


def as_csv_file(report: LogReport) -> str:
    """Return one line per model, with a column per shift, median and level."""
    models = _models(report)
    heads = {"shifts": "shift of {}", "medians": "median of {}", "levels": "{}"}
    names = {key: sorted({name for m in models for name in getattr(m, key)}) for key in heads}
    rows: list[Row] = []
    for model in models:
        row = {key: value for key, value in _record(model).items() if key not in heads}
        row |= {"path": str(model.path)}
        row |= {k: " ".join(map(str, row[k])) for k in ("anchor_logs", "reference_logs")}
        for key, head in heads.items():
            row |= {head.format(name): getattr(model, key).get(name) for name in names[key]}
        rows.append(row)
    return as_csv(Table.of("logs", "", "", rows))


def _models(report: LogReport) -> list[Model]:
    return [model for group in report.groups for model in group.models]


def _counts(report: LogReport) -> Counter[tuple[Role | None, Outcome]]:
    """Return how many runs have each outcome, by their last logs."""
    return Counter((m.role, m.outcome) for m in _models(report) if m.last)


# -- for people ------------------------------------------------------------------------------------


def as_text(report: LogReport, everything: bool = False) -> str:
    """Return the answer on one screen: counts, a line per candidate, what limits it; or all."""
    models, notes = _models(report), list(map(wrapped, report.problems))
    lead = f"{len(models)} logs of {sum(model.last for model in models)} runs. Their last logs:"
    head = [wrapped(lead), table_lines(counts_table(report)), ""]
    if everything:
        for group in report.groups:
            head += [wrapped(setting(group)), *map(table_lines, group_tables(group)), ""]
        return "\n".join([*head, wrapped(LEGEND), wrapped(SCOPE), *notes])
    short = [text if text.count("\n") < 2 else f"{text[:150]}..." for text in notes[:NOTES]]
    short += [f"{len(notes) - NOTES} more remarks: --all"] if len(notes) > NOTES else []
    tail = [wrapped(LEGEND), wrapped(SCOPE), *short]
    taken = sum(text.count("\n") + 1 for text in (*head, *tail))
    return "\n".join([*head, *_shortly(report, SCREEN - taken - 3), *tail])


def _shortly(report: LogReport, room: int) -> list[str]:
    """Return a line per candidate that was judged, or per reference where there is none."""
    last = {g: [m for m in g.models if m.last and m.screen] for g in report.groups}
    chosen = {g: [m for m in models if m.role is Role.CANDIDATE] for g, models in last.items()}
    chosen = chosen if any(chosen.values()) else last
    rows = [row for group, models in chosen.items() for row in _rows(group, models)]
    grid = Table.of("", "", "", rows, FORMS)
    texts = iter([[grid.shown(*pair) for pair in zip(grid.columns, row)] for row in grid.rows])
    shown = {group: [(model, next(texts)) for model in models] for group, models in chosen.items()}
    every = [text for named in shown.values() for _, text in named]
    wide = [max(map(len, column)) for column in zip(grid.columns, *every)]
    wide[:1] = [max(12, min(wide[0], width() - sum(wide[1:]) - 2 * len(wide)))] if wide else []
    left, lines = 0, [_columns(grid.columns, wide)] if wide else []
    for group, named in shown.items():
        title = wrapped(setting(group))
        most = max(0, room - title.count("\n") - 1)
        if len(named) > most:  # the nearest ones first
            named.sort(key=lambda row: (row[0].outcome is not Outcome.NOT_TOLD_APART, _far(row[0])))
        kept = [_columns(text, wide) for _, text in named[:most]]
        left += len(named) - len(kept)
        if kept:
            lines += [title, *kept]
            room = most - len(kept)
    paths = sum(not model.last for model in _models(report))
    more = [f"{n} more {what}" for n, what in ((left, "runs"), (paths, "checkpoints")) if n]
    return [*lines, *([f"{' and '.join(more)}: --all, --csv or --page."] if more else []), ""]


def _far(model: Model) -> float:
    return float("inf") if model.distance is None else model.distance


def _columns(texts: Sequence[str], wide: Sequence[int]) -> str:
    """Return texts in columns: a name, cut in its middle, at the left, numbers at the right."""
    cells = [shortened(texts[0], wide[0]), *texts[1:]]
    aligned = [
        f"{t:{'<' if n in (0, 1, 5) else '>'}{w}}" for n, (t, w) in enumerate(zip(cells, wide))
    ]
    return f"  {'  '.join(aligned)}".rstrip()


def setting(group: Group) -> str:
    """Return how the models of a group are compared: score, anchor, references and family."""
    judged = [m for m in group.models if m.screen and m.last]
    if not judged:
        return f"{group.title}: nothing can be judged."
    first = next((m for m in judged if m.role is Role.CANDIDATE), judged[0])
    anchor = f"less that of {_named(group, first.anchor_logs)}" if first.anchor else "raw"
    beside = f"; beside {_named(group, first.reference_logs)}" if first.reference_logs else ""
    return f"{group.title}: {first.score} {anchor}{beside}; family: {first.family} tests."


def _named(group: Group, paths: Sequence[Path]) -> str:
    names = [model.label for model in group.models if model.path in paths]
    return names[0] if len(names) == 1 else f"the mean of {len(names)} retrained models"


def counts_table(report: LogReport) -> Table:
    """Return how many runs have each outcome, by role."""
    counts = _counts(report)
    roles = [role for role in (*reversed(Role), None) if any(counts[role, o] for o in Outcome)]
    rows: list[Row] = [
        {"": str(outcome)} | {role or "no role": counts[role, outcome] or None for role in roles}
        for outcome in Outcome
        if any(counts[role, outcome] for role in roles)
    ]
    return Table.of("counts", "", "", rows)


def group_tables(group: Group) -> list[Table]:
    """Return the outcome and the levels of every log, by its number in the picture."""
    names = list(dict.fromkeys(name for model in group.models for name in model.medians))
    numbered = [({"": str(number)}, model) for number, model in enumerate(group.models, 1)]
    outcomes = [n | row for (n, _), row in zip(numbered, _rows(group, group.models))]
    levels = [
        number
        | {"log": model.label, "Δ forget": getattr(model.screen, "median_forget", None)}
        | {"Δ holdout": getattr(model.screen, "median_holdout", None)}
        | {name: model.medians.get(name) for name in names}
        for number, model in numbered
    ]
    of = "mean ROUGE" if group.title.startswith("MUSE") else "median NLL, in nats per token,"
    title = f"Median score less the anchor's, and {of} of answers"
    return [
        Table.of("outcomes", "", "", outcomes, FORMS),
        Table.of("levels", title, "", levels, dict.fromkeys(names, ".2f") | FORMS),
    ]


def _rows(group: Group, models: Sequence[Model]) -> list[Row]:
    """Return what is shown of each model; p-values are of the side that AUC points to."""
    runs = {(run[0].role, run[0].name): run for run in group.runs if len(run) > 1}
    rows: list[Row] = []
    for model in models:
        path = runs.get((model.role, model.name), []) if model.last else []
        sides = [(model.p_below, model.adjusted_below), (model.p_above, model.adjusted_above)]
        p, adjusted = min((side for side in sides if side[0] is not None), default=(None, None))
        rows.append(
            {
                "log": model.label,
                "outcome": model.outcome.removesuffix(" by these scores").replace(" and ", ", "),
                "AUC": getattr(model.screen, "auc", None),
                "p": p,
                "adjusted": adjusted,
                "path": "".join(LETTERS[checkpoint.outcome] for checkpoint in path),
            }
        )
    return rows


def sentences(group: Group) -> list[str]:
    """Return a sentence per candidate, and the nearest checkpoint of every run."""
    candidates = [model for model in group.models if model.role is Role.CANDIDATE]
    texts = [f"{m.label}: {m.outcome}; {m.reason}." for m in candidates or group.models]
    nearest = ", ".join(model.label for model in group.nearest)
    return texts + ([f"Nearest checkpoint of each run: {nearest}."] if nearest else [])


@canvas.figure()
def logs_figure(group: Group) -> canvas.Picture:
    """Return where every model lies: holdout deltas to the right, forget deltas upward.

    Both axes are linear near 0, logarithmic further out and have one range, so that a model which
    knows forget and never-taught questions alike lies on the diagonal.
    """
    points = {
        (number, model): (model.screen.median_holdout, model.screen.median_forget)
        for number, model in enumerate(group.models, 1)
        if model.screen is not None and model.role is not None
    }
    roles, outcomes = {m.role for _, m in points}, {m.outcome for _, m in points}
    looks: list[tuple[canvas.Style, str]] = [
        (canvas.Style(canvas.QUIET, mark), role) for role, mark in MARKERS.items() if role in roles
    ]
    looks += [(canvas.Style(color, "o"), o) for o, color in COLORS.items() if o in outcomes]
    figure, (axes,) = canvas.sheet((4.6, 4.6), [canvas.key(*look) for look in looks], left=0.9)
    runs: dict[str, list[tuple[float, float]]] = {}
    for (number, model), point in points.items():
        runs.setdefault(model.name, []).append(point)
        style = canvas.Style(COLORS[model.outcome], MARKERS[model.role or Role.CANDIDATE])
        canvas.points(axes, [point], style, size=6)
        down = model.role is Role.CANDIDATE  # which often lies near a reference
        name = str(number) if len(points) <= NUMBERED else ""
        axes.annotate(name, point, (5, -10 if down else 5), textcoords="offset points")
    for run in runs.values():
        axes.plot(*zip(*run), color=canvas.QUIET, linewidth=0.8, zorder=1.5)
    reach = [value for point in points.values() for value in point]
    limits = (1.3 * min([-1.0, *reach]), 1.3 * max([1.0, *reach]))
    axes.set(xscale="symlog", yscale="symlog")
    axes.set(xticks=TICKS, yticks=TICKS, xlim=limits, ylim=limits)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
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
    sections = [Section("Outcomes", "Last logs of runs", [counts_table(report)])]
    sections += [
        Section(g.title, setting(g), group_tables(g), sentences(g), logs_figure(g))
        for g in report.groups
    ]
    sections.append(Section("How to read this, and its limits", LEGEND, (), report.problems))
    return tables_page("What the evaluation logs show", SCOPE, sections)
