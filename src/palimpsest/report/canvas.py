"""What every figure shares: colors, matplotlib's settings, sheets, points, scales, bytes of files.

Colors are Okabe and Ito's, which stay distinct for color-blind readers ("Color Universal Design",
2008): cool for methods that restore, warm for those that suppress. The marker says the same as the
color, so nothing depends on color alone. A method that is not listed gets the next free style. The
same values give the same bytes: no date, no random ids, text as text.
"""

import io
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from palimpsest.text import printable, shortened


@dataclass(frozen=True, slots=True)
class Style:
    """How one method, or one kind of known model, is drawn."""

    color: str
    marker: str
    """A marker of matplotlib."""


METHODS = {
    "kl_reversion": Style("#0072b2", "o"),
    "gate_mask": Style("#009e73", "D"),
    "task_vector": Style("#3f9fd1", "s"),
    "replay": Style("#117a65", "p"),
    "ga": Style("#d55e00", "^"),
    "npo": Style("#d98c00", "v"),
    "rollback": Style("#6b6b6b", "s"),
}
"""In the order in which figures and legends name them."""
KNOWN = {
    "retraining": Style("#767672", "o"),
    "fresh retraining": Style("#5c7f9c", "o"),
    "same-draw retraining": Style("#5c7f9c", "s"),
    "injected": Style("#7d2a00", "s"),
    "mixture": Style("#b5591b", "d"),
    "known-label model": Style("#7a5195", "h"),
    "candidate": Style("#1f5fa8", "D"),
    "probe": Style("#9a9994", "|"),
}
INK, QUIET, GRID, BAND, STRIPE = "#333333", "#6b675f", "#e4e4e0", "#d9d7cf", "#eeede8"
_FREE = ("#cc79a7", "#8f4f86", "#6f6bb0", "#5b8c8a", "#a8503c", "#b8860b")
SETTINGS: dict[str, Any] = {
    "svg.hashsalt": "palimpsest",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "axes.titlelocation": "left",
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "grid.color": GRID,
    "legend.frameon": False,
}
FAR, LINEAR = 60.0, 3.0
"""Standard deviations up to which distances are drawn, and up to which their scale is linear."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure and its words."""

    name: str
    """File name without ending."""
    title: str
    reading: str
    about: str
    """What its numbers show, and how to read it."""
    figure: Figure


def method_styles(methods: Iterable[str]) -> dict[str, Style]:
    """Return the style of every method named: listed ones in their order, then the others."""
    wanted = list(dict.fromkeys(methods))
    others = [name for name in wanted if name not in METHODS]
    free = [Style(_FREE[n % 6], "XPH*d8"[n // 6 % 6]) for n in range(len(others))]
    return {n: s for n, s in METHODS.items() if n in wanted} | dict(zip(others, free))


@contextmanager
def figure() -> Iterator[None]:
    """Apply the settings; use it as a decorator of every function that draws."""
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name in a script the font lacks is drawn as boxes
        yield


def sheet(
    size: tuple[float, float],
    entries: Sequence[Line2D] = (),
    *,
    panels: int = 1,
    across: int = 2,
    left: float = 1.7,
    right: float = 0.9,
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels of this size, in inches, and the legend of ``entries`` below."""
    across = min(across, panels)
    down = math.ceil(panels / across)
    widest = max((len(str(entry.get_label())) for entry in entries), default=1) + 6
    cell = (left + size[0] + right, 0.35 + size[1] + 0.5)
    columns = max(1, min(len(entries), 6, int(across * cell[0] * 15 // widest)))
    below = 0.22 * math.ceil(len(entries) / columns)  # inches of a legend's lines
    wide, high = across * cell[0], down * cell[1] + below
    figure = Figure(figsize=(wide, high))
    FigureCanvasAgg(figure)
    axes = []
    for index in range(panels):
        x, y = (index % across) * cell[0] + left, high - (index // across + 1) * cell[1] + 0.5
        axes.append(figure.add_axes((x / wide, y / high, size[0] / wide, size[1] / high)))
    if entries:
        figure.legend(handles=list(entries), loc="lower center", ncols=columns, borderpad=0)
    return figure, axes


def points(axes: Axes, where: Sequence[tuple[float, float]], style: Style, **options: Any) -> None:
    """Draw markers at (x, y)."""
    if where:
        (line,) = axes.plot(*zip(*where), linestyle="none", **look(style, **options))
        line.set_clip_on(False)


def look(
    style: Style, size: float = 5.0, hollow: bool = False, order: float = 3.0
) -> dict[str, Any]:
    """Return the properties of a marker."""
    return {
        "marker": style.marker,
        "markersize": size,
        "markerfacecolor": "white" if hollow else style.color,
        "markeredgecolor": style.color,
        "markeredgewidth": 1.0 if hollow else 0.5,
        "zorder": order,
    }


def key(style: Style, text: str, *, line: str = "none", **options: Any) -> Line2D:
    """Return an entry of a legend."""
    shown = look(style, **options)
    return Line2D([], [], linestyle=line, color=style.color, label=shortened(text, 48), **shown)


def rows(axes: Axes, labels: Sequence[str], notes: Sequence[str] = (), heading: str = "") -> None:
    """Turn the y axis into rows with these labels, and short notes at the right."""
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), [shortened(label, 30) for label in labels])
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=True, axis="x")
    axes.set_axisbelow(True)
    right = axes.get_yaxis_transform()
    for index, note in enumerate(notes):
        axes.text(1.02, index, printable(note), transform=right, va="center", color=QUIET)
    axes.text(1.02, -0.6, heading, transform=right, va="bottom", color=QUIET, fontsize=7)


def distances(
    axes: Axes, values: Iterable[float], *, signed: bool = True
) -> Callable[[float], float]:
    """Scale the x axis for distances in standard deviations; return what clips one to it."""
    reach = min(FAR, max((abs(value) for value in values), default=LINEAR))
    reach = max(1.05 * reach, 1.5 * LINEAR)
    axes.set_xscale("symlog", linthresh=LINEAR, linscale=1.3)
    axes.set_xlim(-1.2 * reach if signed else 0, 1.2 * reach)
    ticks = [tick for tick in (0, 1, 2, 3, 10, 30) if tick <= reach]
    axes.xaxis.set_major_locator(FixedLocator(sorted({*ticks, *(-tick for tick in ticks)})))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")
    return lambda value: min(max(value, -reach), reach)


def bend(axes: Axes, values: Iterable[float], which: str = "x") -> None:
    """Bend an axis when some values lie far from zero, where a linear one would crush the rest."""
    if max((abs(value) for value in values), default=0.0) > 8:
        axes.set(**{f"{which}scale": "symlog"})
        axis = axes.xaxis if which == "x" else axes.yaxis
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def jitter(index: int) -> float:
    """Return a fixed offset in (-0.3, 0.3) that keeps neighbors of one row distinct."""
    return 0.6 * ((index * 0.6180339887498949) % 1 - 0.5)


@figure()
def figure_bytes(figure: Figure, form: str) -> bytes:
    """Return the figure as ``svg`` or ``png``, the same bytes each time."""
    nothing = {"svg": ("Date", "Creator"), "png": ("Software",)}[form]
    out = io.BytesIO()
    figure.savefig(out, format=form, dpi=150, metadata=dict.fromkeys(nothing))
    return out.getvalue()
