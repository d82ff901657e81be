"""The page of the trial of criteria: ``criteria.html`` beside the report, with tables and figures.

Everything on it is computed from stored scores; the same files give the same bytes.
"""

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from palimpsest.analysis.criteria import (
    ONE_CELL,
    SAME_DRAW,
    Row,
    Trial,
    has_trial,
    run_trial,
    share_interval,
)
from palimpsest.analysis.results import RunResults
from palimpsest.criteria.catalogue import CRITERIA, INPUTS
from palimpsest.criteria.intervals import Interval
from palimpsest.criteria.rules import Rules
from palimpsest.report.formats import Estimate, Share, Table, Value, as_csv, as_markdown, shown
from palimpsest.report.plots import criteria as plots
from palimpsest.report.plots.canvas import colour_rules, inline_svg, png_bytes, svg_bytes
from palimpsest.run.store import make_folder, write_bytes

TEMPLATE = Path(__file__).parent / "template"
FRESH = "fresh retraining"
FORMS = {"published": "as published", "calibrated": "calibrated"}


def write_criteria(results: RunResults, folder: Path) -> Path | None:
    """Return the path of the trial's page, written with its tables; None without a trial."""
    if not has_trial(results):
        return None
    trial = run_trial(results)
    tables = trial_tables(trial, results.rules)
    figures = {form: _heat_map(trial, form) for form in FORMS}
    files: dict[Path, bytes] = {}
    for table in tables:
        files[folder / "tables" / f"{table.name}.csv"] = as_csv(table).encode()
        files[folder / "tables" / f"{table.name}.md"] = as_markdown(table).encode()
    for form, figure in figures.items():
        files[folder / "figures" / f"criteria-{form}.svg"] = svg_bytes(figure)
        files[folder / "figures" / f"criteria-{form}.png"] = png_bytes(figure)
    style = (TEMPLATE / "report.css").read_text() + colour_rules()
    script = (TEMPLATE / "criteria.js").read_text()
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(shown=shown, sort_value=_sort_value, number=_is_number)
    page = environment.get_template("criteria.html.j2").render(
        style=Markup(style),
        script=Markup(script),
        csp=_policy(style, script),
        name=results.name,
        sentences=sentences(trial, results.rules),
        forms=FORMS,
        drawn={form: inline_svg(f, f"criteria-{form}", _alt(form)) for form, f in figures.items()},
        tables={table.name: table for table in tables},
        inputs=INPUTS,
        cells=trial.cells,
    )
    for part in (folder, folder / "tables", folder / "figures"):
        make_folder(part)
    for path, data in files.items():
        write_bytes(path, data)
    write_bytes(folder / "criteria.html", page.encode())
    return folder / "criteria.html"


def trial_tables(trial: Trial, rules: Rules) -> tuple[Table, ...]:
    """Return the tables of the trial: every criterion, every count, adversaries, the catalogue."""
    return (
        _criteria(trial, rules),
        _counts(trial, rules),
        _adversaries(trial, rules),
        catalogue_table(),
    )


def catalogue_table() -> Table:
    """Return what every criterion is, where it comes from, what it needs and costs."""
    rows: list[dict[str, Value]] = [
        {
            "criterion": c.name,
            "number": c.number or None,
            "group": c.group,
            "inputs": c.inputs,
            "cost": c.cost,
            "turn": c.turn,
            "score": c.formula,
            "source": c.source,
        }
        for c in CRITERIA
    ]
    reading = "Larger scores mean less restored. Inputs: " + ", ".join(
        f"{letter} {words}" for letter, words in INPUTS.items()
    )
    return Table.of("criteria-list", "Criteria", f"{reading}.", rows)


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
    for row in trial.rows:
        if row.name == "certificate":
            through = [
                f"{label} {_of(row.accepted[label])}" for label in bad if row.accepted[label][0]
            ]
            interval = share_interval(*row.fresh, rules)
            limits = f" ({interval.low:.0%} to {interval.high:.0%})" if interval else ""
            passed = ", ".join(through) or "none"
            lines.append(
                f"Our certificate with the axes of the rules accepts {_of(row.fresh)} fresh "
                f"retrainings{limits}. Accepted although not restored: {passed}."
            )
    return lines


