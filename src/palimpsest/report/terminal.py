"""The verdict and the candidate table for a terminal, as wide as it is, and the same as JSON."""

import io
import json
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from palimpsest.analysis.results import CellResult, read_run
from palimpsest.analysis.table import Table, Value, percent, printable, row
from palimpsest.criteria.axes import Axis, axis
from palimpsest.criteria.controls import Control
from palimpsest.criteria.retraining import Comparison
from palimpsest.report.cell_tables import outcome
from palimpsest.report.positions import label
from palimpsest.verdict import Finding, Verdict
from palimpsest.verdict_words import refusals

__all__ = ["candidate_lines", "printable", "second_lines", "summary_json", "summary_lines"]


def summary_lines(run: Path | str) -> list[str]:
    """Return what a person reads after a run: one cell in full, or one line per cell."""
    results = read_run(run)
    missing = [
        f"{absent.id}: {absent.state} {absent.reason}".rstrip() for absent in results.missing
    ]
    if len(results.planned) == 1 and results.cells:
        (cell,) = results.cells
        verdict = "No candidate." if cell.verdict is None else cell.verdict.paragraph()
        why = [] if cell.verdict is None else refusal_lines(cell.verdict)
        return [candidate_lines(cell), *why, "", *missing, printable(verdict)]
    lines = [_cell_line(cell) for cell in results.cells] + missing
    if len(results.planned) > 1:
        lines.append(
            f"{results.certified} of {len(results.cells)} finished cells certify a candidate; "
            f"{len(results.missing)} of {len(results.planned)} planned cells are missing."
        )
    return lines


def summary_json(run: Path | str) -> dict[str, Any]:
    """Return the same as plain values."""
    results = read_run(run)
    return {
        "name": results.name,
        "rules": results.rules_hash,
        "planned": len(results.planned),
        "missing": {
            absent.id: f"{absent.state} {absent.reason}".strip() for absent in results.missing
        },
        "cells": {
            cell.id: None
            if cell.verdict is None
            else json.loads(cell.verdict.to_json()) | {"paragraph": cell.verdict.paragraph()}
            for cell in results.cells
        },
    }


def candidate_lines(cell: CellResult, width: int | None = None) -> str:
    """Return the controls and candidates of a cell as a table that fits the terminal."""
    verdict = cell.verdict
    axes = _axes(verdict)
    compared = verdict is not None and any(f.comparison is not None for f in verdict.findings)
    heads = [_narrow(entry.short) for entry in axes]
    names = "|".join(["model", "p", *(["rest."] if compared else []), *heads, "outcome"])
    judged: list[tuple[str, Finding | Control, str]] = []
    for control in () if verdict is None else verdict.controls:
        if control.kind not in ("reference", "retraining") and control.comparison is not None:
            share = "" if control.share is None else f"{percent(control.share)} left"
            text = "differs" if control.rejected else "passes"
            judged.append((share or label(cell, control.name), control, text))
    controls = len(judged)
    for finding in verdict.findings if verdict else ():
        text = "screen" if finding.excluded else "passes" if finding.clears else "differs"
        judged.append((finding.name, finding, text if finding.comparison else outcome(finding)))
    rows: list[dict[str, Value]] = []
    for name, model, text in judged:
        values: list[Value] = [name]
        if model.comparison is not None:
            values += [model.comparison.p, model.comparison.restored]
            values += [_distance(model.comparison, entry.name) for entry in axes]
        elif isinstance(model, Finding):
            values += [model.adjusted_p, *(model.values.get(entry.name) for entry in axes)]
        rows.append(row(names, *values, text))
    blank = [None] * (len(axes) + (2 if compared else 1))
    for name, reason in cell.failed.items():
        rows.append(row(names, name, *blank, f"failed: {reason}"))
    forms = dict.fromkeys(heads, ".2f") | {"p": ".2g", "rest.": ".0%"}
    legend = "; ".join(_legend(verdict, axes, compared)) + "."
    table = Table.of("candidates", f"{cell.id}: controls and candidates", legend, rows, forms)
    return table_lines(table, width, controls)


