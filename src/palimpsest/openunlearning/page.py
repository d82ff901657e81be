"""The answer about a set of logs as one HTML page, with a picture per group."""

from itertools import groupby
from math import copysign, log1p
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from palimpsest.openunlearning import show
from palimpsest.openunlearning.models import Group, LogReport, Model, Outcome

SIDE = 400
"""Length of both axes of the picture."""
TICKS = (-50, -20, -10, -5, -2, 0, 2, 5, 10, 20, 50)
AROUND = [(r * x, r * y) for r in (14, 21, 28) for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1))]
"""Where the number of a mark may stand, seen from the mark; the best place first."""

Point = tuple[float, float]


class Picture(NamedTuple):
    """Places in the picture, from its upper left corner."""

    ticks: list[tuple[int, float]]
    marks: list[tuple[Model, Point, Point]]
    """Models, with the places of their mark and of their number."""
    runs: list[list[Point]]
    """Checkpoints of one run, in order."""


def render_page(report: LogReport) -> str:
    """Return the page; whatever a name holds is escaped."""
    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=folder, autoescape=True, undefined=StrictUndefined)
    environment.globals.update(show=show, side=SIDE)
    groups = [(group, draw_picture(group)) for group in report.groups]
    page = environment.get_template("page.html.j2")
    return page.render(groups=groups, problems=report.problems)


def draw_picture(group: Group) -> Picture:
    """Return where everything lies: holdout deltas to the right, forget deltas upward.

    Both axes are linear near 0, logarithmic further out and have one range, so that a model which
    knows forget and never-taught questions alike lies on the diagonal.
    """
    known = {
        model: (_bend(model.median_holdout or 0.0), _bend(model.median_forget or 0.0))
        for model in group.models
        if model.outcome is not Outcome.NOT_JUDGED
    }
    values = [value for pair in known.values() for value in pair]
    low, high = min([-1.0, *values]) - 0.2, max([1.0, *values]) + 0.2
    scale = SIDE / (high - low)
    places = {model: ((x - low) * scale, (high - y) * scale) for model, (x, y) in known.items()}
    taken, marks = list(places.values()), []
    for model, (x, y) in places.items():
        options = [(x + dx, y + dy) for dx, dy in AROUND]
        free = [at for at in options if not any(_overlap(at, other) for other in taken)]
        taken.append((free or options)[0])
        marks.append((model, (x, y), taken[-1]))
    runs = [[places[m] for m in run] for _, run in groupby(places, lambda m: m.name)]
    ticks = [(tick, (_bend(tick) - low) * scale) for tick in TICKS if low < _bend(tick) < high]
    return Picture(ticks, marks, runs)


def _bend(value: float) -> float:
    return copysign(log1p(abs(value)), value)


def _overlap(one: Point, other: Point) -> bool:
    return abs(one[0] - other[0]) < 14 and abs(one[1] - other[1]) < 12
