"""The verdict and the candidate table for a terminal, as wide as it is, and the same as JSON."""

import io
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from palimpsest.report.certificate_tables import second_suite_table
from palimpsest.report.formats import Estimate
from palimpsest.study.results import CellResult, read_run
from palimpsest.study.second_suite import Comparison

SHORT = {
    "forget equivalence": "equivalence",
    "retain damage": "retain",
    "round-trip damage": "round trip",
    "degeneracy gate": "degenerate",
    "relearn veto": "veto",
}
"""Axes of the bar as a narrow table names them."""
MEANING = {
    "screen": "still knows the forget set",
    "forget equivalence": "forget Δ beyond δ of the reference's",
    "retain damage": "retain NLL damaged beyond noise",
    "round-trip damage": "residual beyond noise",
    "retain limit": "retain NLL too high",
    "residual limit": "residual too high",
    "degeneracy gate": "retains too well to be only unlearned",
    "relearn veto": "relearns faster than the references",
}
"""What it means to fail an axis, for the line under the table."""
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
    """Give the candidates of a cell as a table that fits the terminal, and what its words mean."""
    table = _table(f"{cell.id}: candidates")
    table.add_column("model", overflow="fold")
    for name in ("p\n(Holm)", "forget\nΔ", "probe\nΔ", "retain", "residual", "worst\n/δ"):
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
            f"{finding.adjusted_p:.2g}",
            *_deltas(one),
            *_damage(one),
            worst,
            verdict,
        )
    for name, reason in cell.failed.items():
        table.add_row(printable(name), "", "", "", "", "", "", printable(f"failed: {reason}"))
    return "\n".join([_drawn(table, width), "", *textwrap.wrap(_legend(cell), _wide(width))])


def second_lines(found: Sequence[Comparison], width: int | None = None) -> str:
    """Give what a second suite found, a row a selector, as a table that fits the terminal."""
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
        "distance: |median forget Δ - the reference's| on the second pool, nats, mean over cells; "
        "difference: minus the trained-probe best's in the same cells, below 0 is nearer to the "
        "reference; then in how many cells the pick is nearer, within retraining noise δ, and "
        "excluded by the screen. "
    )
    about += second_suite_table(tuple(found)).reading
    return "\n".join([_drawn(table, width), "", *textwrap.wrap(about, _wide(width))])


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


def _legend(cell: CellResult) -> str:
    """Give what the columns and the words of a cell's table mean; words it has not are left out."""
    return "; ".join(_meanings(cell)) + "."


def _meanings(cell: CellResult) -> Iterator[str]:
    verdict = cell.verdict
    yield "forget Δ, probe Δ: median held-out NLL minus base's, nats"
    if verdict is not None:
        alpha = verdict.numbers["alpha"]
        yield f"p (Holm): of the screen, for all candidates at once, excluded at {alpha:g} and less"
    yield "residual: KL left to the injected model once the forget set is learned again"
    findings = () if verdict is None else verdict.findings
    if any(one.worst_axis is not None for one in findings):
        yield "δ: noise between retrainings"
        yield "worst/δ: the worst axis, 1 is the bar"
    for axis, meaning in MEANING.items():
        if any(axis in one.failures for one in findings):
            yield f"{SHORT.get(axis, axis)}: {meaning}"


def _table(title: str) -> Any:
    from rich import box
    from rich.table import Table

    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )


def _drawn(table: Any, width: int | None) -> str:
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=_wide(width), markup=False, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().split("\n"))


def _wide(width: int | None) -> int:
    return max(60, width or shutil.get_terminal_size((100, 24)).columns)


def _deltas(one: Any) -> tuple[str, str]:
    """Give the medians, which are what equivalence and the gap are reckoned from."""
    return f"{one.median_forget_delta:+.2f}", f"{np.median(one.probe_deltas):+.2f}"


def _damage(one: Any) -> tuple[str, str]:
    return _number(one.retain_nll), _number(one.residual)


def _interval(found: Estimate | None) -> str:
    if found is None or found.low is None:
        return "" if found is None else f"{found.value:+.2f}"
    return f"{found.value:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
