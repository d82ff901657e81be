"""The report of a run as one page that needs nothing else: no network, no server, no other file.

Everything on it comes from stored files; the same files give the same bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from palimpsest.analysis.criteria import has_trial
from palimpsest.analysis.results import RunResults, read_run
from palimpsest.analysis.table import Table, percent
from palimpsest.criteria.axes import chosen
from palimpsest.errors import InputError
from palimpsest.report.answer import WORDS, answer, glossary
from palimpsest.report.criteria_page import write_criteria
from palimpsest.report.figures import all_figures
from palimpsest.report.files import remove_others, write_files
from palimpsest.report.pages import template
from palimpsest.report.plots.canvas import Picture
from palimpsest.report.plots.shared import draw_together
from palimpsest.report.record import Record, read_record
from palimpsest.report.tables import PAPER, all_tables
from palimpsest.report.trust import trust_checks
from palimpsest.run.store import make_folder, read_json, write_bytes

BOARD = (
    *("rank", "method", "restores in", "certified in", "worst axis, sd"),
    *("most frequent worst axis", "cost, retrainings", "p over cells"),
)
"""Columns of the leaderboard on the page; its CSV has more."""
OUTCOMES = ("accepted", "survives the screen", "excluded by the screen")
"""What the candidate table filters by; accepted candidates survive the screen too."""
COUNTING = frozenset({"absolute-bar-cells", "budget", "recalibrated-passing"})
"""Tables of the paper's edition that only make sense over several cells."""


def write_report(run_path: Path | str, out: Path | None = None, *, together: bool = False) -> Path:
    """Return the path of the page, written with its tables and figures into RUN/report, or into
    ``out``; ``together``: a second process, forked from this one, draws half of the figures."""
    run_path = Path(run_path)
    results = read_run(run_path)
    tables, pictures = all_tables(results), all_figures(results)
    if together:
        draw_together(pictures)
    summary = run_path / "summary.json"
    page = render_page(
        results,
        tables,
        pictures,
        read_record(run_path),
        read_json(summary) if summary.exists() else None,
    )
    path = (out or run_path / "report") / "index.html"
    remove_others(path.parent, write_files(path, page, tables, pictures))
    write_criteria(results, path.parent)
    return path


def write_bundle_report(bundle: Path | str, out: Path) -> Path:
    """Return the path of the page of a certificate bundle, written into the new folder ``out``.

    The files of a bundle are those of its run, so its page is the run's. Verify the bundle first.
    """
    from palimpsest.certificate.archive import unpack

    if out.exists():
        raise InputError(f"{out}: exists; expected a new folder for the page")
    with TemporaryDirectory() as folder:
        for name, data in unpack(Path(bundle).read_bytes()).items():
            path = Path(folder, name)
            make_folder(path.parent)
            write_bytes(path, data)
        return write_report(folder, out)


def render_page(
    results: RunResults,
    tables: Sequence[Table],
    pictures: Sequence[Picture],
    record: Record,
    summary: Mapping[str, Any] | None = None,
) -> str:
    """Return the page; ``summary`` is an audit's ``summary.json``."""
    named = {table.name: table for table in tables}
    drawn = {picture.name: picture for picture in pictures}
    single = len(results.planned) == 1
    return template("report.html.j2").render(
        name=results.name,
        single=single,
        answer=answer(results, summary),
        criteria=has_trial(results),
        first=drawn.get("retrainings") or drawn.get("acceptance") or drawn.get("forget-deltas"),
        gaps=_gaps(named["candidates"], results, single),
        controls=_controls(named, results, single),
        leaderboard=named["leaderboard"].only(BOARD) if _is_study(results) else None,
        pictures=drawn,
        words=WORDS,
        cells=named["cells"],
        judged=results.cells,
        missing=results.missing,
        not_made=named["not-made"],
        candidates=_candidates(named["candidates"], results, single),
        all_candidates=named["candidates"],
        states=_states(results),
        outcomes=OUTCOMES,
        checks=trust_checks(results),
        glossary=glossary(results.rules),
        methods=results.methods,
        record=record,
        paper=_paper(named, single),
        data=named,
    )


def _is_study(results: RunResults) -> bool:
    """Return whether the run tried methods; an audit's candidates are models of unknown making."""
    return bool(results.methods) and "methods" in results.plan


def _paper(tables: Mapping[str, Table], single: bool) -> list[Table]:
    """Return the tables of the paper's edition that the run has."""
    names = [name for name in PAPER if name in tables and not (single and name in COUNTING)]
    kept = [tables[name] for name in names if tables[name].rows]
    return [table.without("cell") if single else table for table in kept]


def _gaps(table: Table, results: RunResults, single: bool) -> Table | None:
    """Return how far off every candidate is, as shares of what was at stake."""
    axes = chosen(results.rules)
    if not single or not any(verdict.controls for _, verdict in results.judged):
        return None
    columns = ["candidate", "restored", *(f"gap {axis.title}" for axis in axes)]
    short = table.only(columns)
    rows = sorted(short.rows, key=lambda row: -row[1] if isinstance(row[1], float) else 1.0)
    reading = "No candidate could be compared."
    if rows and isinstance(rows[0][1], float):
        reading = f"{rows[0][0]} comes closest: {percent(rows[0][1])} restored."
    names = tuple(column.removeprefix("gap ") for column in short.columns)
    forms = dict.fromkeys(names, ".0%")
    return Table("gaps", "Gap per axis", reading, names, tuple(rows), forms)


def _controls(tables: Mapping[str, Table], results: RunResults, single: bool) -> Table:
    """Return the controls as the page shows them: of one cell each, references counted; of many
    cells how often they came out as they should."""
    if not single:
        return tables["control-rates"]
    table = tables["controls"]
    axes = [axis.title for axis in chosen(results.rules)]
    kept = table.only(["control", "kind", "should be", "was", "p", "worst axis", *axes])
    left_out = [row for row in kept.rows if row[1] == "reference against the others"]
    rows = [row for row in kept.rows if row not in left_out]
    if left_out:
        accepted = f"{sum(row[3] == 'accepted' for row in left_out)} of {len(left_out)} accepted"
        blank = [None] * (len(kept.columns) - 4)
        rows.append(("each reference against the others", "", "accepted", accepted, *blank))
    return replace(kept, rows=tuple(rows)).without("kind")


def _candidates(table: Table, results: RunResults, single: bool) -> Table:
    """Return the candidate table as the page shows it, the most telling columns first."""
    axes = [axis.title for axis in chosen(results.rules)]
    columns = ["candidate", *(() if single else ("cell",)), "outcome", "p", "restored", *axes]
    return table.only([*columns, "screen p (Holm)"])


def _states(results: RunResults) -> list[tuple[str, int]]:
    """Return the method and the outcome to filter by of every row of the candidate table."""
    return [
        (cell.methods[finding.name], 2 if finding.excluded else 0 if finding.clears else 1)
        for cell, verdict in results.judged
        for finding in verdict.findings
    ]
