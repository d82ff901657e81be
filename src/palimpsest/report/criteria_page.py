"""The page of the trial of criteria: ``criteria.html`` beside the report, with tables and figures.

Everything on it is computed from stored scores; the same files give the same bytes.
"""

from pathlib import Path

from palimpsest.analysis.criteria import (
    ONE_CELL,
    SAME_DRAW,
    Trial,
    has_trial,
    run_trial,
    share_interval,
)
from palimpsest.analysis.criteria import (
    Row as Judged,
)
from palimpsest.analysis.results import RunResults
from palimpsest.analysis.table import Estimate, Row, Share, Table, row, shown
from palimpsest.criteria.axes import AXES
from palimpsest.criteria.catalogue import CRITERIA, INPUTS
from palimpsest.criteria.intervals import Interval
from palimpsest.criteria.rules import Rules
from palimpsest.report.files import write_files
from palimpsest.report.pages import template
from palimpsest.report.plots.canvas import Picture, inline_svg
from palimpsest.report.plots.criteria import FRESH, heat_map

FORMS = {"published": "as published", "calibrated": "calibrated"}


def write_criteria(results: RunResults, folder: Path) -> Path | None:
    """Return the path of the trial's page, written with its tables; None without a trial."""
    if not has_trial(results):
        return None
    trial = run_trial(results)
    tables = trial_tables(trial, results.rules)
    pictures = {form: Picture(f"criteria-{form}", "", heat_map(trial, form)) for form in FORMS}
    page = template("criteria.html.j2", "criteria.js").render(
        name=results.name,
        sentences=sentences(trial, results.rules),
        forms=FORMS,
        drawn={form: inline_svg(p.figure, p.name, _alt(form)) for form, p in pictures.items()},
        tables={table.name: table for table in tables},
        cells=trial.cells,
        shown=shown,
    )
    path = folder / "criteria.html"
    write_files(path, page, tables, pictures.values(), ("csv", "md"))
    return path


def trial_tables(trial: Trial, rules: Rules) -> tuple[Table, ...]:
    """Return the tables of the trial: every criterion, every count, adversaries, the catalogue."""
    return _criteria(trial), _counts(trial, rules), _adversaries(trial), _catalogue()


def sentences(trial: Trial, rules: Rules) -> list[str]:
    """Return what the trial shows, from its numbers."""
    bad = [a.label for a in trial.adversaries if a.wrong]
    lines = [
        f"{len({r.name for r in trial.rows if r.criterion})} criteria in two forms, on "
        f"{trial.models} known-label models in {trial.cells} cells, "
        f"{len(bad)} kinds of which are not restored."
    ]
    for form, words in FORMS.items():
        rows = [r for r in trial.rows if r.form == form and r.criterion and r.hard_within]
        controls = [r for r in rows if r.criterion and not r.criterion.number]
        real = [r for r in rows if r not in controls and not _kinship(r)]
        if not real:
            continue
        best = max(real, key=_hard)
        fewest = min(real, key=lambda r: r.total(bad)[0] / max(1, r.total(bad)[1]))
        parts = [
            f"{words.capitalize()}, the largest AUC within cells without the easy models is "
            f"{_auc(best)} ({best.name}); {fewest.name} accepts the fewest models that are not "
            f"restored, {_of(fewest.total(bad))}."
        ]
        if controls:
            most = max(controls, key=_hard)
            parts.append(f"The better negative control reaches {_auc(most)} ({most.name}).")
        if kin := [r.name for r in rows if _kinship(r)]:
            verb = "rejects" if len(kin) == 1 else "reject"
            parts.append(
                f"Left out here: {', '.join(kin)}, which {verb} retrainings of the injected "
                "model's own draw: they detect the shared draw, not knowledge."
            )
        lines.append(" ".join(parts))
    missing = [axis.title for axis in AXES if axis.name not in rules.axes]
    certificates = {"certificate": "with the axes of the rules"} | {
        f"certificate + {title}": f"with {title} added, a default axis," for title in missing
    }
    for ours in [r for r in trial.rows if r.name in certificates]:
        through = [f"{name} {_of(ours.accepted[name])}" for name in bad if ours.accepted[name][0]]
        interval = share_interval(*ours.fresh, rules)
        limits = f" ({interval.low:.0%} to {interval.high:.0%})" if interval else ""
        lines.append(
            f"Our certificate {certificates[ours.name]} accepts {_of(ours.fresh)} fresh "
            f"retrainings{limits}. Accepted although not restored: {', '.join(through) or 'none'}."
        )
    return lines


