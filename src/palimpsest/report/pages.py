"""What the pages share: one style, a policy that allows nothing else, and how values are written.

A page carries its own style and script and forbids all others by a content security policy with
their hashes; every name is text, whatever it holds.
"""

import base64
import hashlib
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from palimpsest.analysis.table import Estimate, Share, Table, Value, printable
from palimpsest.report.answer import WORDS
from palimpsest.report.formats import as_csv
from palimpsest.report.plots.canvas import Picture, colour_rules, inline_svg

TEMPLATE = Path(__file__).parent / "template"
EMBEDDED = 2000
"""Rows up to which a table's CSV is embedded in the page; larger ones are linked."""
SHOWN = 400
"""Rows up to which a table is shown on the page."""
MINUS = re.compile(r"(?<![\w.-])-(?=\d)")
"""A hyphen that means a minus."""
LONG = 34
"""Letters beyond which the text of a table may be broken."""


def template(name: str, script_file: str = "report.js") -> Template:
    """Return a template of a page, with its style, its script and the policy that allows both."""
    style = (TEMPLATE / "report.css").read_text() + colour_rules()
    script = (TEMPLATE / script_file).read_text()
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
