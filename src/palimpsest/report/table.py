"""The one table that analyses answer with: its cells, and its text for people and programs.

A cell holds text, a number, a truth value, ``Share`` (a count of a total), ``Estimate`` (a value
with its limits) or None where nothing was measured. CSV has one column per number; LaTeX shows
values as a paper does. The same table gives the same bytes.
"""

import csv
import io
import math
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from palimpsest.errors import ScoreError
from palimpsest.stats.intervals import Interval, cluster_bootstrap
from palimpsest.text import printable

Average = Literal["mean", "median"]


@dataclass(frozen=True, slots=True)
class Share:
    """A count of a total."""

    count: int
    total: int

    @classmethod
    def of(cls, events: Iterable[bool]) -> "Share":
        """Return how many of the events happened."""
        happened = list(events)
        return cls(sum(happened), len(happened))

    def __str__(self) -> str:
        return f"{self.count} of {self.total}"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its limits, which are None where there are too few cells for an interval."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, interval: Interval) -> "Estimate":
        return cls(interval.estimate, interval.low, interval.high)

    @classmethod
    def average(
        cls, values: Sequence[float], cells: Sequence[str], kind: Average = "mean"
    ) -> "Estimate | None":
        """Return the mean or median with the limits of a bootstrap over cells; without limits from
        one cell, and None without values."""
        if not len(values):
            return None
        if len(set(cells)) < 2:
            return cls(float(np.mean(values) if kind == "mean" else np.median(values)))
        return cls.of(cluster_bootstrap(values, cells, kind))


Value = str | int | float | bool | None | Share | Estimate
Row = dict[str, Any]
"""One row by the names of its columns; a table refuses values of other types than ``Value``."""
Forms = Mapping[str, str]
"""Formats of numbers by column, such as ``+.1f``; three decimals where there is none."""

_PLAIN = {str, int, bool, type(None), Share}
"""Types of which every value may stand in a table."""
P_VALUE = "p"
"""The format of p-values."""


@dataclass(frozen=True, slots=True)
class Table:
    """One question answered in rows."""

    name: str
    """File name without ending."""
    title: str
    reading: str
    """What the numbers show, in a sentence or two."""
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    forms: Forms = field(default_factory=dict)

    def __post_init__(self) -> None:
        by_column = zip(*self.rows, strict=True)
        for column, values in zip(self.columns, by_column, strict=bool(self.rows)):
            if set(map(type, values)) <= _PLAIN:
                continue
            for value in values:
                limits = (value.value, value.low, value.high) if isinstance(value, Estimate) else ()
                numbers = [part for part in (value, *limits) if isinstance(part, float)]
                if not isinstance(value, Value) or not all(map(math.isfinite, numbers)):
                    raise ScoreError(
                        f"table {self.name}, column {column}: {value} found; expected text, a "
                        "finite number, or nothing where none was measured"
                    )

    @classmethod
    def of(
        cls, name: str, title: str, reading: str, rows: Sequence[Row], forms: Forms | None = None
    ) -> "Table":
        """Return the table of these rows, all of which have the same keys: the columns."""
        columns = tuple(rows[0]) if rows else ()
        values = tuple(tuple(row[column] for column in columns) for row in rows)
        return cls(name, title, reading, columns, values, forms or {})

    def only(self, columns: Iterable[str]) -> "Table":
        """Return the table with these of its columns, in this order."""
        indices = [self.columns.index(column) for column in columns if column in self.columns]
        return replace(
            self,
            columns=tuple(self.columns[index] for index in indices),
            rows=tuple(tuple(row[index] for index in indices) for row in self.rows),
        )

    def records(self) -> list[Row]:
        """Return every row by the names of its columns."""
        return [dict(zip(self.columns, values)) for values in self.rows]

    def plain(self) -> list[dict[str, Any]]:
        """Return every row in plain JSON values."""
        return [
            {k: asdict(v) if isinstance(v, Share | Estimate) else v for k, v in record.items()}
            for record in self.records()
        ]

    def shown(self, column: str, value: Value) -> str:
        """Return a value of a column for a person."""
        return shown(value, self.forms.get(column, ""))

    @property
    def numeric(self) -> list[bool]:
        """By column, whether it holds numbers, which stand at the right."""
        kinds = [set(map(type, column)) - {type(None)} for column in zip(*self.rows)]
        kinds = kinds or [set()] * len(self.columns)
        return [bool(k) and not any(issubclass(kind, str | bool) for kind in k) for k in kinds]