def _criteria(trial: Trial) -> Table:
    bad = [adversary.label for adversary in trial.adversaries if adversary.wrong]
    rows: list[Row] = []
    for judged in trial.rows:
        about, ours = judged.criterion, ("certificate", "CBIRPT", "training")
        needs = (about.group, about.inputs, about.cost) if about else ours
        within, pooled = _estimate(judged.within), _estimate(judged.pooled)
        hard = (_estimate(judged.hard_within), _estimate(judged.hard_pooled))
        rows.append(
            row("criterion|number", judged.name, (about and about.number) or None)
            | row("group|inputs|cost|form", *needs, FORMS[judged.form])
            | row("AUC within cells|AUC pooled", within, pooled)
            | row("AUC within, hard|AUC pooled, hard", *hard)
            | row(
                "fresh accepted|not restored, accepted",
                _share(judged.fresh),
                _share(judged.total(bad)),
            )
            | {a.label: _share(judged.accepted[a.label]) for a in trial.adversaries}
        )
    reading = (
        "AUC of models that are not restored above retrainings, with limits from resampling cells; "
        "hard: without the injected model and interpolations with half of it or more. "
        "Columns of models: number of cells that accept the model."
    )
    return Table.of("criteria", "The trial of criteria", reading, rows)


def _counts(trial: Trial, rules: Rules) -> Table:
    rows: list[Row] = [
        row("criterion|form|model", judged.name, FORMS[judged.form], label)
        | row("accepted|share", _share(count), Estimate.of(share_interval(*count, rules)))
        for judged in trial.rows
        for label, count in (*judged.accepted.items(), (FRESH, judged.fresh))
    ]
    reading = "Accepted models of every kind, with Clopper–Pearson limits."
    return Table.of("criteria-counts", "Models accepted by every criterion", reading, rows)


def _adversaries(trial: Trial) -> Table:
    rows: list[Row] = []
    ours = next((judged for judged in trial.rows if judged.name == "certificate"), None)
    for adversary in trial.adversaries:
        values = row("model|truth|knows", adversary.label, adversary.truth, adversary.knows)
        accepted = _share(ours.accepted[adversary.label]) if ours else None
        values |= row("easy|certificate accepts", adversary.easy, accepted)
        for form, words in FORMS.items():
            counts = [
                judged.accepted[adversary.label]
                for judged in trial.rows
                if judged.form == form and judged.criterion and judged.criterion.number
            ]
            measured = [count for count, total in counts if total]
            values[f"never accepted by, {words}"] = Share(measured.count(0), len(measured))
        rows.append(values)
    reading = "What each model knows of the audit, and how many criteria reject it in every cell."
    return Table.of("criteria-adversaries", "Known-label models", reading, rows)


def _catalogue() -> Table:
    rows: list[Row] = [
        row("criterion|number|group|inputs", c.name, c.number or None, c.group, c.inputs)
        | row("cost|turn|score|source", c.cost, c.turn, c.formula, c.source)
        for c in CRITERIA
    ]
    letters = ", ".join(f"{letter} {words}" for letter, words in INPUTS.items())
    reading = f"Larger scores mean less restored. Inputs: {letters}."
    return Table.of("criteria-list", "Criteria", reading, rows)


def _alt(form: str) -> str:
    return (
        f"Each row is a criterion, {FORMS[form]}; each column a kind of model. The number is "
        "that of the cells that accept it; empty means none, a dash not measured. The "
        "darker a field, the larger the share. Right of the line are graded and restored models; "
        "the latter should be accepted."
    )


def _hard(row: Judged) -> float:
    return row.hard_within.estimate if row.hard_within else 0.0


def _auc(row: Judged) -> str:
    interval = row.hard_within
    assert interval is not None
    limits = f" ({interval.low:.2f} to {interval.high:.2f})" if interval.method != ONE_CELL else ""
    return f"{interval.estimate:.2f}{limits}"


def _kinship(row: Judged) -> bool:
    """Tell whether a criterion rejects most retrainings of the injected model's own draw."""
    accepted, total = row.accepted.get(SAME_DRAW, (0, 0))
    return 2 * accepted < total


def _estimate(interval: Interval | None) -> Estimate | None:
    """Return an AUC with its limits, which one cell cannot give."""
    alone = interval is not None and interval.method == ONE_CELL
    return Estimate.of(None if alone else interval, interval.estimate if interval else None)


def _of(count: tuple[int, int]) -> str:
    return f"{count[0]} of {count[1]}"


def _share(count: tuple[int, int]) -> Share | None:
    return Share(*count) if count[1] else None
