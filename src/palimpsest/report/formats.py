"""Tables, and their text as CSV, Markdown and LaTeX: pure functions from values to text.

A table's cells are text, numbers, truth values, ``Share`` (so many of so many), ``Estimate`` (a
value with its limits) or None where nothing was measured. CSV has one column per number, for
machines; Markdown and LaTeX show values as a paper does. The same table gives the same bytes.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
        """Return the interval, or the bare value where there is none."""
        if interval is not None:
            return cls(interval.estimate, interval.low, interval.high)
        return None if value is None else cls(value, None, None)


Value = str | int | float | bool | None | Share | Estimate
_MORE: dict[type | None, tuple[str, ...]] = {Share: (" of",), Estimate: (" low", " high")}
"""The further CSV columns of a column that holds shares or estimates."""


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
    forms: Mapping[str, str] = field(default_factory=dict)
    """The format of a column's numbers where it is not three decimals, such as ``+.1f``."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ScoreError(
                    f"table {self.name}: a row of {len(row)} values for {len(self.columns)} columns"
                )
            for column, value in zip(self.columns, row):
                for part in _numbers(value):
                    if not math.isfinite(part):
                        raise ScoreError(
                            f"table {self.name}, column {column}: {part} found; expected a finite "
                            "number, or nothing where none was measured"
                        )

    @classmethod
    def of(
        cls,
        name: str,
        title: str,
        reading: str,
        rows: Sequence[Mapping[str, Value]],
        forms: Mapping[str, str] | None = None,
    ) -> "Table":
        """Return the table of these rows, all of which have the same keys: the columns."""
        columns = tuple(rows[0]) if rows else ()
        values = tuple(tuple(row[column] for column in columns) for row in rows)
        return cls(name, title, reading, columns, values, forms or {})

    def only(self, columns: Sequence[str]) -> "Table":
        """Return the table with these of its columns, in this order."""
        places = [self.columns.index(column) for column in columns if column in self.columns]
        return replace(
            self,
            columns=tuple(self.columns[place] for place in places),
            rows=tuple(tuple(row[place] for place in places) for row in self.rows),
        )

    def without(self, *columns: str) -> "Table":
        """Return the table without these columns."""
        return self.only([column for column in self.columns if column not in columns])

    def shown(self, column: str, value: Value) -> str:
        """Return a value of a column for a person."""
        return shown(value, self.forms.get(column, ""))


def row(columns: str, *values: Value) -> dict[str, Value]:
    """Return a row, or a part of it: names of columns separated by "|", and their values."""
    return dict(zip(columns.split("|"), values, strict=True))


# -- writers --------------------------------------------------------------------------------------


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
    return f"**{_markdown(table.title)}.** {_markdown(table.reading)}\n\n" + "\n".join(lines) + "\n"


def as_latex(table: Table) -> str:
    """Return the table as LaTeX with booktabs rules."""
    form = "".join("r" if _right(table, place) else "l" for place in range(len(table.columns)))
    label = "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in table.name)
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{_latex(table.title)}. {_latex(table.reading)}}}",
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


def shown(value: Value, form: str = "") -> str:
    """Return a value for a person: three decimals, shares as 12/45, an interval in brackets."""
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
    if isinstance(value, float):
        return format(value + 0.0, form).replace("%", " %") if form else number(value)
    return str(value)


def percent(value: float) -> str:
    """Return a share in per cent, without decimals."""
    return f"{100 * value:.0f} %"


def number(value: float) -> str:
    """Return three decimals, or a power of ten for what three decimals would hide."""
    rounded = round(value, 3) + 0.0  # no minus zero
    if rounded == 0 and abs(value) >= 1e-9:
        return f"{value:.1e}"
    return f"{rounded:.3f}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return so many of a noun: 1 cell, 3 cells."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def listed(words: Sequence[str]) -> str:
    """Return the words as a list in a sentence: a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else list(words))


def printable(text: str) -> str:
    """Return the text with every sign replaced that a terminal or a parser could obey."""
    return "".join(sign if sign.isprintable() else "�" for sign in text)


# -- pieces ---------------------------------------------------------------------------------------


def _texts(table: Table) -> list[list[str]]:
    return [[table.shown(name, value) for name, value in zip(table.columns, row)]
            for row in table.rows]  # fmt: skip


def _numbers(value: Value) -> list[float]:
    if isinstance(value, Estimate):
        return [part for part in (value.value, value.low, value.high) if part is not None]
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
