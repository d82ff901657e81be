"""Every table of a run, in the order a reader needs them; all computed from results read once.

A further table is one function here and its entry in the list below.
"""

from collections.abc import Callable, Iterable

from palimpsest.report.leaderboard import knobs_that_vary, leaderboard_table, settings_table
from palimpsest.report.results import (
    GROUPS,
    RunResults,
    cell_answers,
    cell_positions,
    control_label,
)
from palimpsest.report.table import P_VALUE, Estimate, Row, Share, Table
from palimpsest.stats.axes import Axis, axis, chosen
from palimpsest.stats.comparison import Comparison
from palimpsest.stats.controls import ControlKind
from palimpsest.stats.intervals import CONFIDENCE, clopper_pearson
from palimpsest.stats.models import Role
from palimpsest.stats.share import Scale
from palimpsest.stats.verdict import label_of
from palimpsest.stats.words import certified_cells, describe


def cells_table(results: RunResults) -> Table:
    """Return every planned cell: finished with its verdict and what it rests on, or why not."""
    finished = {cell.id: cell for cell in results.cells}
    missing = {cell.id: cell for cell in results.missing}
    rows: list[Row] = []
    for cell_id in results.planned:
        cell, absent = finished.get(cell_id), missing.get(cell_id)
        verdict = None if cell is None else cell.verdict
        screen, references = (verdict.screen, verdict.references) if verdict else (None, None)
        recipe = references and references.recipe
        far = recipe.retain_share if recipe else None
        alike, dose = references and references.homogeneity, verdict and verdict.dose
        headroom = cell and cell.headroom
        rows.append(
            {"cell": cell_id, "state": "finished" if absent is None else absent.state}
            | {"verdict": verdict and verdict.status, "candidate": verdict and verdict.candidate}
            | {"reason": absent.reason or None if absent else verdict and verdict.reason}
            | {"candidates": cell and len(cell.candidates), "failed": cell and len(cell.failed)}
            | {"survive the screen": screen and Share.of(not s.excluded for s in screen.screened)}
            | {"references": verdict and verdict.reference_count}
            | {"detection limit": verdict and verdict.detection_limit}
            | {"re-acquisition reached": dose and dose.fraction}
            | {"references alike, p": alike and alike.p, "recipe, share of base's distance": far}
            | {"inferable": verdict and verdict.inferable_share}
            | {"headroom, nats": headroom and Estimate.of(headroom.estimate)}
        )
    finished_share = Share(len(results.cells), len(results.planned))
    forms = dict.fromkeys(("detection limit", "re-acquisition reached", "inferable"), ".0%")
    forms |= {"references alike, p": P_VALUE, "recipe, share of base's distance": ".3f"}
    reading = (
        f"{finished_share} planned cells are finished. "
        f"{certified_cells(results.certified, len(results.judged))}"
    )
    return Table.of("cells", "Cells and their verdicts", reading, rows, forms)


def candidates_table(results: RunResults) -> Table:
    """Return every candidate with every number behind the verdict."""
    axes = chosen(results.rules)
    rows: list[Row] = [
        {"candidate": finding.name, "cell": cell.id, "label": finding.label}
        | _placed(finding.scale)
        | {"left": (left := finding.left) and left.share, "at most": left and left.bound}
        | _compared(finding.comparison, axes)
        | {"screen p": finding.screened.test.p_value}
        | {"screen p (Holm)": finding.screened.adjusted_p, "excluded": finding.excluded}
        | {"median gap": finding.screened.gap}
        | {"cost, retrainings": finding.cost}
        | {"knobs that vary": knobs_that_vary(cell.models[finding.name], cell.models.values())}
        | {f"{axis.title}, {axis.unit}": finding.values.get(axis.name) for axis in axes}
        | {"why": describe(finding)}
        for cell, verdict in results.judged
        for finding in verdict.findings
    ]
    reading = (
        "Values on the axes are distances from the mean retraining, in standard deviations of the "
        "retrainings. By the rank rule, p is at least 1/(K + 1) with K retrainings. distance: as "
        "far from retrainings as a mixture with this share of the injected weights (90 % interval; "
        "100 %: as far as the injected model, or further); no share of knowledge. left, at most: "
        "share of the injected weights left, and its 95 % bound, unless they are hidden."
    )
    return Table.of("candidates", "Candidates", reading, rows, _forms(axes))


def controls_table(results: RunResults) -> Table:
    """Return every control of every cell and whether it came out as it should."""
    axes = chosen(results.rules)
    rows: list[Row] = [
        {"cell": cell.id, "control": control_label(control), "model": control.name}
        | {"kind": GROUPS[control.kind], "should be": f"{control.kind.expected}ed"}
        | {"was": control.missing or ("rejected" if control.rejected else "accepted")}
        | {"label": label_of(control.comparison)}
        | _placed(verdict.scales.get(control.name))
        | _compared(control.comparison, axes)
        for cell, verdict in results.judged
        for control in verdict.controls
    ]
    reading = "Models of known truth, judged by the same test as the candidates."
    return Table.of("controls", "Controls", reading, rows, _forms(axes))


def _placed(scale: Scale | None) -> Row:
    """Return where a model lies on the scale; what is beyond the injected model is 1."""
    columns = ("distance", "from", "to")
    if scale is None:
        return dict.fromkeys(columns)
    numbers = (scale.share, scale.low, scale.high)
    return {column: min(number, 1.0) for column, number in zip(columns, numbers)}


def _compared(comparison: Comparison | None, axes: Iterable[Axis]) -> Row:
    gaps = {} if comparison is None else comparison.gaps
    worst = None if comparison is None else comparison.worst
    row: Row = {"p": comparison and comparison.p, "test": comparison and comparison.test}
    row |= {"worst axis": worst and axis(worst.axis).title, "worst axis, sd": worst and worst.sd}
    return row | {a.title: gaps[a.name].sd if a.name in gaps else None for a in axes}


