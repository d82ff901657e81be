"""What every figure shares: matplotlib's settings, rows, points, rules, and the bytes of files.

A figure is drawn once. Its SVG goes into ``report/figures`` as it is and, with its colours as CSS
variables, into the page, so that it follows the page's light or dark colours. The same values give
the same bytes: no date, no random ids, text as text.
"""

import io
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary
from xml.etree import ElementTree

import matplotlib
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from palimpsest.analysis.table import printable
from palimpsest.report.palette import GRID, INK, QUIET, SHEET, Style, counterparts

SETTINGS: Mapping[str, Any] = {
    "svg.hashsalt": "palimpsest",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "axes.labelsize": 8,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "figure.facecolor": SHEET,
    "axes.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "path.simplify": False,
}
FAR = 60.0
"""Standard deviations beyond which a model is drawn at the edge, as an arrow."""
LINEAR = 3.0
"""Standard deviations up to which the scale of distances is linear."""
_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"
_DROPPED = (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style")
_LONG = re.compile(r"(\d+\.\d\d)\d+")
_tags: WeakKeyDictionary[Figure, dict[str, "Tag"]] = WeakKeyDictionary()
"""What the page should know of a figure's marks, by the id of their group."""
_drawn: WeakKeyDictionary[Figure, dict[str, bytes]] = WeakKeyDictionary()
"""The bytes of figures by format; the SVG is needed for the page and for the files."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure with one sentence computed from its numbers."""

    name: str
    """File name without ending, and key of its words."""
    reading: str
    figure: Figure
    narrow: Figure | None = None
    """The same for a phone."""


@dataclass(frozen=True, slots=True)
class Tag:
    """What a mark stands for, so that the page can name, filter and highlight it."""

    group: str
    """What the legend calls it."""
    model: str = ""
    """The one model of a curve."""
    names: tuple[str, ...] = ()
    """Of the markers, shown to a reader who points at them."""
    key: bool = False
    """Whether it is an entry of the legend."""


@contextmanager
def drawing() -> Iterator[None]:
    """Apply the settings; use it as a decorator of every function that draws."""
    with matplotlib.rc_context(dict(SETTINGS)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name in a script the font lacks is drawn as boxes
        yield


def sheet(
    panels: int, across: int, size: tuple[float, float], **options: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels of this size in inches, ``across`` in a row."""
    across = max(1, min(across, panels))
    down = math.ceil(panels / across)
    figure = Figure(figsize=(size[0] * across, size[1] * down + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(down, across, squeeze=False, **options)
    for spare in list(grid.flat)[panels:]:
        spare.set_axis_off()
    return figure, list(grid.flat)[:panels]


def points(
    axes: Axes,
    places: Sequence[tuple[float, float]],
    style: Style,
    names: Sequence[str] = (),
    *,
    hollow: bool = False,
    size: float = 5.0,
    marker: str = "",
    alpha: float = 1.0,
    order: float = 3.0,
    edge: str = "",
    model: str = "",
) -> None:
    """Draw markers at (x, y); ``names`` are shown to a reader who points at them, ``model`` is the
    one they belong to, if it is one."""
    if not places:
        return
    xs, ys = zip(*places)
    (line,) = axes.plot(xs, ys, linestyle="none", **look(style, hollow, size, marker))
    line.set(alpha=alpha, zorder=order, clip_on=False)
    if edge:
        line.set_markeredgecolor(edge)
    tag(line, Tag(style.name, model, tuple(printable(name) for name in names)))


def curve(axes: Axes, xs: Sequence[float], ys: Any, style: Style, model: str, line: Any) -> None:
    """Draw the line of one model, which the page can filter and highlight."""
    (drawn,) = axes.plot(xs, ys, color=style.light, linestyle=line, zorder=2.6)
    tag(drawn, Tag(style.name, model))


def tag(artist: Artist, what: Tag) -> None:
    """Keep what the page should know of an artist."""
    figure = artist.get_figure(root=True)
    assert isinstance(figure, Figure)
    known = _tags.setdefault(figure, {})
    artist.set_gid(f"mark-{len(known)}")
    known[f"mark-{len(known)}"] = what


def look(style: Style, hollow: bool = False, size: float = 5.0, marker: str = "") -> dict[str, Any]:
    """Return the properties of a marker."""
    return {
        "marker": marker or style.marker,
        "markersize": size,
        "markerfacecolor": SHEET if hollow else style.light,
        "markeredgecolor": style.light,
        "markeredgewidth": 1.0 if hollow else 0.5,
    }


def key(style: Style, text: str, *, line: str = "none", **marker: Any) -> Line2D:
    """Return an entry of a legend."""
    shown = look(style, **marker)
    if line != "none":
        shown |= {"color": style.light}
    return Line2D([], [], linestyle=line, label=shortened(text, 48), gid=style.name, **shown)


def legend(figure: Figure, entries: Sequence[Line2D], across: int = 0) -> None:
    """Put the legend below the panels, in as many columns as fit."""
    if entries:
        texts = [str(entry.get_label()) for entry in entries]
        drawn = figure.legend(
            handles=list(entries),
            loc="outside lower center",
            ncols=across or columns(texts, figure.get_figwidth()),
            handletextpad=0.2,
            columnspacing=1.4,
        )
        for entry, *parts in zip(entries, drawn.legend_handles, drawn.get_texts()):
            for part in filter(None, parts):
                tag(part, Tag(str(entry.get_gid()), key=True))


def columns(texts: Sequence[str], inches: float) -> int:
    """Return in how many columns of equal width a legend fits: about 15 letters in an inch."""
    widest = max(len(text) for text in texts) + 6
    return max(1, min(len(texts), 6, int(inches * 15 // widest)))


def rows(axes: Axes, labels: Sequence[str], notes: Sequence[str] = (), heading: str = "") -> None:
    """Turn the y axis into rows with these labels, and short notes at the right."""
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), [shortened(label, 24) for label in labels])
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=True, axis="x")
    axes.set_axisbelow(True)
    right = axes.get_yaxis_transform()
    for place, note in enumerate(notes):
        axes.text(1.02, place, printable(note), transform=right, va="center", color=QUIET)
    if heading:
        axes.text(1.02, -0.6, heading, transform=right, va="bottom", color=QUIET, fontsize=7)


def rule(axes: Axes, value: float, label: str = "", *, solid: bool = False) -> None:
    """Draw a vertical line at a value, with its name above."""
    line = "-" if solid else (0, (4, 3))
    axes.axvline(value, color=QUIET, linewidth=0.8, linestyle=line, zorder=1.5)
    if label:
        above = axes.get_xaxis_transform()
        axes.text(value, 1.01, label, transform=above, ha="center", va="bottom", fontsize=7)


def distances(axes: Axes, values: Iterable[float], *, signed: bool = True) -> float:
    """Scale the x axis for distances in standard deviations; return where it is cut off."""
    reach = min(FAR, max((abs(value) for value in values), default=LINEAR))
    reach = max(1.05 * reach, 1.5 * LINEAR)
    axes.set_xscale("symlog", linthresh=LINEAR, linscale=1.3)
    axes.set_xlim(-1.2 * reach if signed else 0, 1.2 * reach)
    ticks = [tick for tick in (0, 1, 2, 3, 10, 30, 100) if tick <= reach]
    axes.xaxis.set_major_locator(FixedLocator(sorted({*ticks, *(-tick for tick in ticks)})))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_signed))
    return reach


def _signed(value: float, _: object) -> str:
    return f"{value:+g}".replace("-", "−") if value else "0"


def spread(axes: Axes, values: Iterable[float], which: str = "x") -> None:
    """Bend an axis when some values lie far from zero, where a linear one would crush the rest."""
    if max((abs(value) for value in values), default=0.0) > 8:
        scale = axes.set_xscale if which == "x" else axes.set_yscale
        scale("symlog", linthresh=2.0)
        plain_numbers(axes.xaxis if which == "x" else axes.yaxis)


def plain_numbers(axis: Axis) -> None:
    """Label a bent axis with numbers: figures have no mathematical text for powers."""
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def end_labels(axes: Axes, ends: Mapping[str, float], colours: Mapping[str, str]) -> None:
    """Write the name of each curve at its right end, moved apart where labels would collide."""
    figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    low, high = axes.get_ylim()
    step = (high - low) * 0.135 / max(1.0, figure.get_figheight() * 0.75)
    place = -math.inf
    for name, value in sorted(ends.items(), key=lambda pair: pair[1]):
        place = max(value, place + step)
        axes.annotate(
            shortened(name, 22),
            (1.0, value),
            xytext=(1.05, place),
            xycoords=axes.get_yaxis_transform(),
            textcoords=axes.get_yaxis_transform(),
            va="center",
            fontsize=7,
            color=colours[name],
            arrowprops={
                "arrowstyle": "-",
                "linewidth": 0.5,
                "color": colours[name],
                "relpos": (0.0, 0.5),
                "shrinkA": 1,
                "shrinkB": 0,
            },
        )


def jitter(place: int) -> float:
    """Return a fixed offset in (-0.3, 0.3) that keeps neighbours of one row apart."""
    return 0.6 * ((place * 0.6180339887498949) % 1 - 0.5)


def shortened(text: str, most: int) -> str:
    """Return the text without its middle where it is too long: names differ at their ends."""
    text = printable(text)
    head = (most - 1) // 2
    return text if len(text) <= most else f"{text[:head]}…{text[-(most - 1 - head) :]}"


# -- bytes ----------------------------------------------------------------------------------------


def png_bytes(figure: Figure) -> bytes:
    """Return the figure as PNG, the same bytes each time."""
    return _saved(figure, "png", {"Software": None})


def svg_bytes(figure: Figure) -> bytes:
    """Return the figure as SVG, the same bytes each time."""
    return _saved(figure, "svg", {"Date": None, "Creator": None})


def keep(figure: Figure, drawn: Mapping[str, bytes]) -> None:
    """Use these bytes of a figure, by format, which were drawn elsewhere."""
    _drawn.setdefault(figure, {}).update(drawn)


def _saved(figure: Figure, form: str, metadata: Mapping[str, Any]) -> bytes:
    drawn = _drawn.setdefault(figure, {})
    if form not in drawn:
        drawn[form] = _render(figure, form, metadata)
    return drawn[form]


@drawing()
def _render(figure: Figure, form: str, metadata: Mapping[str, Any]) -> bytes:
    if (layout := figure.get_layout_engine()) is not None:
        layout.execute(figure)
        figure.set_layout_engine(None)  # its work is done, and slow
    out = io.BytesIO()
    figure.savefig(out, format=form, dpi=150, metadata=dict(metadata))
    return out.getvalue()


def inline_svg(figure: Figure, name: str, label: str, kind: str = "") -> Markup:
    """Return the figure's SVG for the page: no style attributes, colours as CSS variables.

    The page's content security policy forbids style attributes, so they become attributes of their
    own; ids are made unique by ``name``, and those that nothing refers to are dropped.
    """
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(svg_bytes(figure))
    known = _tags.get(figure, {})
    text = ElementTree.tostring(root, encoding="unicode")
    used = set(re.findall(r'(?:url\(|href=")#([\w-]+)', text))
    for element in list(root.iter()):
        for child in [child for child in element if child.tag in _DROPPED]:
            element.remove(child)
        _describe(element, known.get(element.get("id", "")))
        _unstyle(element, name, used)
        element.text, element.tail = (element.text or "").strip(), ""
    view = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib.update({"viewBox": view, "class": f"drawn {kind}".strip(), "role": "img"})
    root.set("aria-label", printable(label))
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _describe(group: ElementTree.Element, tag: Tag | None) -> None:
    """Add to the marks of a group what they stand for, and their names."""
    if tag is None:
        return
    group.set("data-group", printable(tag.group))
    if tag.model:
        group.set("data-model", printable(tag.model))
    if tag.key:
        group.set("class", "key")
    marks = group.findall(f".//{{{_SVG}}}use")
    if len(marks) == len(tag.names):
        for mark, title in zip(marks, tag.names):
            ElementTree.SubElement(mark, f"{{{_SVG}}}title").text = title


def _unstyle(element: ElementTree.Element, name: str, used: set[str]) -> None:
    style = element.attrib.pop("style", "")
    for part in filter(None, style.split(";")):
        which, _, value = part.partition(":")
        if which.strip() == "font":
            element.set("font-size", value.split("px")[0].split()[-1])
            if "bold" in value or "700" in value.split("px")[0]:
                element.set("font-weight", "700")
        else:
            element.set(which.strip(), value.strip())
    own = element.attrib.pop("id", "")
    if own in used:
        element.set("id", f"{name}-{own}")
    if _LINK in element.attrib:
        element.set("href", element.attrib.pop(_LINK).replace("#", f"#{name}-"))
    for attribute in ("fill", "stroke"):
        colour = element.get(attribute, "")
        if colour in _VARIABLES:
            element.set(attribute, f"var({_VARIABLES[colour]})")
    clip = element.get("clip-path", "")
    if clip:
        element.set("clip-path", clip.replace("#", f"#{name}-"))
    for attribute in ("d", "x", "y", "transform"):
        if attribute in element.attrib:
            short = _LONG.sub(r"\1", element.attrib[attribute])
            element.set(attribute, " ".join(short.split()))


_VARIABLES = {colour: f"--c{colour[1:]}" for colour in counterparts()}


def colour_rules() -> str:
    """Return the CSS variables of all colours, for light pages and dark ones; paper is light."""
    light = "".join(f"{_VARIABLES[colour]}:{colour};" for colour in counterparts())
    dark = "".join(f"{_VARIABLES[colour]}:{other};" for colour, other in counterparts().items())
    return (
        f":root{{{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{{dark}}}}}"
    )
