"""A table's text as CSV, Markdown and LaTeX: pure functions from values to text.

CSV has one column per number, for machines; Markdown and LaTeX show values as a paper does. The
same table gives the same bytes.
"""

import csv
import io
from collections.abc import Iterable

from palimpsest.analysis.table import Estimate, Share, Table, Value, shown

__all__ = ["Estimate", "Share", "Table", "Value", "as_csv", "as_latex", "as_markdown", "shown"]

_MORE: dict[type | None, tuple[str, ...]] = {Share: (" of",), Estimate: (" low", " high")}
"""The further CSV columns of a column that holds shares or estimates."""


def as_csv(table: Table) -> str:
    """Return the table as CSV with one column per number; lines end with a newline."""
    kinds = [_kind(table, column) for column in range(len(table.columns))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        name + ending
        for name, kind in zip(table.columns, kinds)
        for ending in ("", *_MORE.get(kind, ()))
    )
    for row in table.rows:
        writer.writerow(text for value, kind in zip(row, kinds) for text in _fields(value, kind))
    return out.getvalue()


def as_markdown(table: Table) -> str:
    """Return the table as GitHub-flavoured Markdown, with its title and reading."""
    rule = ["---:" if _right(table, place) else ":---" for place in range(len(table.columns))]
    cells = [[_markdown(text) for text in row] for row in _texts(table)]
    lines = [f"| {' | '.join(line)} |" for line in (map(_markdown, table.columns), rule, *cells)]
    title = f"**{_markdown(_sentence(table.title))}** {_markdown(table.reading)}".rstrip()
    return f"{title}\n\n" + "\n".join(lines) + "\n"


def _sentence(title: str) -> str:
    return title if title.endswith("?") else f"{title}."


def as_latex(table: Table) -> str:
    """Return the table as LaTeX with booktabs rules."""
    form = "".join("r" if _right(table, place) else "l" for place in range(len(table.columns)))
    label = "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in table.name)
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{_latex(_sentence(table.title))} {_latex(table.reading)}}}",
        rf"\label{{tab:{label}}}",
        rf"\begin{{tabular}}{{{form}}}",
        r"\toprule",
        _latex_row(table.columns),
        r"\midrule",
        *(_latex_row(row) for row in _texts(table)),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


# -- pieces ---------------------------------------------------------------------------------------


def _texts(table: Table) -> list[list[str]]:
    return [[table.shown(name, value) for name, value in zip(table.columns, row)]
            for row in table.rows]  # fmt: skip


def _kind(table: Table, column: int) -> type | None:
    for kind in (Share, Estimate):
        if any(isinstance(row[column], kind) for row in table.rows):
            return kind
    return None


def _right(table: Table, column: int) -> bool:
    values = [row[column] for row in table.rows if row[column] is not None]
    return bool(values) and not any(isinstance(value, str | bool) for value in values)


def _fields(value: Value, kind: type | None) -> list[str]:
    """Return a value as its CSV fields, as many as its column has."""
    if isinstance(value, Share):
        return [str(value.count), str(value.total)]
    if isinstance(value, Estimate):
        parts = (value.value, value.low, value.high)
        return ["" if part is None else _plain(part) for part in parts]
    if isinstance(value, float):
        text = _plain(value)
    else:
        text = "" if value is None else shown(value)
    if isinstance(value, str) and text[:1] in ("=", "+", "-", "@", "\t", "\r"):
        text = f"'{text}"  # a spreadsheet would run it as a formula
    return [text] + [""] * len(_MORE.get(kind, ()))


def _plain(value: float) -> str:
    # Nine digits are more than the scores carry, and hide the last bits, where machines differ.
    return f"{round(value, 12) + 0.0:.9g}"


def _line(text: str) -> str:
    """Return the text on one line, without control characters."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _markdown(text: str) -> str:
    escaped = _line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{sign}" if sign in "\\`*_[]|~#" else sign for sign in escaped)


_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "–": "--", "−": "$-$",
    "≤": r"$\le$", "≥": r"$\ge$", "×": r"$\times$", "α": r"$\alpha$", "δ": r"$\delta$",
    "ε": r"$\varepsilon$", "Δ": r"$\Delta$",
} | {sign: f"\\{sign}" for sign in "&%$#_{}"}  # fmt: skip


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in _line(text))


def _latex_row(values: Iterable[str]) -> str:
    # A row that begins with "[" would be read as the optional argument of the line break before.
    first, *rest = [_latex(value) for value in values] or [""]
    guarded = f"{{}}{first}" if first.startswith(("[", "*")) else first
    return " & ".join([guarded, *rest]) + r" \\"
