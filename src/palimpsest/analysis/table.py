"""The one table that analyses answer with, what its cells hold, and how they are shown.

A table's cells are text, numbers, truth values, ``Share`` (so many of so many), ``Estimate`` (a
value with its limits) or None where nothing was measured.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

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
Row = dict[str, Value]


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

    def records(self) -> list[Row]:
        """Return every row by the names of its columns."""
        return [dict(zip(self.columns, values)) for values in self.rows]

    def plain(self) -> list[dict[str, Any]]:
        """Return the same in plain JSON values."""
        return [
            {k: asdict(v) if isinstance(v, Share | Estimate) else v for k, v in record.items()}
            for record in self.records()
        ]

    def shown(self, column: str, value: Value) -> str:
        """Return a value of a column for a person."""
        return shown(value, self.forms.get(column, ""))


def row(columns: str, *values: Value) -> dict[str, Value]:
    """Return a row, or a part of it: names of columns separated by "|", and their values."""
    return dict(zip(columns.split("|"), values, strict=True))


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
            return shown(value.value, form)
        return f"{shown(value.value, form)} [{shown(value.low, form)}, {shown(value.high, form)}]"
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


def _numbers(value: Value) -> list[float]:
    if isinstance(value, Estimate):
        return [part for part in (value.value, value.low, value.high) if part is not None]
    return [value] if isinstance(value, float) else []
