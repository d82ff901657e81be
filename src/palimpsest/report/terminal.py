"""The verdict and the candidate table for a terminal, as wide as it is, and the same as JSON."""

import io
import shutil
from pathlib import Path
from typing import Any

from palimpsest.study.results import CellResult, read_run

SHORT = {
    "forget equivalence": "equivalence",
    "retain damage": "retain",
    "round-trip damage": "round trip",
    "degeneracy gate": "degenerate",
    "relearn veto": "veto",
}
"""Axes of the bar as a narrow table names them."""


def summary_lines(run: Path | str) -> list[str]:
    """Give what a person reads after a run: one cell in full, or a line for each cell."""
    results = read_run(run)
    lines: list[str] = []
    if len(results.planned) == 1 and results.cells:
        lines += [candidate_lines(results.cells[0]), ""]
    else:
        lines += [_cell_line(cell) for cell in results.cells]
    lines += [f"{one.id}: {one.state} {one.reason}".rstrip() for one in results.missing]
    for cell in results.cells[:1] if len(results.planned) == 1 else ():
        lines.append(printable(cell.verdict.paragraph() if cell.verdict else "No candidate."))
    if len(results.planned) > 1:
        certified = sum(bool(cell.verdict and cell.verdict.certified) for cell in results.cells)
        lines.append(
            f"{certified} of {len(results.cells)} finished cells certify a candidate; "
            f"{len(results.missing)} of {len(results.planned)} planned cells are missing."
        )
    return lines


def summary_json(run: Path | str) -> dict[str, Any]:
    """Give the same as plain values."""
    import json

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
    """Give the candidates of a cell as a table that fits the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{cell.id}: candidates", title_justify="left", pad_edge=False)
    table.add_column("model", overflow="fold")
    for name in ("p", "forget Δ", "probe Δ", "retain", "residual", "worst/δ"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("fails", overflow="fold")
    measures = cell.evaluation
    for name in ("base", "injected", *measures.references):
        if name in measures:
            one = measures[name]
            table.add_row(name, "", *_deltas(one), *_damage(one), "", "", style="dim")
    table.add_section()
    for finding in cell.verdict.findings if cell.verdict else ():
        one = measures[finding.name]
        worst = "" if finding.worst_axis is None else f"{finding.worst_axis:.2f}"
        verdict = ", ".join(SHORT.get(axis, axis) for axis in finding.failures) or "clears the bar"
        table.add_row(
            printable(finding.name),
            f"{finding.p_value:.2g}",
            *_deltas(one),
            *_damage(one),
            worst,
            verdict,
        )
    for name, reason in cell.failed.items():
        table.add_row(printable(name), "", "", "", "", "", "", printable(f"failed: {reason}"))
    out = io.StringIO()
    wide = width or shutil.get_terminal_size((100, 24)).columns
    Console(file=out, width=max(60, wide), markup=False, highlight=False).print(table)
    return out.getvalue().rstrip()


def printable(text: str) -> str:
    """Give the text with everything a terminal could obey taken out."""
    return "".join(sign if sign.isprintable() else "�" for sign in text)


def _cell_line(cell: CellResult) -> str:
    verdict = cell.verdict
    if verdict is None:
        return f"{cell.id}: no candidate"
    what = (
        f"certified: {verdict.candidate}" if verdict.certified else f"uncertified: {verdict.reason}"
    )
    return printable(f"{cell.id}: {what} ({len(cell.survivors)}/{len(cell.candidates)} survive)")


def _deltas(one: Any) -> tuple[str, str]:
    return f"{one.forget_deltas.mean():+.2f}", f"{one.probe_deltas.mean():+.2f}"


def _damage(one: Any) -> tuple[str, str]:
    return _number(one.retain_nll), _number(one.residual)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
