"""The report of a run as one page that needs nothing else: no network, no server, no other file.

Everything on it comes from stored artifacts. The page carries its own style and script and forbids
all others by a content security policy with their hashes; every name is text, whatever it holds.
The same artifacts give the same bytes.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from palimpsest.report.cell_tables import (
    candidates_table,
    cells_table,
    failed_table,
    models_table,
)
from palimpsest.report.figures import Figure, all_figures
from palimpsest.report.files import write_files
from palimpsest.report.formats import Estimate, Share, Table, Value, as_csv, shown
from palimpsest.report.frozen import Frozen, read_frozen
from palimpsest.report.headline import Masthead, masthead
from palimpsest.report.palette import Style, styles
from palimpsest.report.plots.svg import LEGEND, colour, marker, panel_svg, shortened, symbols
from palimpsest.report.tables import all_tables
from palimpsest.report.terminal import printable
from palimpsest.study.results import CellResult, RunResults, read_run

TEMPLATE = Path(__file__).parent / "template"
ROWS_SHOWN = 60
"""Rows of a figure's data that are shown on the page; more are in its CSV only."""
LONG = 34
"""Signs beyond which the text of a table may be broken."""
COLUMNS = (
    "cell",
    "candidate",
    "method",
    "adjusted p",
    "median gap",
    "held-out forget NLL",
    "retain NLL",
    "general NLL",
    "residual",
    "oracle-KL",
    "worst axis",
    "outcome",
)
"""Columns of the candidate table on the page; its CSV has all."""


@dataclass(frozen=True, slots=True)
class Section:
    """One question with the figures and tables that answer it."""

    id: str
    question: str
    about: str
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]


QUESTIONS: tuple[tuple[str, str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "forget",
        "Did it forget?",
        "A fact's delta is its held-out NLL minus the base model's, which never learned it. "
        "Knowledge is left when forget deltas lie below those of probes nobody ever taught.",
        ("forget-deltas", "forget-gap", "diagnostic"),
        ("dichotomy", "trained-probe", "diagnostic", "survivors"),
    ),
    (
        "retain",
        "Does it still know the rest?",
        "Facts that were learned beside the forget set, and general text, should be known as well "
        "as before.",
        ("retain", "general"),
        ("absolute-bar", "models"),
    ),
    (
        "loop",
        "Does the loop close?",
        "A restored model that learns the forget set again should arrive where the injected model "
        "is, and should not relearn faster than a model that never saw it.",
        ("residual", "relearning"),
        ("budget", "suppression"),
    ),
    (
        "distance",
        "How far is it from a retrained model, in units of retraining noise?",
        "Two retrainings of the same reference differ by about δ_f. What lies within one δ_f "
        "cannot be told from retraining.",
        ("distance",),
        ("certificate", "certified", "selection", "second-suite"),
    ),
    (
        "trust",
        "Can this instrument be trusted here?",
        "The battery on models whose truth is known, the number of probes it needs, and the noise "
        "of the reference itself.",
        ("panel", "probes", "replication"),
        ("panel", "panel-by-family", "panel-cells", "sub-panels", "replication",
         "self-audit", "absolute-bar-cells"),
    ),
)  # fmt: skip
"""Id, question, what it means, its figures and its tables."""
ONE_CELL_LEAVES_OUT = frozenset({"panel-by-family", "absolute-bar-cells", "certified", "panel"})
"""Tables that repeat another when there is only one cell."""


def write_report(run_path: Path) -> Path:
    """The path of ``RUN/report/index.html``, written with its tables and figures."""
    run_path = Path(run_path)
    results = read_run(run_path)
    tables = report_tables(results)
    figures = all_figures(results)
    page = render_page(results, tables, figures, read_frozen(run_path, results))
    return write_files(run_path / "report", page, tables, figures, results.methods)


def report_tables(results: RunResults) -> tuple[Table, ...]:
    """Every table the run has the numbers for; without a reference, those that need none."""
    whole = results.cells and all(
        cell.candidates and "reference" in cell.evaluation for cell in results.cells
    )
    if whole:
        return all_tables(results)
    own = (cells_table, models_table, candidates_table, failed_table)
    return tuple(table(results) for table in own)


