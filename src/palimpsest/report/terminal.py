"""The verdict and the candidate table for a terminal, as wide as it is, and the same as JSON."""

import io
import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from palimpsest.analysis.results import CellResult, read_run
from palimpsest.analysis.second_suite import Comparison
from palimpsest.criteria.axes import Axis, axis
from palimpsest.report.bar_tables import second_suite_table
from palimpsest.report.cell_tables import outcome
from palimpsest.report.formats import Estimate, percent, printable
from palimpsest.report.positions import control_label
from palimpsest.verdict import Verdict

__all__ = ["candidate_lines", "printable", "second_lines", "summary_json", "summary_lines"]

SECOND = (
    "cells",
    "distance",
    "trained-\nprobe's",
    "difference",
    "nearer\nin",
    "within\nδ in",
    "excluded\nin",
)
"""Columns of a second suite's table after the selector."""


def summary_lines(run: Path | str) -> list[str]:
    """Return what a person reads after a run: one cell in full, or one line per cell."""
    results = read_run(run)
    missing = [f"{one.id}: {one.state} {one.reason}".rstrip() for one in results.missing]
    if len(results.planned) == 1 and results.cells:
        (cell,) = results.cells
        verdict = "No candidate." if cell.verdict is None else cell.verdict.paragraph()
        return [candidate_lines(cell), "", *missing, printable(verdict)]
    lines = [_cell_line(cell) for cell in results.cells] + missing
    if len(results.planned) > 1:
        certified = sum(bool(cell.verdict and cell.verdict.certified) for cell in results.cells)
        lines.append(
            f"{certified} of {len(results.cells)} finished cells certify a candidate; "
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
        "missing": {one.id: f"{one.state} {one.reason}".strip() for one in results.missing},
        "cells": {
            cell.id: None
            if cell.verdict is None
            else json.loads(cell.verdict.to_json()) | {"paragraph": cell.verdict.paragraph()}
            for cell in results.cells
        },
    }


def candidate_lines(cell: CellResult, width: int | None = None) -> str:
    """Return the candidates and controls of a cell as a table that fits the terminal."""
    verdict = cell.verdict
    axes = _axes(verdict)
    compared = verdict is not None and any(f.comparison is not None for f in verdict.findings)
    table = _table(f"{cell.id}: candidates")
    table.add_column("model", overflow="fold", min_width=12)
    table.add_column("p", justify="right", no_wrap=True)
    if compared:
        table.add_column("rest.", justify="right", no_wrap=True)
    for entry in axes:
        table.add_column(_narrow(entry.short), justify="right", no_wrap=True)
    table.add_column("outcome", overflow="fold", min_width=10)
    for control in () if verdict is None else verdict.controls:
        if control.kind not in ("reference", "retraining") and control.comparison is not None:
            text = "rejected" if control.rejected else "accepted"
            values = [control.comparison.z.get(entry.name) for entry in axes]
            row = [printable(control_label(cell, control)), f"{control.comparison.p:.2g}", ""]
            table.add_row(*row, *(_distance(value) for value in values), text, style="dim")
    table.add_section()
    for finding in () if verdict is None else verdict.findings:
        comparison = finding.comparison
        row = [printable(finding.name)]
        if compared:
            row += ["", ""]
            if comparison is not None:
                restored = comparison.restored
                row[1:] = [f"{comparison.p:.2g}", "" if restored is None else percent(restored)]
            distances = {} if comparison is None else comparison.z
            row += [_distance(distances.get(entry.name)) for entry in axes]
        else:
            row += [f"{finding.adjusted_p:.2g}"]
            row += [_number(finding.values.get(entry.name)) for entry in axes]
        table.add_row(*row, printable(outcome(finding)))
    for name, reason in cell.failed.items():
        blank = [""] * (len(axes) + (2 if compared else 1))
        table.add_row(printable(name), *blank, printable(f"failed: {reason}"))
    legend = "; ".join(_legend(verdict, axes, compared)) + "."
    return "\n".join([_drawn(table, width), "", *textwrap.wrap(legend, _wide(width))])


def second_lines(found: Sequence[Comparison], width: int | None = None) -> str:
    """Return what a second suite found, one row per selector, as a table that fits the terminal."""
    table = _table("Frozen picks on the second pool")
    table.add_column("selector", no_wrap=True)
    for name in SECOND:
        table.add_column(name, justify="right", no_wrap=name != "difference")
    for one in found:
        gap = Estimate.of(one.difference, one.distance - one.trained_probe_distance)
        distances = f"{one.distance:.2f}", f"{one.trained_probe_distance:.2f}", _interval(gap)
        counts = one.nearer, one.within_noise, one.excluded
        table.add_row(one.selector, str(one.cells), *distances, *map(str, counts))
    about = (
        "distance: |median forget delta − the reference's| on the second pool, nats, mean over "
        "cells; difference: minus the trained-probe best's in the same cells, below 0 is nearer to "
        "the reference; then in how many cells the pick is nearer, within retraining noise δ, and "
        "excluded by the screen. "
    )
    about += second_suite_table(tuple(found)).reading
    return "\n".join([_drawn(table, width), "", *textwrap.wrap(about, _wide(width))])


def _axes(verdict: Verdict | None) -> tuple[Axis, ...]:
    """Return the axes that the verdict looked at, in their order."""
    names = dict.fromkeys(name for f in (verdict.findings if verdict else ()) for name in f.values)
    return tuple(axis(name) for name in names)


def _cell_line(cell: CellResult) -> str:
    verdict = cell.verdict
    if verdict is None:
        return f"{cell.id}: no candidate"
    text = f"not certified: {verdict.reason}"
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
        yield f"p: of the comparison with the retrainings; {alpha:g} or less rejects"
        yield "rest.: restored, 100 % minus the largest gap on any axis"
        yield "columns of axes: standard deviations from the mean retraining"
    else:
        yield "p: of the screen, Holm-corrected over the candidates"
        yield "columns of axes: their values"
    for entry in axes:
        yield f"{entry.short}: {entry.meaning[0].lower()}{entry.meaning[1:].rstrip('.')}"


def _table(title: str) -> Any:
    from rich import box
    from rich.table import Table

    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        padding=(0, 1),
    )


def _drawn(table: Any, width: int | None) -> str:
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=_wide(width), markup=False, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().split("\n"))


def _wide(width: int | None) -> int:
    return max(60, width or shutil.get_terminal_size((100, 24)).columns)


def _narrow(name: str) -> str:
    """Return a column's name on two lines where it is long."""
    return name if len(name) <= 6 else f"{name[:5]}-\n{name[5:]}"


def _interval(found: Estimate | None) -> str:
    if found is None or found.low is None:
        return "" if found is None else f"{found.value:+.2f}"
    return f"{found.value:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def _distance(value: float | None) -> str:
    return "" if value is None else f"{value:+.1f}" if abs(value) < 100 else f"{value:+.0f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