def _forms(axes: Iterable[Axis]) -> dict[str, str]:
    forms = dict.fromkeys((axis.title for axis in axes), "+.1f") | {"worst axis, sd": "+.1f"}
    forms |= dict.fromkeys(("distance", "from", "to"), ".0%") | {"left": ".1%", "at most": ".1%"}
    return forms | dict.fromkeys(("p", "screen p", "screen p (Holm)"), P_VALUE)


def power_table(results: RunResults) -> Table:
    """Return how often each kind of control came out as it should, with the lower limit of that
    rate; models that share a bag of references share its luck."""
    groups: dict[tuple[str, str], list[tuple[str, bool]]] = {}
    for cell, verdict in results.judged:
        for control in verdict.controls:
            together = control.kind is ControlKind.KNOWN_LABEL and len(results.planned) == 1
            what = GROUPS[control.kind] if together else control_label(control)
            if control.as_expected is not None:
                key = (what, f"{control.kind.expected}ed")
                groups.setdefault(key, []).append((cell.id, control.as_expected))
    rows: list[Row] = []
    for (what, expected), events in groups.items():
        share = Share.of(right for _, right in events)
        limit = clopper_pearson(share.count, share.total, side="lower").low
        rows.append(
            {"model": what, "should be": expected, "was": share}
            | {"rate at least": limit, "cells": len({cell for cell, _ in events})}
        )
    reading = f"Models of known truth; the last rate holds with confidence {CONFIDENCE:g}."
    title = "What this audit detects"
    return Table.of("power", title, reading, rows, {"rate at least": ".0%"})


def axes_table(results: RunResults) -> Table:
    """Return what every axis measures, and how far toward the injected model a model must move on
    it alone to be detected."""
    rows: list[Row] = []
    for entry in chosen(results.rules):
        found = [verdict.sensitivity.get(entry.name) for _, verdict in results.judged]
        known = sorted(share for share in found if share is not None)
        limits = Estimate(known[len(known) // 2], known[0], known[-1]) if known else None
        rows.append(
            {"axis": entry.title, "measures": entry.meaning, "unit": entry.unit}
            | {"far below": entry.low.words, "far above": entry.high.words}
            | {"detected from": limits, "detected in": Share(len(known), len(found))}
        )
    reading = (
        "Detected from: the share of the way to the injected model at which a retraining that "
        "moved on this axis alone is rejected; empty where even the whole way is not enough."
    )
    return Table.of("axes", "The axes", reading, rows, {"detected from": ".0%"})


def measures_table(results: RunResults) -> Table:
    """Return the numbers that plug-ins measured, which are not compared."""
    compared = {entry.measure for entry in chosen(results.rules)}
    rows: list[Row] = [
        {"cell": cell.id, "model": name, "measure": measure, "value": value}
        for cell in results.cells
        for name in cell.evaluation
        for measure, value in cell.evaluation[name].extra.items()
        if measure not in compared
    ]
    reading = "Numbers that plug-ins measured. They are not compared with retrainings."
    return Table.of("measures", "Further measures", reading, rows)


def positions_table(results: RunResults) -> Table:
    """Return every model on every axis on which it was compared: the data of the pictures."""
    rows: list[Row] = []
    for cell in results.cells:
        for position in cell_positions(cell, results.rules):
            for name, sd in position.sd.items():
                value = axis(name).read(cell.evaluation[position.name])
                row: Row = {"cell": cell.id, "model": position.name, "group": position.group}
                rows.append(row | {"axis": name, "value": value, "sd": sd})
    reading = "Distances from the mean retraining, in standard deviations of the retrainings."
    return Table.of("positions", "Every model on every axis", reading, rows)


def answers_table(results: RunResults) -> Table:
    """Return what models answer: one row per cell, question and model."""
    rows: list[Row] = [
        {"cell": cell.id, "set": said.set, "fact": said.fact}
        | {"question": results.question(said.prompt), "truth": said.truth, "model": said.model}
        | {"answer": said.answer, "right": said.right}
        | {"rank of the truth": said.rank, "probability of the truth": said.chance}
        for cell in results.cells
        for said in cell_answers(cell)
    ]
    reading = (
        "The greedy answer of each model; the rank is that of the truth's least likely token, each "
        "token given those before it."
    )
    return Table.of("answers", "What the models answer", reading, rows)


def not_made_table(results: RunResults) -> Table:
    """Return candidates that failed, and methods that do not apply to an architecture."""
    rows: list[Row] = [
        {"cell": cell.id, "candidate": name, "why": model.failure.kind.replace("_", " ")}
        | {"reason": model.failure.reason}
        for cell in results.cells
        for name, model in cell.models.items()
        if model.role is Role.CANDIDATE and model.failure is not None
    ]
    reading = "These candidates are not judged and not counted."
    return Table.of("not-made", "Candidates without scores", reading, rows)


TABLES: tuple[Callable[[RunResults], Table], ...] = (
    *(cells_table, candidates_table, power_table, axes_table, controls_table),
    *(answers_table, positions_table, measures_table, not_made_table),
)
STUDY_TABLES = (leaderboard_table, settings_table)
"""Of studies over several cells."""


def run_tables(results: RunResults) -> dict[str, Table]:
    """Return every table that the run has rows for, by name."""
    tables = [table(results) for table in TABLES]
    if len(results.planned) > 1 and results.judged:
        tables += [table({results.name: results}) for table in STUDY_TABLES]
    return {table.name: table for table in tables if table.rows}