def shown(value: Value, form: str = "") -> str:
    """Return a value for a person: three decimals, shares as 12/45, limits in brackets."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Share):
        return f"{value.count}/{value.total}" if value.total else "–"
    if isinstance(value, Estimate):
        if value.low is None or value.high is None:
            return shown(value.value, form)
        return f"{shown(value.value, form)} [{shown(value.low, form)}, {shown(value.high, form)}]"
    if isinstance(value, float):
        if form == P_VALUE:
            return p_value(value)
        return format(value + 0.0, form).replace("%", " %") if form else number(value)
    return str(value)


def p_value(value: float) -> str:
    """Return a p-value; what lies below a millionth is not told apart."""
    return "< 1e-6" if value < 1e-6 else f"{value:.2g}"


def number(value: float) -> str:
    """Return three decimals, or a power of ten for what three decimals would hide."""
    rounded = round(value, 3) + 0.0  # no minus zero
    hidden = rounded == 0 and abs(value) >= 1e-9
    return f"{value:.1e}" if hidden else f"{rounded:.3f}"


# -- terminal --------------------------------------------------------------------------------------


def table_lines(table: Table, wide: int | None = None) -> str:
    """Return a table with its title and reading, as wide as the terminal: where it does not fit,
    its longest texts are folded, and nothing is cut."""
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    wide = wide or width()
    texts = [[printable(table.shown(*pair)) for pair in zip(table.columns, r)] for r in table.rows]
    sizes = [max(map(len, column)) for column in zip(table.columns, *texts)]
    # The first two columns hold names; these and lists are folded first, labels last.
    lists = [any(", " in text for text in column) for column in zip(table.columns, *texts)]
    kept = [size for size, several in zip(sizes[2:], lists[2:]) if not several]
    names_alone = sum(kept) + 2 * len(sizes) + 28 <= wide
    grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for index, (name, column) in enumerate(zip(table.columns, zip(*texts))):
        number = not re.search("[A-Za-z]{2}", "".join(column))
        grid.add_column(
            Text(name),
            justify="right" if number else "left",
            overflow="fold",
            no_wrap=names_alone and not lists[index] and (index >= 2 or name == "label"),
        )
    for row in texts:
        grid.add_row(*map(Text, row))
    out = io.StringIO()
    Console(file=out, width=wide, color_system=None).print(grid)
    lines = [line.rstrip() for line in out.getvalue().splitlines()] if texts else []
    around = wrapped(table.title, wide), wrapped(table.reading, wide)
    return "\n".join(filter(None, [around[0], *lines, around[1]]))


def wrapped(text: str, wide: int | None = None) -> str:
    """Return a paragraph in lines of the terminal's width, at most 100, but for a path or a name
    that is longer."""
    wide = wide or min(100, width())
    return textwrap.fill(
        printable(text),
        wide,
        subsequent_indent="  ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def width() -> int:
    """Return the width of the terminal, at least 60 columns."""
    return max(60, shutil.get_terminal_size((80, 24)).columns)


# -- files -----------------------------------------------------------------------------------------


_MORE: dict[type, tuple[str, ...]] = {Share: (" of",), Estimate: (" low", " high")}
"""The further CSV columns of a column that holds shares or estimates."""
_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "–": "--", "−": "$-$",
} | {sign: f"\\{sign}" for sign in "&%$#_{}"}  # fmt: skip


def as_csv(table: Table) -> str:
    """Return the table as CSV with one column per number; lines end with a newline."""
    columns = zip(table.columns, list(zip(*table.rows)) or [()] * len(table.columns))
    out = io.StringIO()
    fields = [column for name, values in columns for column in _csv_columns(name, values)]
    csv.writer(out, lineterminator="\n").writerows(zip(*fields))
    return out.getvalue()


def _csv_columns(name: str, values: Sequence[Value]) -> Iterable[Sequence[str]]:
    """Return a column as its CSV columns, each with its name first."""
    kind = next((k for k in _MORE if k in set(map(type, values))), None)
    if kind is None:
        return [[name, *map(_field, values)]]
    names = [name, *(name + end for end in _MORE[kind])]
    return zip(names, *(_fields(value, len(names)) for value in values))


def _fields(value: Value, count: int) -> list[str]:
    """Return a value as so many CSV fields."""
    if isinstance(value, Share):
        return [str(value.count), str(value.total)]
    if isinstance(value, Estimate):
        return [_digits(part) for part in (value.value, value.low, value.high)]
    return [_field(value)] + [""] * (count - 1)


def _field(value: Value) -> str:
    if isinstance(value, float | None):
        return _digits(value)
    text = shown(value)
    # A spreadsheet would run it as a formula.
    risky = isinstance(value, str) and text[:1] in ("=", "+", "-", "@", "\t", "\r")
    return f"'{text}" if risky else text


def _digits(value: float | None) -> str:
    # Nine digits are more than the scores carry, and hide the last bits, where machines differ.
    return "" if value is None else f"{round(value, 12) + 0.0:.9g}"


def as_latex(table: Table) -> str:
    """Return the table as LaTeX with booktabs rules."""
    form = "".join("r" if number else "l" for number in table.numeric)
    texts = ([table.shown(*pair) for pair in zip(table.columns, row)] for row in table.rows)
    head, *body = [_latex_row(row) for row in (table.columns, *texts)]
    caption = f"{_latex(table.title)}. {_latex(table.reading)}"
    lines = [r"\begin{table}[t]", r"\centering", rf"\caption{{{caption}}}"]
    lines += [rf"\label{{tab:{table.name}}}", rf"\begin{{tabular}}{{{form}}}", r"\toprule"]
    lines += [head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in printable(text, " "))


def _latex_row(values: Iterable[str]) -> str:
    # A row that begins with "[" would be read as the optional argument of the line break before.
    first, *rest = [_latex(value) for value in values] or [""]
    guarded = f"{{}}{first}" if first.startswith(("[", "*")) else first
    return " & ".join([guarded, *rest]) + r" \\"
