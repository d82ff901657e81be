"""The picture of a verdict: one row per axis, the retrainings as a band, the models on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from palimpsest.analysis.table import printable
from palimpsest.criteria.axes import Axis
from palimpsest.report.palette import BAND, HIGHLIGHT, INK, QUIET, SHEET, STRIPE, Style, styles
from palimpsest.report.plots import canvas

Distances = Mapping[str, float]
"""By axis: distance from the mean of the retrainings, in their standard deviations."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One model of the picture, or several of one kind."""

    label: str
    style: Style
    models: Mapping[str, Distances]
    """By name."""
    size: float = 5.0
    hollow: bool = False


@canvas.drawing()
def retrainings(
    axes: Sequence[Axis],
    references: Sequence[Distances],
    others: Sequence[Shown],
    focus: tuple[str, Distances] | None = None,
    *,
    certified: bool = False,
    worst: str | None = None,
    narrow: bool = False,
) -> Figure:
    """Draw where models lie among the retrainings, axis by axis.

    focus: the candidate the verdict is about, drawn as a line. worst: its worst axis.
    """
    every = [z for reference in references for z in reference.values()]
    every += [z for shown in others for model in shown.models.values() for z in model.values()]
    every += list(focus[1].values()) if focus else []
    width, height = (3.9, 0.42) if narrow else (8.4, 0.43)
    figure, (panel,) = canvas.sheet(1, 1, (width, height * len(axes) + 0.95))
    notes = [] if focus is None else [_note(focus[1].get(axis.name)) for axis in axes]
    titles = [axis.title for axis in axes]
    canvas.rows(panel, titles)
    reach = canvas.distances(panel, every)
    _background(panel, axes, worst)
    for place, axis in enumerate(axes):
        _band(panel, place, axis.name, references)
    for shown in others:
        _scatter(panel, axes, shown, reach)
    if focus is not None:
        style = styles(())["certified" if certified else "nearest"]
        _line(panel, axes, focus, style, reach)
    _notes(panel, notes, titles, worst, narrow)
    panel.set_xlabel("distance from the mean retraining, in standard deviations of retraining")
    if narrow:
        panel.set_xlabel("standard deviations from the mean retraining")
    canvas.legend(figure, _legend(references, others, focus, certified), across=1 if narrow else 0)
    return figure


def _background(panel: Axes, axes: Sequence[Axis], worst: str | None) -> None:
    panel.grid(visible=False)
    for place, axis in enumerate(axes):
        if axis.name == worst or place % 2:
            colour = HIGHLIGHT if axis.name == worst else STRIPE
            panel.axhspan(place - 0.5, place + 0.5, color=colour, linewidth=0, zorder=0)
    panel.axvline(0.0, color=QUIET, linewidth=0.7, zorder=1)


def _band(panel: Axes, place: int, axis: str, references: Sequence[Distances]) -> None:
    """Draw the retrainings of one axis: their range as a bar, each as a dot."""
    values = [reference[axis] for reference in references if axis in reference]
    if values:
        low, high = min(values), max(values)
        panel.barh(place, high - low, 0.62, left=low, color=BAND, linewidth=0, zorder=1.2)
        offsets = [place + 0.75 * canvas.jitter(number) for number in range(len(values))]
        where = list(zip(values, offsets))
        canvas.points(panel, where, styles(())["reference"], size=3.0, alpha=0.9, order=2)


def _scatter(panel: Axes, axes: Sequence[Axis], shown: Shown, reach: float) -> None:
    inside: list[tuple[float, float]] = []
    names: list[str] = []
    for place, axis in enumerate(axes):
        for name, model in shown.models.items():
            z = model.get(axis.name)
            if z is None:
                continue
            text = f"{name}: {axis.title} {_note(z)}"
            if abs(z) <= min(canvas.FAR, reach):
                inside.append((z, place))
                names.append(text)
            else:
                mark = ">" if z > 0 else "<"
                edge = [(reach if z > 0 else -reach, place)]
                canvas.points(panel, edge, shown.style, [text], size=shown.size, marker=mark)
    canvas.points(panel, inside, shown.style, names, hollow=shown.hollow, size=shown.size)


def _line(
    panel: Axes, axes: Sequence[Axis], focus: tuple[str, Distances], style: Style, reach: float
) -> None:
    """Draw the candidate as one line across the axes, so that it is seen as one model."""
    name, values = focus
    known = [(place, values[axis.name]) for place, axis in enumerate(axes) if axis.name in values]
    clipped = [(min(max(z, -reach), reach), place) for place, z in known]
    panel.plot(*zip(*clipped), color=style.light, linewidth=1.4, zorder=4, alpha=0.6)
    for (x, place), (_, z) in zip(clipped, known):
        mark = "" if abs(z) <= min(canvas.FAR, reach) else ">" if z > 0 else "<"
        text = f"{name}: {axes[place].title} {_note(z)}"
        canvas.points(panel, [(x, place)], style, [text], size=8, marker=mark, order=5, edge=SHEET)


def _notes(
    panel: Axes, notes: Sequence[str], titles: Sequence[str], worst: str | None, narrow: bool
) -> None:
    right = panel.get_yaxis_transform()
    for place, note in enumerate(notes):
        bold = worst is not None and titles[place] == worst.replace("_", " ")
        panel.text(
            *(1.015, place, note),
            transform=right,
            va="center",
            color=INK if bold else QUIET,
            fontweight="bold" if bold else "normal",
            fontsize=7 if narrow else 8,
        )


def _note(z: float | None) -> str:
    if z is None:
        return "not measured"
    return f"{z:+.1f} sd".replace("-", "−") if abs(z) < 100 else f"{z:+.0f} sd".replace("-", "−")


def _legend(
    references: Sequence[Distances],
    others: Sequence[Shown],
    focus: tuple[str, Distances] | None,
    certified: bool,
) -> list[Line2D]:
    known = styles(())
    entries = []
    if focus is not None:
        style = known["certified" if certified else "nearest"]
        entries.append(canvas.key(style, printable(focus[0]), line="-", size=8))
    band = f"{len(references)} retrainings, and their range"
    entries.append(canvas.key(known["reference"], band, size=3))
    for shown in others:
        entries.append(canvas.key(shown.style, shown.label, hollow=shown.hollow, size=shown.size))
    return entries
