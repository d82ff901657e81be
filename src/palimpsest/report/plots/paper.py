"""A figure as SVG and PNG for a paper, drawn by matplotlib: the same bytes from the same values."""

import io
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from palimpsest.report.palette import SHAPES, Style
from palimpsest.report.plots.spec import Figure, Panel, Point
from palimpsest.report.plots.svg import LEGEND, shortened
from palimpsest.report.terminal import printable

SETTINGS = {
    "svg.hashsalt": "palimpsest",
    "svg.fonttype": "path",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#555555",
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "path.simplify": False,
}
INK, GRID = "#333333", "#e4e4e0"


def paper_figure(figure: Figure, styles: dict[str, Style]) -> dict[str, bytes]:
    """The figure's bytes by file ending, ``svg`` and ``png``."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name in a script the font lacks is drawn as boxes
        across = 1 if figure.wide else min(3, len(figure.panels))
        down = math.ceil(len(figure.panels) / across)
        heights = [
            max(_height(panel, figure.wide) for panel in figure.panels[row * across :][:across])
            for row in range(down)
        ]
        size = (6.4 if figure.wide else 3.2 * across, sum(heights) + 0.35)
        # Titles of one figure stand at one height, however many names stand below them.
        lanes = max(max(_lanes(panel), default=-1) for panel in figure.panels) + 1
        canvas = Canvas(figsize=size, layout="constrained")
        FigureCanvasAgg(canvas)
        grid = canvas.subplots(down, across, squeeze=False, height_ratios=heights)
        for place, axes in enumerate(grid.flat):
            if place < len(figure.panels):
                _draw(axes, figure.panels[place], styles, lanes)
            else:
                axes.set_axis_off()
        if figure.legend:
            canvas.legend(
                handles=[
                    _key(styles[style], text, hollow) for style, text, hollow in figure.legend
                ],
                loc="outside lower center",
                ncols=_columns([text for _, text, _ in figure.legend], canvas.get_figwidth()),
                frameon=False,
                fontsize=7,
                handletextpad=0.2,
            )
        return {
            "svg": _bytes(canvas, "svg", {"Date": None, "Creator": None}),
            "png": _bytes(canvas, "png", {"Software": None}),
        }


def _columns(texts: Sequence[str], inches: float) -> int:
    """In how many columns a legend fits: 20 signs an inch, and 8 for a marker and what is around.

    The longest text makes a column's width; texts run down the columns.
    """
    most = min(6, len(texts))
    for count in range(most, 1, -1):
        widths = np.array_split([min(len(text), LEGEND) + 8 for text in texts], count)
        if sum(column.max() for column in widths) <= 20 * inches:
            return count
    return 1


def _bytes(canvas: Any, ending: str, metadata: dict[str, None]) -> bytes:
    out = io.BytesIO()
    canvas.savefig(out, format=ending, dpi=160, metadata=metadata)
    return out.getvalue()


def _height(panel: Panel, wide: bool) -> float:
    if panel.rows:
        return 0.75 + 0.19 * len(panel.rows)
    return 3.6 if wide else 2.3


def _draw(axes: Any, panel: Panel, styles: dict[str, Style], above: int) -> None:
    """Everything is placed in shares of the axis, so that both drawings scale alike."""
    x = panel.x.place
    y = (lambda value: value) if panel.y is None else panel.y.place
    axes.set_xlim(0, 1)
    axes.set_axisbelow(True)
    ticks = panel.x.ticks(5)
    axes.set_xticks([x(value) for value, _ in ticks], [text for _, text in ticks])
    axes.set_xlabel(panel.x.label)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    if panel.title:
        axes.set_title(
            shortened(panel.title, 48),
            fontsize=8,
            fontweight="bold",
            loc="left",
            pad=5 + 7 * above,
        )
    if panel.y is None:
        axes.set_ylim(len(panel.rows) - 0.5, -0.5)
        labels = [shortened(row.label, 24) for row in panel.rows]
        axes.set_yticks(range(len(panel.rows)), labels)
        axes.tick_params(axis="y", length=0)
        for place, row in enumerate(panel.rows):
            if row.note:
                note = printable(row.note)
                axes.text(1.02, place, note, fontsize=6.5, va="center", color=INK)
    else:
        axes.set_ylim(0, 1)
        ticks = panel.y.ticks(5)
        axes.set_yticks([y(value) for value, _ in ticks], [text for _, text in ticks])
        axes.set_ylabel(panel.y.label)
        axes.grid(axis="y", color=GRID, linewidth=0.6)
    if panel.inside is not None:
        axes.axvspan(*(x(value) for value in panel.inside), color="#eef3ee", zorder=0)
    for band in panel.bands:
        xs = [x(value) for value in band.xs]
        low, high = ([y(value) for value in side] for side in (band.low, band.high))
        axes.fill_between(xs, low, high, color="#bbbbbb", alpha=0.5, linewidth=0)
    for line in panel.lines:
        axes.plot(
            [x(value) for value in line.xs],
            [y(value) for value in line.ys],
            color=styles[line.style].light,
            linewidth=1.1,
            linestyle="--" if line.dashed else "-",
        )
    for rule, lane in zip(panel.rules, _lanes(panel)):
        draw = axes.axvline if rule.axis == "x" else axes.axhline
        at = x(rule.value) if rule.axis == "x" else y(rule.value)
        draw(at, color=INK, linewidth=0.8, linestyle="-" if rule.solid else (0, (4, 3)))
        if rule.axis == "x":
            axes.annotate(
                printable(rule.label),
                (at, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, 2 + 7 * lane),
                textcoords="offset points",
                fontsize=6,
                color=INK,
                ha="center",
            )
        else:
            axes.annotate(
                printable(rule.label),
                (1, at),
                xytext=(0, 2),
                textcoords="offset points",
                fontsize=6,
                color=INK,
                ha="right",
            )
    groups: dict[tuple[str, bool, bool], list[Point]] = {}
    for point in panel.points:
        groups.setdefault((point.style, point.hollow, point.small), []).append(point)
    for (name, hollow, small), points in groups.items():
        style = styles[name]
        axes.plot(
            [min(max(x(point.x), 0), 1) for point in points],
            [y(point.y) for point in points],
            marker=SHAPES[style.shape].matplotlib,
            markersize=3.2 if small else 4.4,
            color=style.light,
            markerfacecolor="white" if hollow else style.light,
            markeredgewidth=0.8,
            linestyle="none",
            clip_on=False,
        )


def _lanes(panel: Panel) -> list[int]:
    """For each rule the line above the plot its name is written on, so that none overlap."""
    ends: list[float] = []
    lanes = []
    for rule in panel.rules:
        if rule.axis != "x":
            lanes.append(-1)
            continue
        here, half = panel.x.place(rule.value), 0.014 * len(rule.label)
        lane = next((k for k, end in enumerate(ends) if here - half >= end), len(ends))
        ends[lane : lane + 1] = [here + half]
        lanes.append(lane)
    return lanes


def _key(style: Style, text: str, hollow: bool) -> Any:
    from matplotlib.lines import Line2D

    return Line2D(
        [],
        [],
        linestyle="none",
        marker=SHAPES[style.shape].matplotlib,
        markersize=4.4,
        color=style.light,
        markerfacecolor="white" if hollow else style.light,
        label=shortened(text, LEGEND),
    )
