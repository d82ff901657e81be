"""The report of a run as one page that needs nothing else: no network, no server, no other file.

Everything on it comes from stored artifacts. The page carries its own style and script and forbids
all others by a content security policy with their hashes; every name is text, whatever it holds.
The same artifacts give the same bytes.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

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
from palimpsest.report.masthead import GLOSSARY, Masthead, masthead
from palimpsest.report.palette import MARKS, Style, styles
from palimpsest.report.plots.svg import LEGEND, colour, marker, panel_svg, shortened, symbols
from palimpsest.report.tables import all_tables
from palimpsest.report.terminal import SHORT, printable
from palimpsest.report.trust import trust_checks
from palimpsest.run.store import read_json
from palimpsest.study.results import CellResult, RunResults, read_run

TEMPLATE = Path(__file__).parent / "template"
ROWS_SHOWN = 60
"""Rows of a figure's data that are shown on the page; more are in its CSV only."""
MINUS = re.compile(r"(?<![\w.-])-(?=\d)")
"""A hyphen that means a minus."""
LONG = 34
"""Signs beyond which the text of a table may be broken."""
COLUMNS = (
    ("candidate", "candidate"),
    ("outcome", "outcome"),
    ("adjusted p", "adjusted p"),
    ("median gap", "gap"),
    ("held-out forget NLL", "forget NLL"),
    ("retain NLL", "retain NLL"),
    ("general NLL", "general NLL"),
    ("residual", "residual"),
    ("oracle-KL", "oracle-KL"),
    ("worst axis", "worst axis"),
    ("cell", "cell"),
)
"""Columns of the candidate table on the page and what they are called there; its CSV has all."""
PANEL_ROW = (
    "challenge",
    "p",
    "screen",
    "equivalence",
    "retain axis",
    "forward battery",
    "with round trip",
    "with veto",
)
"""Columns of the panel's table on the page of one cell; its CSV has all."""
OUTCOMES = ("clears the bar", "survives the screen", "excluded by the screen")
"""What the candidate table filters by; whoever clears the bar survives the screen too."""


@dataclass(frozen=True, slots=True)
class Section:
    """One question with the figures and tables that answer it."""

    id: str
    short: str
    """Its name where there is little room."""
    question: str
    about: str
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]
    nothing: str
    """What is said where there is no figure."""


QUESTIONS: tuple[tuple[str, str, str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "forget",
        "Forgetting",
        "Did it forget?",
        "A fact's delta is its held-out NLL minus the base model's, which never learned it. "
        "Knowledge is left when forget deltas lie below those of probes nobody ever taught.",
        ("forget-deltas", "forget-gap", "diagnostic"),
        ("dichotomy", "trained-probe", "diagnostic", "survivors"),
    ),
    (
        "retain",
        "The rest",
        "Does it still know the rest?",
        "Facts that were learned beside the forget set, and general text, should be known as well "
        "as before.",
        ("retain", "general"),
        ("absolute-bar", "models"),
    ),
    (
        "loop",
        "The loop",
        "Does the loop close?",
        "A restored model that learns the forget set again should arrive where the injected model "
        "is, and should not relearn faster than a model that never saw it.",
        ("residual", "relearning"),
        ("budget", "suppression"),
    ),
    (
        "distance",
        "Distance",
        "How far is it from a retrained model, in units of retraining noise?",
        "Two retrainings of the same reference differ by about δ_f. What lies within one δ_f "
        "cannot be told from retraining.",
        ("distance",),
        ("certificate", "certified", "selection", "second-suite"),
    ),
    (
        "trust",
        "Trust",
        "Can this instrument be trusted here?",
        "What speaks for the verdict above and what against it: the battery on models whose truth "
        "is known, the number of probes, facts that could be inferred, and retraining noise.",
        ("panel", "probes", "replication"),
        ("panel", "panel-by-family", "panel-cells", "sub-panels", "replication",
         "self-audit", "absolute-bar-cells"),
    ),
)  # fmt: skip
"""Id, short name, question, what it means, its figures and its tables."""
UNMEASURED = {
    "distance": "Not measured here: the unit is how much independent retrainings differ, and there "
    "are too few of them. Give an audit two references or more, or a study replication.draws.",
    "loop": "Not measured here: no candidate went through the round trip.",
}
"""What is said of a question for which nothing was measured."""
ONE_CELL_LEAVES_OUT = frozenset(
    {"absolute-bar-cells", "budget", "certified", "panel", "panel-by-family", "replication"}
    | {"selection", "suppression"}
)
"""Tables that count cells or families, or repeat a figure, when there is only one cell."""


def write_report(run_path: Path) -> Path:
    """The path of ``RUN/report/index.html``, written with its tables and figures."""
    run_path = Path(run_path)
    results = by_name(read_run(run_path))
    tables = report_tables(results)
    figures = all_figures(results)
    summary = run_path / "summary.json"
    page = render_page(
        results,
        tables,
        figures,
        read_frozen(run_path, results),
        read_json(summary) if summary.exists() else None,
    )
    return write_files(run_path / "report", page, tables, figures, results.methods)


