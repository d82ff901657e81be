"""The answer on a terminal: verdict, one line per candidate, reasons, then a table that fits it."""

import textwrap
from collections.abc import Mapping
from statistics import median

from palimpsest.report.leaderboard import distance, standings
from palimpsest.report.results import CellResult, RunResults, cell_places
from palimpsest.report.table import Row, Share, Table, printable, table_lines, width
from palimpsest.stats import words
from palimpsest.stats.axes import chosen
from palimpsest.stats.verdict import Finding, Verdict

MOST_REASONS = 5
"""Candidates whose reasons are printed, the nearest to retraining first; the page has all."""
WORDS = (
    "p: of the comparison with the retrainings; without enough of them, of the screen",
    "sd: standard deviations of the retrainings on that axis; 50 %: a retraining with that share "
    "of the injected weights mixed in, median of several",
    "restored: passes as one more retraining; suppressed: knows more than a retraining; "
    "over-forgotten: knows less; damaged: something else changed",
)


def study_lines(results: RunResults, *, explain: bool = False) -> list[str]:
    """Return what a person reads after a run: the answer, a line per candidate (over several cells,
    per method), the reasons, a table; ``explain`` adds what names and axes mean."""
    missing = [f"{cell.id}: {cell.state} {cell.reason}".rstrip() for cell in results.missing]
    if not results.judged:
        return [*map(printable, missing), "No candidate was measured, so there is no verdict."]
    if len(results.planned) > 1:
        blocks = [*_over_cells(results), *map(_wrapped, missing)]
    else:
        cell, verdict = results.judged[0]
        found = sorted(verdict.findings, key=lambda f: (not f.clears, distance(f) or 1e300))
        blocks = [_wrapped(words.headline(verdict)), "", _candidates(found, wide := width()), ""]
        blocks += [*map(_wrapped, _reasons(verdict, found)), ""]
        blocks += [table_lines(_by_axis(cell, results, found, wide), wide)]
        blocks += [_wrapped(f"{name} failed: {why}") for name, why in cell.failed.items()]
    axes = [f"{axis.title}: {axis.meaning}" for axis in chosen(results.rules)]
    return blocks + (["", *map(_wrapped, (*WORDS, *axes))] if explain else [])


audit_lines = study_lines
"""The same order for audits."""


def _candidates(found: list[Finding], wide: int) -> str:
    """Return one line per candidate: number, name, label, p, worst axis."""
    rows: list[Row] = []
    for place, finding in enumerate(found, 1):
        worst = finding.comparison.worst if finding.comparison else None
        p = finding.comparison.p if finding.comparison else finding.screened.adjusted_p
        row: Row = {"": str(place), "candidate": finding.name, "label": finding.label}
        row |= {"p": "< 1e-6" if p < 1e-6 else f"{p:.2g}"}
        rows.append(row | {"furthest on": "–" if worst is None else words.distance(worst)})
    return table_lines(Table.of("candidates", "", "", rows), wide)


def _reasons(verdict: Verdict, found: list[Finding]) -> list[str]:
    refused = [finding for finding in found if not finding.clears]
    left = len(refused) - MOST_REASONS
    lines = [] if verdict.certified else [words.reasons(verdict)[0]]
    lines += [words.refusal(finding) for finding in refused[:MOST_REASONS]]
    lines += [f"Why {left} more were refused is in the report."] if left > 0 else []
    lines += [words.power_sentence(verdict)] if verdict.controls else []
    return [*lines, *words.remarks(verdict), words.CLOSING]


def _by_axis(cell: CellResult, results: RunResults, found: list[Finding], wide: int) -> Table:
    """Return one row per axis: injected model, mixtures, and as many candidates as fit."""
    places = cell_places(cell, results.rules)
    known = [place for place in places if place.group in ("injected", "mixture")]
    groups: dict[str, list[Mapping[str, float]]] = {}
    for place in known:
        label = place.label.replace(" of the injected weights", "")
        groups.setdefault(label, []).append(place.sd)
    by_name = {place.name: place.sd for place in places if place.group == "candidate"}
    columns = max(1, (wide - 16 - sum(len(name) + 2 for name in groups)) // 7)
    for number, finding in enumerate(found[:columns], 1):
        groups[str(number)] = [by_name.get(finding.name, {})]
    rows: list[Row] = []
    for axis in chosen(results.rules):
        values = {
            name: [sd[axis.name] for sd in some if axis.name in sd] for name, some in groups.items()
        }
        rows.append({"axis": axis.title} | {n: _short(v) for n, v in values.items()})
    title = "Distance from the mean retraining, in standard deviations of retraining"
    return Table.of("axes", f"{title}; numbers are those above", "", rows if places else [])


def _short(values: list[float]) -> str:
    if not values:
        return "–"
    value = median(values)
    return f"{value:+.1f}" if abs(value) < 10 else f"{value:+.0f}"


def _over_cells(results: RunResults) -> list[str]:
    """Return the answer over several cells: one line per method, then one per cell."""
    rows: list[Row] = [
        {"method": standing.method, "restored in": standing.restores}
        | {"mostly": standing.labels[0][0], "furthest on": standing.axis}
        | {"median sd": median(standing.distances)}
        for standing in standings({results.name: results})
    ]
    reading = "Each method by its best setting in each cell."
    table = Table.of("methods", "", reading, rows, {"median sd": ".1f"})
    cells = [_wrapped(f"{cell.id}: {words.headline(verdict)}") for cell, verdict in results.judged]
    share = Share(results.certified, len(results.judged))
    return [f"{share} cells certify a candidate.", "", table_lines(table), "", *cells]


def _wrapped(text: str) -> str:
    wide = min(100, width())
    return textwrap.fill(printable(text), wide, subsequent_indent="  ", break_on_hyphens=False)
