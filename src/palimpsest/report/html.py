"""The report of a run as one page that needs nothing else: no network, no server, no other file.

Everything on it comes from stored files. The page carries its own style and script and forbids all
others by a content security policy with their hashes; every name is text, whatever it holds. The
same files give the same bytes.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from palimpsest.analysis.criteria import has_trial
from palimpsest.analysis.results import RunResults, read_run
from palimpsest.analysis.table import Estimate, Share, Table, Value, percent, printable
from palimpsest.criteria.axes import chosen
from palimpsest.errors import InputError
from palimpsest.report.answer import WORDS, answer, glossary
from palimpsest.report.criteria_page import write_criteria
from palimpsest.report.figures import all_figures
from palimpsest.report.files import write_files
from palimpsest.report.formats import as_csv
from palimpsest.report.plots.canvas import Picture, colour_rules, inline_svg
from palimpsest.report.plots.shared import draw_together
from palimpsest.report.record import Record, read_record
from palimpsest.report.tables import PAPER, all_tables
from palimpsest.report.trust import trust_checks
from palimpsest.run.store import make_folder, read_json, write_bytes

TEMPLATE = Path(__file__).parent / "template"
EMBEDDED = 2000
"""Rows up to which a table's CSV is embedded in the page; larger ones are linked."""
SHOWN = 400
"""Rows up to which a table is shown on the page."""
MINUS = re.compile(r"(?<![\w.-])-(?=\d)")
"""A hyphen that means a minus."""
LONG = 34
"""Letters beyond which the text of a table may be broken."""
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
    path = write_files(out or run_path / "report", page, tables, pictures)
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


def template(name: str) -> Template:
    """Return a template of the page, with its style, its script and the policy that allows both."""
    style = (TEMPLATE / "report.css").read_text() + colour_rules()
    script = (TEMPLATE / "report.js").read_text()
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        csp=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        csv_link=_csv_link,
        signed=_signed,
        sort_value=_sort_value,
        is_number=_is_number,
        kind_of=_kind_of,
        pretty=_pretty,
        command=lambda text: escape(text.replace(" --", " \\\n  --")),
        svg=_svg,
        rows_shown=SHOWN,
    )
    return environment.get_template(name)


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
    if not single or not any(cell.verdict and cell.verdict.controls for cell in results.cells):
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
        for cell in results.cells
        for finding in (() if cell.verdict is None else cell.verdict.findings)
    ]


# -- what the template asks for -------------------------------------------------------------------


def _finalize(value: object) -> object:
    """Return text without signs that could fool a parser or a reader; markup as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _pretty(text: str) -> Markup:
    """Return text with the paper's symbols; whatever else it holds stays text."""
    words = printable(text)
    for name, sign in (("delta_f", "δ_f"), ("epsilon_f", "ε_f"), ("alpha =", "α =")):
        words = words.replace(name, sign)
    escaped = str(escape(MINUS.sub("−", words)))
    return Markup(escaped.replace("δ_f", "δ<sub>f</sub>").replace("ε_f", "ε<sub>f</sub>"))


def _svg(picture: Picture) -> Markup:
    """Return the figure, and the same for a phone where there is one."""
    text = "{title}. {alt}".format_map(WORDS["figures"][picture.name])
    if picture.narrow is None:
        return inline_svg(picture.figure, picture.name, text)
    wide = inline_svg(picture.figure, picture.name, text, "wide")
    return wide + inline_svg(picture.narrow, f"{picture.name}-narrow", text, "narrow")


def _signed(table: Table, column: str, value: Value) -> str:
    """Return a field of a table: numbers with a minus, text as it is."""
    text = table.shown(column, value)
    return MINUS.sub("−", text) if _is_number(value) else text


def _csv_link(table: Table) -> str:
    if len(table.rows) > EMBEDDED:
        return f"tables/{table.name}.csv"
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(as_csv(table).encode()).decode()


def _sort_value(value: Value) -> float | None:
    if isinstance(value, Share):
        return value.count / value.total if value.total else None
    number = value.value if isinstance(value, Estimate) else value
    return float(f"{number:.6g}") if isinstance(number, int | float) else None


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float | Share | Estimate) and not isinstance(value, bool)


def _kind_of(value: Value) -> str:
    """Return the class of a table's field: number, long text, or text that stays on one line."""
    if _is_number(value):
        return "n"
    return "w" if isinstance(value, str) and len(value) > LONG else "t"


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