def by_name(results: RunResults) -> RunResults:
    """The results of an audit with candidates that are shown by their names; others as they are.

    No method of ours made an audit's candidates, so nothing in their names says a family: each is
    its own where they are few enough for a mark each, else all are one.
    """
    if results.plan.get("methods") != []:
        return results
    cells = [
        replace(cell, methods=dict.fromkeys(cell.candidates, "candidates"))
        if len(cell.candidates) > MARKS
        else replace(cell, methods={name: name for name in cell.candidates})
        for cell in results.cells
    ]
    return replace(results, cells=tuple(cells))


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
    results: RunResults,
    tables: Sequence[Table],
    figures: Sequence[Figure],
    frozen: Frozen,
    summary: Mapping[str, Any] | None = None,
) -> str:
    """The page; ``summary`` is an audit's ``summary.json``."""
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
        signed=_signed,
        sort_value=_sort_value,
        is_number=_is_number,
        kind_of=_kind_of,
        pretty=_pretty,
        command=lambda text: escape(text.replace(" --", " \\\n  --")),
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
        masthead=masthead(results, summary),
        sections=_sections(by_name, figures, single) if results.cells else [],
        headlines=None if single else by_name.get("headlines"),
        cells=by_name["cells"],
        verdicts=[] if single else [_verdict(cell) for cell in results.cells],
        missing=results.missing,
        not_made=by_name["not-made"],
        candidates=_page_candidates(by_name["candidates"], single),
        states=_states(results),
        outcomes=OUTCOMES,
        checks=trust_checks(results),
        glossary=GLOSSARY,
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
    for name, short, question, about, figure_names, table_names in QUESTIONS:
        wanted = [one for one in table_names if not (single and one in ONE_CELL_LEAVES_OUT)]
        if single and name == "trust":
            wanted.remove("panel-cells")
            wanted.insert(0, "panel-cells")
        found = tuple(tables[one] for one in wanted if one in tables and tables[one].rows)
        if single:
            found = tuple(
                _only(table, PANEL_ROW) if table.name == "panel-cells" else _without(table, "cell")
                for table in found
            )
        sections.append(
            Section(
                name,
                short,
                question,
                about,
                tuple(drawn[one] for one in figure_names if one in drawn),
                found,
                UNMEASURED.get(name, "This run has no numbers for a figure here."),
            )
        )
    return sections


def _page_candidates(table: Table, single: bool) -> Table:
    """The candidate table as the page shows it, the most telling columns first."""
    wanted = [name for name, _ in COLUMNS if not (single and name == "cell")]
    if not single:
        wanted.insert(1, wanted.pop())
    shorter = _only(table, wanted)
    place = wanted.index("outcome")
    rows = tuple(
        (*row[:place], _outcome(str(row[place])), *row[place + 1 :]) for row in shorter.rows
    )
    called = dict(COLUMNS)
    return replace(shorter, columns=tuple(called[name] for name in wanted), rows=rows)


def _outcome(text: str) -> str:
    """An outcome in as few words as a narrow column needs."""
    if text == OUTCOMES[0]:
        return text
    return "fails " + ", ".join(SHORT.get(axis, axis) for axis in text.split("; "))


def _states(results: RunResults) -> list[tuple[str, str]]:
    """The method and the outcome to filter by of every row of the candidate table."""
    return [
        (cell.methods[one.name], OUTCOMES[2 if one.excluded else 0 if one.clears else 1])
        for cell in results.cells
        for one in (() if cell.verdict is None else cell.verdict.findings)
    ]


def _only(table: Table, columns: Sequence[str]) -> Table:
    """The table with these of its columns, in this order."""
    kept = [table.columns.index(column) for column in columns if column in table.columns]
    return replace(
        table,
        columns=tuple(table.columns[place] for place in kept),
        rows=tuple(tuple(row[place] for place in kept) for row in table.rows),
    )


def _without(table: Table, column: str) -> Table:
    return _only(table, [name for name in table.columns if name != column])


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


def _pretty(text: str) -> Markup:
    """Text with the paper's symbols; whatever else it holds stays text."""
    told = printable(text)
    for name, sign in (("delta_f", "δ_f"), ("epsilon_f", "ε_f"), ("alpha =", "α =")):
        told = told.replace(name, sign)
    found = str(escape(MINUS.sub("−", told)))
    return Markup(found.replace("δ_f", "δ<sub>f</sub>").replace("ε_f", "ε<sub>f</sub>"))


def _signed(value: Value) -> str:
    """A field of a table: numbers with a minus, text as it is."""
    return MINUS.sub("−", shown(value)) if _is_number(value) else shown(value)


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
    """The palette as classes, for light pages and dark ones; paper is always light."""
    light = "".join(f".{colour(one)}{{--c:{one.light}}}" for one in palette.values())
    dark = "".join(f"{{0}} .{colour(one)}{{{{--c:{one.dark}}}}}" for one in palette.values())
    return (
        f"{light}@media screen and (prefers-color-scheme:dark){{"
        + dark.format(":root:not([data-theme=light])")
        + "}@media screen{"
        + dark.format(":root[data-theme=dark]")
        + "}"
    )


__all__ = ["Masthead", "render_page", "report_tables", "write_report"]