def render_page(
    results: RunResults, tables: Sequence[Table], figures: Sequence[Figure], frozen: Frozen
) -> str:
    """The page."""
    palette = styles(results.methods)
    by_name = {table.name: table for table in tables}
    style = (TEMPLATE / "report.css").read_text() + _colours(palette)
    script = (TEMPLATE / "report.js").read_text()
    single = len(results.planned) == 1
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        csv_link=_csv_link,
        legend_text=lambda text: shortened(text, LEGEND),
        shown=shown,
        sort_value=_sort_value,
        is_number=_is_number,
        kind_of=_kind_of,
        marker=lambda name, hollow=False: marker(palette[name], hollow),
        panel_svg=lambda figure, panel: panel_svg(figure, panel, palette),
    )
    return environment.get_template("report.html.j2").render(
        csp=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        symbols=symbols(),
        name=results.name,
        single=single,
        masthead=masthead(results),
        sections=_sections(by_name, figures, single),
        headlines=None if single else by_name.get("headlines"),
        cells=by_name["cells"],
        verdicts=[] if single else [_verdict(cell) for cell in results.cells],
        missing=results.missing,
        not_made=by_name["not-made"],
        candidates=_page_candidates(by_name["candidates"], single),
        all_candidates=by_name["candidates"],
        methods=[name for name in palette if name in results.methods],
        frozen=frozen,
        rows_shown=ROWS_SHOWN,
    )


def _sections(
    tables: Mapping[str, Table], figures: Sequence[Figure], single: bool
) -> list[Section]:
    drawn = {figure.name: figure for figure in figures}
    sections = []
    for name, question, about, figure_names, table_names in QUESTIONS:
        wanted = [one for one in table_names if not (single and one in ONE_CELL_LEAVES_OUT)]
        if single and name == "trust":
            wanted.remove("panel-cells")
            wanted.insert(0, "panel-cells")
        found = tuple(tables[one] for one in wanted if one in tables and tables[one].rows)
        if single:
            found = tuple(_without(table, "cell") for table in found)
        sections.append(
            Section(
                name,
                question,
                about,
                tuple(drawn[one] for one in figure_names if one in drawn),
                found,
            )
        )
    return sections


def _page_candidates(table: Table, single: bool) -> Table:
    left_out = {column for column in table.columns if column not in COLUMNS}
    return _without(table, *left_out, *(("cell",) if single else ()))


def _without(table: Table, *columns: str) -> Table:
    """The table without some of its columns."""
    kept = [place for place, column in enumerate(table.columns) if column not in columns]
    return Table(
        table.name,
        table.title,
        table.reading,
        tuple(table.columns[place] for place in kept),
        tuple(tuple(row[place] for place in kept) for row in table.rows),
    )


def _verdict(cell: CellResult) -> dict[str, Any]:
    verdict = cell.verdict
    return {
        "cell": cell.id,
        "certified": verdict is not None and verdict.certified,
        "text": "No candidate could be made." if verdict is None else verdict.paragraph(),
    }


# -- what the template asks for -------------------------------------------------------------------


def _finalize(value: object) -> object:
    """Text without what a terminal or a reader's eye could be fooled by; markup as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _csv_link(table: Table) -> str:
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(as_csv(table).encode()).decode()


def _sort_value(value: Value) -> float | int | None:
    if isinstance(value, Share):
        return value.count / value.total if value.total else None
    if isinstance(value, Estimate):
        value = value.value
    return float(f"{value:.6g}") if isinstance(value, float) else None


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float | Share | Estimate) and not isinstance(value, bool)


def _kind_of(value: Value) -> str:
    """The class of a table's field: number, long text, or short text that stays on one line."""
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


def _colours(palette: Mapping[str, Style]) -> str:
    """The palette as classes, for light pages and dark ones."""
    light = "".join(f".{colour(one)}{{--c:{one.light}}}" for one in palette.values())
    dark = "".join(f"{{0}} .{colour(one)}{{{{--c:{one.dark}}}}}" for one in palette.values())
    return (
        f"{light}@media(prefers-color-scheme:dark){{"
        + dark.format(":root:not([data-theme=light])")
        + "}"
        + dark.format(":root[data-theme=dark]")
        + f"@media print{{{light}}}"
    )


__all__ = ["Masthead", "render_page", "report_tables", "write_report"]