def refusal_lines(verdict: Verdict, most: int = 12) -> list[str]:
    """Return why candidates were not accepted, at most so many lines, after a blank one; none where
    the audit could not judge them."""
    judged = verdict.reason in (None, "all_excluded", "distinguishable")
    why = refusals(verdict) if judged else []
    if not why:
        return []
    left = len(why) - most
    more = [f"  … and {left} more, in the report."] if left > 0 else []
    wide = _width()
    shown = [
        part
        for line in why[:most]
        for part in textwrap.wrap(
            printable(line),
            wide,
            initial_indent="  ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
    ]
    return ["", "Not accepted:", *shown, *more]


def second_lines(table: Table) -> str:
    """Return what a second suite found, one row per selector, as a table that fits the terminal."""
    about = (
        f"{table.reading} forget distance: |median forget delta − the reference's| on the second "
        "pool, nats, mean over cells; difference: minus the trained-probe best's in the same "
        "cells, below 0 is nearer to the reference; last columns: number of cells in which the "
        "pick is nearer, is within retraining noise δ_f, and is excluded by the screen."
    )
    return table_lines(replace(table, reading=about))


def table_lines(table: Table, width: int | None = None, dim: int = 0) -> str:
    """Return a table with its reading, as wide as the terminal; its first ``dim`` rows are dim."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid

    wide = width or _width()
    grid = Grid(title=printable(table.title), title_justify="left", box=box.SIMPLE_HEAD)
    texts = [
        [printable(table.shown(*pair)).replace("–", "") for pair in zip(table.columns, values)]
        for values in table.rows
    ]
    gap = 2 if wide >= 100 else 1
    if texts:  # names first: they are broken at their hyphens, where they do not fit on a line
        heads = [column.split("\n") for column in table.columns]
        sizes = [max(map(len, (*h, *cells))) for h, cells in zip(heads, zip(*texts))][1:]
        part = max(len(part) + 1 for values in texts for part in values[0].split("-"))
        if sum(sizes) + 2 * len(sizes) + 2 + part > wide:
            gap = 1
        for values in texts:
            values[0] = _folded(values[0], max(9, wide - sum(sizes) - gap * len(sizes) - 2))
    grid.pad_edge, grid.padding = False, (0, gap - 1, 0, 0)
    for place, column in enumerate(table.columns):
        words = any(isinstance(values[place], str) for values in table.rows)
        words = words and column not in table.forms
        lines = [line for values in texts for line in values[place].split("\n")]
        least = max(map(len, lines), default=0)
        justify: Literal["left", "right"] = "left" if words else "right"
        grid.add_column(
            column,
            justify=justify,
            overflow="fold",
            min_width=min(9, least) if words and place else least,
        )
    for place, values in enumerate(texts):
        grid.add_row(*values, style="dim" if place < dim else None, end_section=place == dim - 1)
    out = io.StringIO()
    Console(file=out, width=wide, markup=False, highlight=False).print(grid)
    drawn = [line.rstrip() for line in out.getvalue().rstrip().split("\n")]
    return "\n".join([*drawn, "", *textwrap.wrap(table.reading, wide, break_on_hyphens=False)])


def _width() -> int:
    return max(60, shutil.get_terminal_size((100, 24)).columns)


def _axes(verdict: Verdict | None) -> tuple[Axis, ...]:
    """Return the axes that the verdict looked at, in their order."""
    names = dict.fromkeys(name for f in (verdict.findings if verdict else ()) for name in f.values)
    return tuple(axis(name) for name in names)


def _cell_line(cell: CellResult) -> str:
    verdict = cell.verdict
    if verdict is None:
        return f"{cell.id}: no candidate"
    text = f"uncertified: {verdict.reason}"
    if verdict.certified:
        text = f"certified: {verdict.candidate}"
    return printable(f"{cell.id}: {text} ({len(cell.survivors)}/{len(cell.candidates)} survive)")


def _legend(verdict: Verdict | None, axes: Sequence[Axis], compared: bool) -> Iterator[str]:
    """Yield what the columns of a cell's table mean."""
    if verdict is None:
        yield "no candidate was scored"
        return
    if compared:
        alpha = verdict.numbers["alpha"]
        yield f"p: p-value of the comparison with the retrainings, {alpha:g} or less rejects"
        yield "rest.: restored, 100 % minus the largest gap on any axis"
        yield "axes: standard deviations from the mean retraining, * marks the worst"
        within = "equivalent to" if verdict.numbers["margin"] else "indistinguishable from"
        yield f"passes: {within} a retraining; screen: excluded by the screen"
        yield "50 % left: a retraining with half of the injected weights mixed in"
    else:
        yield "p: p-value of the screen, Holm-corrected over the candidates"
        yield "axes: the values"
    for entry in axes:
        words = entry.meaning.rstrip(".")
        yield f"{entry.short}: {words if words[1].isupper() else words[0].lower() + words[1:]}"


def _distance(comparison: Comparison, name: str) -> str:
    """Return a distance in as few digits as it needs, marked on the worst axis."""
    value = comparison.z.get(name)
    if value is None:
        return ""
    text = f"{value:+.1f}" if abs(value) < 10 else f"{value:+.0f}"
    return f"{text}*" if comparison.worst.axis == name else text


def _folded(name: str, width: int) -> str:
    """Return a name on as many lines as it needs, broken after its hyphens and underscores."""
    lines = [""]
    for part in re.findall(r"[^-_]*[-_]?", name):
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _narrow(name: str) -> str:
    """Return the heading of a column, on two lines where it is long."""
    return name if len(name) <= 6 else f"{name[:4]}-\n{name[4:]}"