def _criteria(trial: Trial, rules: Rules) -> Table:
    labels = [adversary.label for adversary in trial.adversaries]
    bad = [a.label for a in trial.adversaries if a.wrong]
    rows: list[dict[str, Value]] = []
    for row in trial.rows:
        about = row.criterion
        values: dict[str, Value] = {
            "criterion": row.name,
            "number": about.number if about and about.number else None,
            "group": about.group if about else "certificate",
            "inputs": about.inputs if about else "CBIRPT",
            "cost": about.cost if about else "training",
            "form": FORMS[row.form],
            "AUC within cells": _estimate(row.within),
            "AUC pooled": _estimate(row.pooled),
            "AUC within, hard": _estimate(row.hard_within),
            "AUC pooled, hard": _estimate(row.hard_pooled),
            "fresh accepted": _share(row.fresh),
            "not restored, accepted": _share(row.total(bad)),
        }
        rows.append(values | {label: _share(row.accepted[label]) for label in labels})
    reading = (
        "AUC of models that are not restored above retrainings, with limits from resampling cells; "
        "hard: without the injected model and interpolations with half of it or more. "
        "Columns of models: number of cells that accept the model."
    )
    return Table.of("criteria", "The trial of criteria", reading, rows)


def _counts(trial: Trial, rules: Rules) -> Table:
    rows: list[dict[str, Value]] = []
    for row in trial.rows:
        for label, count in (*row.accepted.items(), (FRESH, row.fresh)):
            rows.append(
                {
                    "criterion": row.name,
                    "form": FORMS[row.form],
                    "model": label,
                    "accepted": _share(count),
                    "share": Estimate.of(share_interval(*count, rules)),
                }
            )
    return Table.of(
        "criteria-counts",
        "Models accepted by every criterion",
        "Accepted models of every kind, with Clopper–Pearson limits.",
        rows,
    )


def _adversaries(trial: Trial, rules: Rules) -> Table:
    rows: list[dict[str, Value]] = []
    ours = next((row for row in trial.rows if row.name == "certificate"), None)
    for adversary in trial.adversaries:
        values: dict[str, Value] = {
            "model": adversary.label,
            "truth": adversary.truth,
            "knows": adversary.knows,
            "easy": adversary.easy,
            "certificate accepts": _share(ours.accepted[adversary.label]) if ours else None,
        }
        for form, words in FORMS.items():
            counts = [
                row.accepted[adversary.label]
                for row in trial.rows
                if row.form == form and row.criterion and row.criterion.number
            ]
            measured = [count for count in counts if count[1]]
            never = sum(count[0] == 0 for count in measured)
            values[f"never accepted by, {words}"] = Share(never, len(measured))
        rows.append(values)
    return Table.of(
        "criteria-adversaries",
        "Known-label models",
        "What each model knows of the audit, and how many criteria reject it in every cell.",
        rows,
    )


def _heat_map(trial: Trial, form: str) -> Figure:
    rows = [row for row in trial.rows if row.form == form]
    groups = [row.criterion.group if row.criterion else "certificate" for row in rows]
    dividers = [n for n in range(1, len(rows)) if groups[n] != groups[n - 1]]
    right = [a.label for a in trial.adversaries if not a.wrong]
    columns = [a.label for a in trial.adversaries if a.wrong] + right + [FRESH]
    named = [(_title(row), {**row.accepted, FRESH: row.fresh}) for row in rows]
    return plots.heat_map(named, columns, dividers, len(right) + 1)


def _title(row: Row) -> str:
    return f"{row.criterion.number or '–'} {row.criterion.title}" if row.criterion else row.name


def _alt(form: str) -> str:
    return (
        f"Each row is a criterion, {FORMS[form]}; each column a kind of model. The number is "
        "that of the cells that accept it; empty means none, a dash not measured. The "
        "darker a field, the larger the share. Right of the line are graded and restored models; "
        "the latter should be accepted."
    )


def _hard(row: Row) -> float:
    return row.hard_within.estimate if row.hard_within else 0.0


def _auc(row: Row) -> str:
    interval = row.hard_within
    assert interval is not None
    limits = f" ({interval.low:.2f} to {interval.high:.2f})" if interval.method != ONE_CELL else ""
    return f"{interval.estimate:.2f}{limits}"


def _kinship(row: Row) -> bool:
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


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float | Share | Estimate) and not isinstance(value, bool)


def _sort_value(value: Value) -> float | None:
    if isinstance(value, Share):
        return value.count / value.total
    number = value.value if isinstance(value, Estimate) else value
    return float(f"{number:.6g}") if isinstance(number, int | float) else None


def _policy(style: str, script: str) -> str:
    def digest(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; style-src '{digest(style)}'; script-src '{digest(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
