"""What a figure shows, without saying how it is drawn: panels of points, lines, bands and rules.

The page draws a figure as light SVG with a name at every point, the files in ``RUN/report/figures``
are drawn by matplotlib; both read the same values from here.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from palimpsest.errors import ScoreError
from palimpsest.report.formats import Table

SCALES = ("linear", "log", "asinh")
"""``asinh`` is linear near zero and logarithmic far out, for values of both signs."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A numeric axis."""

    label: str
    low: float
    high: float
    scale: str = "linear"

    def place(self, value: float) -> float:
        """Where a value lies, 0 at the low end and 1 at the high one; outside stays outside."""
        low, high = _scaled(self.low, self.scale), _scaled(self.high, self.scale)
        return (_scaled(value, self.scale) - low) / (high - low)

    def ticks(self, most: int) -> tuple[tuple[float, str], ...]:
        """Round values inside the axis with their text, about ``most`` at the utmost."""
        if self.scale == "linear":
            values = _linear_ticks(self.low, self.high, most)
        else:
            values = self._spread_ticks(most)
        return tuple((value, _tick_text(value)) for value in values)

    def _spread_ticks(self, most: int) -> list[float]:
        sizes = [mantissa * 10.0**power for power in range(-4, 6) for mantissa in (1, 2, 5)]
        offered = sorted([0.0, *sizes, *(-size for size in sizes)], key=_roundness)
        if self.scale == "log":
            offered = [value for value in offered if value > 0]
        chosen: list[float] = []
        for value in offered:
            if not self.low <= value <= self.high:
                continue
            here = self.place(value)
            if all(abs(here - self.place(other)) >= 1 / (most + 1) for other in chosen):
                chosen.append(value)
        return sorted(chosen)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a panel that lists things: its name, and a short note at the right."""

    label: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """One marker; y is the place of its row in a panel of rows."""

    x: float
    y: float
    style: str
    """A name of the palette."""
    label: str
    """What it is, with its numbers, for a reader who points at it."""
    hollow: bool = False
    small: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A curve."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    style: str
    label: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """The area between two curves."""

    xs: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    label: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A straight line at a value of an axis, with its name."""

    value: float
    label: str
    axis: str = "x"
    solid: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    title: str
    x: Axis
    y: Axis | None = None
    """None when the panel has rows."""
    rows: tuple[Row, ...] = ()
    points: tuple[Point, ...] = ()
    lines: tuple[Line, ...] = ()
    bands: tuple[Band, ...] = ()
    rules: tuple[Rule, ...] = ()
    inside: tuple[float, float] | None = None
    """Part of the x axis that is shaded: where a model should lie."""
    style: str = ""
    """The method the panel is about, if it is about one."""
    notes: str = ""
    """What the notes of the rows are."""

    def __post_init__(self) -> None:
        if (self.y is None) != bool(self.rows):
            raise ScoreError(f"panel {self.title}: expected either a y axis or rows")


@dataclass(frozen=True, slots=True)
class Figure:
    """Panels that answer one question, with what they show in one sentence and their data."""

    name: str
    """File name without ending."""
    title: str
    reading: str
    """One sentence computed from the numbers."""
    alt: str
    """What is drawn, for somebody who does not see it."""
    panels: tuple[Panel, ...]
    data: Table
    legend: tuple[tuple[str, str, bool], ...] = ()
    """Style, text, and whether the marker is hollow."""
    wide: bool = False
    """One large panel rather than small ones."""


def axis_over(
    label: str,
    values: Iterable[float],
    *,
    also: Sequence[float] = (),
    scale: str = "linear",
    margin: float = 0.05,
) -> Axis:
    """An axis that holds all values and ``also``, with a margin."""
    held = [float(value) for value in (*values, *also)]
    if not held:
        held = [0.0, 1.0]
    if scale not in SCALES:
        raise ScoreError(f"axis {label}: scale {scale!r}; expected one of {', '.join(SCALES)}")
    low, high = _scaled(min(held), scale), _scaled(max(held), scale)
    room = (high - low) * margin or max(abs(high) * 0.1, 0.1)
    return Axis(label, _unscaled(low - room, scale), _unscaled(high + room, scale), scale)


def far_spread(values: Iterable[float], limit: float = 4.0) -> str:
    """``asinh`` when some values lie far from zero, where a linear axis would crush the rest."""
    return "asinh" if max((abs(value) for value in values), default=0.0) > limit else "linear"


def jitter(place: int) -> float:
    """A fixed offset in (-0.3, 0.3) that keeps neighbours of one row apart."""
    return 0.6 * ((place * 0.6180339887498949) % 1 - 0.5)


def two(value: float) -> str:
    """Two decimals, for a note."""
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")


def _scaled(value: float, scale: str) -> float:
    if scale == "log":
        return math.log10(max(value, 1e-12))
    return math.asinh(value) if scale == "asinh" else value


def _unscaled(value: float, scale: str) -> float:
    if scale == "log":
        return float(10.0**value)
    return math.sinh(value) if scale == "asinh" else value


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    rough = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * size for size in (1, 2, 2.5, 5, 10) if power * size >= rough)
    first = math.ceil(low / step)
    values: list[float] = []
    while (first + len(values)) * step <= high:
        values.append((first + len(values)) * step)
    return values


def _roundness(value: float) -> tuple[int, int, float]:
    """Zero first, then powers of ten from one outwards, then five and two."""
    if value == 0:
        return (0, 0, 0.0)
    power = math.floor(math.log10(abs(value)) + 1e-9)
    mantissa = round(abs(value) / 10.0**power)
    return (1 if mantissa == 1 else 2 if mantissa == 5 else 3, abs(power), -value)


def _tick_text(value: float) -> str:
    return f"{value + 0.0:.6g}".replace("-", "−")
