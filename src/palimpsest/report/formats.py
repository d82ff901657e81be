"""Tables, and what writes them as CSV, Markdown and LaTeX: pure functions from values to text.

A table's cells are text, numbers, truth values, ``Share`` (so many of so many), ``Estimate`` (a
value with its limits) or None where nothing was measured. CSV has one column per number, for
machines; Markdown and LaTeX show them the way a paper does. The same table gives the same bytes.
"""

import math
from dataclasses import dataclass

from palimpsest.criteria.intervals import Interval
from palimpsest.errors import ScoreError


@dataclass(frozen=True, slots=True)
class Share:
    """So many of so many."""

    count: int
    total: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its limits, which are None where there are too few cells for an interval."""

    value: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, interval: Interval | None, value: float | None = None) -> "Estimate | None":
        """From an interval, or from the bare value where there is none."""
        if interval is not None:
            return cls(interval.estimate, interval.low, interval.high)
        return None if value is None else cls(value, None, None)


_MORE: dict[type | None, tuple[str, ...]] = {Share: (" of",), Estimate: (" low", " high")}
"""The further CSV columns of a column that holds shares or estimates."""

Value = str | int | float | bool | None | Share | Estimate


@dataclass(frozen=True, slots=True)
class Table:
    """One question answered in rows."""

    name: str
    """File name without ending."""
    title: str
    reading: str
    """One sentence that says what the numbers show."""
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ScoreError(
                    f"table {self.name}: a row of {len(row)} values for {len(self.columns)} columns"
                )
            for column, value in zip(self.columns, row):
                for number in _numbers(value):
                    if not math.isfinite(number):
                        raise ScoreError(
                            f"table {self.name}, column {column}: {number} found; expected a "
                            "finite number, or nothing where none was measured"
                        )


# -- writers --------------------------------------------------------------------------------------


def as_csv(table: Table) -> str:
    """The table as CSV with one column per number; lines end with a newline."""
    kinds = [_kind(table, column) for column in range(len(table.columns))]
    head: list[str] = []
    for name, kind in zip(table.columns, kinds):
        more = _MORE.get(kind, ())
        head += [name, *(name + ending for ending in more)]
    lines = [head]
    for row in table.rows:
        lines.append([text for value, kind in zip(row, kinds) for text in _fields(value, kind)])
    return "".join(",".join(map(_quoted, line)) + "\n" for line in lines)


def as_markdown(table: Table) -> str:
    """The table as GitHub-flavoured Markdown, with its title and reading."""
    columns = [_markdown(name) for name in table.columns]
    cells = [[_markdown(shown(value)) for value in row] for row in table.rows]
    rule = ["---:" if _right(table, column) else ":---" for column in range(len(columns))]
    lines = [f"| {' | '.join(line)} |" for line in (columns, rule, *cells)]
    return f"**{_markdown(table.title)}.** {_markdown(table.reading)}\n\n" + "\n".join(lines) + "\n"


def as_latex(table: Table) -> str:
    """The table as LaTeX with booktabs rules."""
    form = "".join("r" if _right(table, column) else "l" for column in range(len(table.columns)))
    lines = [_latex_row(table.columns)]
    lines += [r"\midrule"]
    lines += [_latex_row([shown(value) for value in row]) for row in table.rows]
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{_latex(table.title)}. {_latex(table.reading)}}}",
            rf"\label{{tab:{_label(table.name)}}}",
            rf"\begin{{tabular}}{{{form}}}",
            r"\toprule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def shown(value: Value) -> str:
    """A value for a person: three decimals, shares as 12/45, an interval in brackets."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Share):
        return f"{value.count}/{value.total}"
    if isinstance(value, Estimate):
        if value.low is None or value.high is None:
            return number(value.value)
        return f"{number(value.value)} [{number(value.low)}, {number(value.high)}]"
    return number(value) if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """Three decimals, or a power of ten for what three decimals would hide."""
    rounded = round(value, 3) + 0.0  # no minus zero
    if rounded == 0 and abs(value) >= 1e-9:
        return f"{value:.1e}"
    return f"{rounded:.3f}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """So many of a noun: 1 cell, 3 cells."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


# -- pieces ---------------------------------------------------------------------------------------


def _numbers(value: Value) -> list[float]:
    if isinstance(value, Estimate):
        return [one for one in (value.value, value.low, value.high) if one is not None]
    return [value] if isinstance(value, float) else []


def _kind(table: Table, column: int) -> type | None:
    for kind in (Share, Estimate):
        if any(isinstance(row[column], kind) for row in table.rows):
            return kind
    return None


def _right(table: Table, column: int) -> bool:
    values = [row[column] for row in table.rows if row[column] is not None]
    return bool(values) and not any(isinstance(value, str | bool) for value in values)


def _fields(value: Value, kind: type | None) -> list[str]:
    """A value as its CSV fields, as many as its column has."""
    if isinstance(value, Share):
        return [str(value.count), str(value.total)]
    if isinstance(value, Estimate):
        parts = (value.value, value.low, value.high)
        return ["" if part is None else _plain(part) for part in parts]
    if value is None:
        text = ""
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    else:
        text = _plain(value) if isinstance(value, float) else str(value)
        if isinstance(value, str) and text[:1] in ("=", "+", "-", "@", "\t", "\r"):
            text = f"'{text}"  # a spreadsheet would run it as a formula
    return [text] + [""] * len(_MORE.get(kind, ()))


def _plain(value: float) -> str:
    # Nine digits are more than the scores carry, and hide the last bits, where machines differ.
    return f"{round(value, 12) + 0.0:.9g}"


def _quoted(text: str) -> str:
    if any(mark in text for mark in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _line(text: str) -> str:
    """The text on one line, without control characters."""
    return "".join(mark if mark.isprintable() else " " for mark in text)


def _markdown(text: str) -> str:
    escaped = _line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{mark}" if mark in "\\`*_[]|~#" else mark for mark in escaped)


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "−": "$-$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "×": r"$\times$",
    "α": r"$\alpha$",
    "δ": r"$\delta$",
    "ε": r"$\varepsilon$",
}


def _latex(text: str) -> str:
    return "".join(
        f"\\{mark}" if mark in "&%$#_{}" else _LATEX.get(mark, mark) for mark in _line(text)
    )


def _latex_row(values: tuple[str, ...] | list[str]) -> str:
    # A row that begins with "[" would be read as the optional argument of the line break before.
    first, *rest = [_latex(value) for value in values]
    guarded = f"{{}}{first}" if first.startswith(("[", "*")) else first
    return " & ".join([guarded, *rest]) + r" \\"


def _label(name: str) -> str:
    return "".join(mark if mark.isascii() and mark.isalnum() else "-" for mark in name)
