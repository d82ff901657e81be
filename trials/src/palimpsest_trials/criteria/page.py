"""The page of the trial of criteria: sentences, a table and heat maps."""

from dataclasses import dataclass
from pathlib import Path

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from palimpsest.errors import InputError
from palimpsest.report.canvas import INK, QUIET, Picture, figure, figure_bytes, sheet
from palimpsest.report.page import embedded, template
from palimpsest.report.results import RunResults
from palimpsest.report.table import Estimate, Row, Share, Table, as_csv, shown
from palimpsest.run.files import make_folder, write_bytes
from palimpsest.text import shortened
from palimpsest_trials.criteria.trial import FRESH, SAME_DRAW, Trial, run_trial
from palimpsest_trials.criteria.trial import Row as Judged

FORMS = {"published": "as published", "calibrated": "calibrated"}
WRONG = LinearSegmentedColormap.from_list("wrong", ["#f6e3cf", "#e8b27a", "#8c2d04"])
RIGHT = LinearSegmentedColormap.from_list("right", ["#dcebe6", "#6fb8a4", "#0b5d48"])
"""From few accepted to all: of models that should not be, and of the others."""


@dataclass(frozen=True, slots=True)
class TrialReport:
    """What a page shows of a trial."""

    sentences: list[str]
    table: Table
    pictures: dict[str, Picture]


def write_trial(results: RunResults) -> tuple[Path, TrialReport]:
    """Write the page of a trial with its table and figures into RUN/criteria; return both."""
    report, folder = report_trial(results), results.path / "criteria"
    images = {name: embedded(picture) for name, picture in report.pictures.items()}
    source = Path(__file__).with_name("criteria.html.j2").read_text("utf-8")
    page = template("macros.html.j2").environment.from_string(source)
    files = {
        "index.html": page.render(results=results, trial=report, images=images).encode(),
        "tables/criteria.csv": as_csv(report.table).encode(),
    }
    for name, picture in report.pictures.items():
        for end in ("svg", "png"):
            files[f"figures/{name}.{end}"] = figure_bytes(picture.figure, end)
    for name, content in files.items():
        make_folder((folder / name).parent)
        write_bytes(folder / name, content)
    return folder / "index.html", report


def report_trial(results: RunResults) -> TrialReport:
    """Return the trial of a run in sentences, a table and figures."""
    trial = run_trial(results)
    if trial is None:
        raise InputError(
            f"{results.path}: no measures of criteria are stored; expected a study whose plan has "
            "measures: [palimpsest_trials:Criteria], such as trials/plans/criteria.yaml"
        )
    pictures = {f"criteria-{form}": heat_map(trial, form) for form in FORMS}
    return TrialReport(sentences(trial), criteria_table(trial), pictures)


def sentences(trial: Trial) -> list[str]:
    """Return what the trial shows, from its numbers."""
    tried = len({row.name for row in trial.rows if row.criterion})
    lines = [
        f"{tried} criteria in two forms, on {trial.models} known-label models in {trial.cells} "
        f"cells, {len(trial.wrong)} kinds of which are not restored."
    ]
    lines += [line for form in FORMS if (line := _best(trial, form))]
    for ours in (row for row in trial.rows if row.name == "certificate"):
        through = [f"{k} {ours.accepted[k]}" for k in trial.wrong if ours.accepted[k].count]
        lines.append(f"Our certificate accepts {ours.accepted[FRESH.label]} fresh retrainings.")
        lines.append(f"Accepted although not restored: {', '.join(through) or 'none'}.")
    return lines


def _best(trial: Trial, form: str) -> str:
    """Return which criteria of one form do best, and what the negative controls reach."""
    rows = [r for r in trial.rows if r.form == form and r.criterion and r.hard_within]
    controls = [r for r in rows if r.criterion and not r.criterion.number]
    # A criterion that rejects retrainings of the injected model's own draw detects the draw.
    own = [r.accepted.get(SAME_DRAW.label, Share(0, 0)) for r in rows]
    kin = [r for r, share in zip(rows, own) if 2 * share.count < share.total]
    real = [r for r in rows if r not in controls and r not in kin]
    if not real:
        return ""
    wrong = {r.name: r.total(trial.wrong) for r in real}
    fewest = min(wrong, key=lambda name: wrong[name].count / max(1, wrong[name].total))
    best = max(real, key=_hard)
    text = (
        f"{FORMS[form].capitalize()}, the largest AUC within cells without the easy models is "
        f"{shown(best.hard_within, '.2f')} ({best.name}); {fewest} accepts the fewest models that "
        f"are not restored, {wrong[fewest]}."
    )
    if controls:
        most = max(controls, key=_hard)
        text += f" The better negative control reaches {_hard(most):.2f} ({most.name})."
    if kin:
        names = ", ".join(r.name for r in kin)
        text += f" Left out: {names}: they detect the injected model's draw, not knowledge."
    return text


def criteria_table(trial: Trial) -> Table:
    """Return every criterion in both forms: AUCs, and the models that it accepts."""
    rows: list[Row] = []
    for judged in trial.rows:
        about = judged.criterion
        rows.append(
            {"criterion": judged.name, "number": (about and about.number) or None}
            | {"group": about.group if about else "certificate"}
            | {"inputs": about.inputs if about else "CBIRPT"}
            | {"cost": about.cost if about else "training", "form": FORMS[judged.form]}
            | {"AUC within cells": judged.within, "AUC pooled": judged.pooled}
            | {"AUC within, hard": judged.hard_within, "AUC pooled, hard": judged.hard_pooled}
            | {"fresh accepted": judged.accepted[FRESH.label]}
            | {"not restored, accepted": judged.total(trial.wrong)}
            | {kind.label: judged.accepted[kind.label] for kind in trial.kinds}
        )
    reading = (
        "AUC of models that are not restored above retrainings, with limits from resampling cells; "
        "hard: without the injected model and mixtures with half of it or more. Columns of models: "
        "number of cells that accept the model."
    )
    return Table.of("criteria", "The trial of criteria", reading, rows)


def _hard(row: Judged) -> float:
    return row.hard_within.value if isinstance(row.hard_within, Estimate) else 0.0


@figure()
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
        f"Each row is a criterion, {how}. The number is in how many of {trial.cells} cells the "
        "model is accepted; empty means none, a dash means not measured. Left of the line every "
        "accepted model is an error."
    )
    return Picture(f"criteria-{form}", f"Models accepted, criteria {form}", "", about, figure)
