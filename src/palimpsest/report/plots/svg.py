"""A panel as light inline SVG: classes for colour, a name at every point, no styles, no scripts.

Text and names are escaped by ``markupsafe``; what a terminal or a parser could obey is taken out.
Panels are drawn about as wide as a phone, so that nothing has to shrink there.
"""

from markupsafe import Markup, escape

from palimpsest.report.palette import SHAPES, Style
from palimpsest.report.plots.spec import Axis, Figure, Panel
from palimpsest.report.terminal import printable

WIDTH, WIDE, HEIGHT, ROW = 340, 560, 230, 21
LEFT, LEFT_ROWS, RIGHT, RIGHT_NOTES, BOTTOM = 42, 120, 14, 58, 40
LANE, LANE_WIDE = 13, 20
"""Height of one line of names above the plot; a wide panel is shrunk on a phone, so it has more."""
LEGEND = 48
"""Signs of a name that a legend shows."""
LABEL = 17
"""Signs of a row's label that fit beside the plot; the whole name is in the point's text."""


def symbols() -> Markup:
    """The marker shapes, defined once a page."""
    shapes = Markup().join(
        Markup('<path id="m-{}" d="{}"/><path id="s-{}" d="{}" transform="scale(.72)"/>').format(
            name, shape.path, name, shape.path
        )
        for name, shape in SHAPES.items()
    )
    return Markup('<svg class="symbols" aria-hidden="true"><defs>{}</defs></svg>').format(shapes)


def marker(style: Style, hollow: bool = False) -> Markup:
    """A method's marker for a legend or a line of text."""
    return Markup(
        '<svg class="key" viewBox="-7 -7 14 14" aria-hidden="true"><use href="#m-{}" '
        'class="{}{}"/></svg>'
    ).format(style.shape, colour(style), " o" if hollow else "")


def colour(style: Style) -> str:
    """The class that gives a style's colour in light and dark."""
    return f"c-{style.key or style.name}"


def panel_svg(figure: Figure, panel: Panel, styles: dict[str, Style]) -> Markup:
    """One panel."""
    width = WIDE if figure.wide else WIDTH
    # Plots of one figure begin at one height, however many names stand above them.
    top = max(_Frame(one, width).top for one in figure.panels)
    frame = _Frame(panel, width, top)
    parts = [
        _axes(frame),
        *(_band(frame, place) for place in range(len(panel.bands))),
        *(_line(frame, place, styles) for place in range(len(panel.lines))),
        _rules(frame),
        _points(frame, styles),
    ]
    name = f"{figure.title}: {panel.title}" if panel.title else figure.title
    return Markup(
        '<svg class="panel" viewBox="0 0 {} {}" role="group" tabindex="0" aria-label="{}">{}</svg>'
    ).format(
        frame.width,
        frame.height,
        f"{printable(name)}. {len(panel.points)} points; arrow keys read them.",
        Markup().join(parts),
    )


class _Frame:
    """Where the plot lies in the panel, and where a value lies in the plot."""

    def __init__(self, panel: Panel, width: int, top: int = 0) -> None:
        self.panel, self.width = panel, width
        self.left = LEFT_ROWS if panel.rows else LEFT
        self.right = width - (RIGHT_NOTES if any(row.note for row in panel.rows) else RIGHT)
        self.lane = LANE if width == WIDTH else LANE_WIDE
        self.above = (22 if panel.title else 4) + (self.lane + 5 if panel.y is not None else 0)
        self.lanes = self._lanes()
        self.top = max(top, self.above + self.lane * (1 + max(self.lanes, default=-1)) + 4)
        tall = HEIGHT if width == WIDTH else 390
        self.bottom = self.top + (ROW * len(panel.rows) + 6 if panel.rows else tall - 80)
        self.height = self.bottom + BOTTOM + 2 * (self.lane - LANE)

    def _lanes(self) -> list[int]:
        """For each rule the line its name is written on, so that names do not overlap."""
        ends: list[float] = []
        lanes = []
        for rule in self.panel.rules:
            if rule.axis != "x":
                lanes.append(-1)
                continue
            half = 2.9 * len(rule.label) + 4
            here = min(max(self.x(rule.value), half), self.width - half)
            lane = next((k for k, end in enumerate(ends) if here - half >= end), len(ends))
            ends[lane : lane + 1] = [here + half]
            lanes.append(lane)
        return lanes

    def x(self, value: float) -> float:
        share = min(max(self.panel.x.place(value), 0.0), 1.0)
        return round(self.left + share * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        if self.panel.y is None:
            return round(self.top + 3 + ROW * (value + 0.5), 1)
        share = min(max(self.panel.y.place(value), 0.0), 1.0)
        return round(self.bottom - share * (self.bottom - self.top), 1)


def _axes(frame: _Frame) -> Markup:
    panel = frame.panel
    parts = []
    if panel.inside is not None:
        low, high = (frame.x(value) for value in panel.inside)
        parts.append(
            Markup('<rect class="inside" x="{}" y="{}" width="{}" height="{}"/>').format(
                low, frame.top, round(high - low, 1), frame.bottom - frame.top
            )
        )
    if panel.title:
        parts.append(_text(0, 14, panel.title, "title"))
    apart = 46 if panel.x.scale == "linear" else 30
    for value, text in panel.x.ticks((frame.right - frame.left) // apart):
        here = frame.x(value)
        parts.append(_stroke(f"M{here} {frame.top}V{frame.bottom}", "grid"))
        parts.append(_text(here, frame.bottom + frame.lane + 2, text, "mid"))
    centre = round((frame.left + frame.right) / 2, 1)
    parts.append(_text(centre, frame.bottom + 2 * frame.lane + 6, panel.x.label, "mid name"))
    if isinstance(panel.y, Axis):
        for value, text in panel.y.ticks((frame.bottom - frame.top) // 34):
            there = frame.y(value)
            parts.append(_stroke(f"M{frame.left} {there}H{frame.right}", "grid"))
            parts.append(_text(frame.left - 6, there + 4, text, "end"))
        parts.append(_text(0, frame.above - 5, panel.y.label, "name"))
    if panel.notes:
        parts.append(_text(frame.width - 2, frame.top - 5, panel.notes, "end name"))
    for place, row in enumerate(panel.rows):
        there = frame.y(place)
        parts.append(_stroke(f"M{frame.left} {there}H{frame.right}", "row"))
        parts.append(_text(frame.left - 8, there + 4, shortened(row.label, LABEL), "end"))
        if row.note:
            parts.append(_text(frame.width - 2, there + 4, row.note, "end note"))
    return Markup().join(parts)


def _rules(frame: _Frame) -> Markup:
    parts, names = [], []
    for rule, lane in zip(frame.panel.rules, frame.lanes):
        kind = "rule solid" if rule.solid else "rule"
        if rule.axis == "x":
            here, there = frame.x(rule.value), frame.top - frame.lane * lane - 5
            half = 2.9 * len(rule.label)
            path = f"M{here} {there + 3}V{frame.bottom}"
            centre = min(max(here, half), frame.width - half)
            names.append(_text(centre, there, rule.label, "mid name over"))
        else:
            path = f"M{frame.left} {frame.y(rule.value)}H{frame.right}"
            above = frame.y(rule.value) - 4
            names.append(_text(frame.right, above, rule.label, "end name over"))
        parts.append(_stroke(path, kind, rule.label))
    return Markup().join([*parts, *names])


def _band(frame: _Frame, place: int) -> Markup:
    band = frame.panel.bands[place]
    there = [f"{frame.x(x)} {frame.y(y)}" for x, y in zip(band.xs, band.high)]
    back = [f"{frame.x(x)} {frame.y(y)}" for x, y in zip(band.xs[::-1], band.low[::-1])]
    return Markup('<path class="band" d="M{}z"><title>{}</title></path>').format(
        "L".join(there + back), printable(band.label)
    )


def _line(frame: _Frame, place: int, styles: dict[str, Style]) -> Markup:
    line = frame.panel.lines[place]
    path = "M" + "L".join(f"{frame.x(x)} {frame.y(y)}" for x, y in zip(line.xs, line.ys))
    kind = f"curve {colour(styles[line.style])}" + (" dashed" if line.dashed else "")
    return _stroke(path, kind, line.label)


def _points(frame: _Frame, styles: dict[str, Style]) -> Markup:
    """Points by colour, because the class is then written once and not at every point."""
    parts = []
    groups: dict[tuple[str, bool, bool], list[Markup]] = {}
    for point in frame.panel.points:
        mark = Markup('<use href="#{}-{}" x="{}" y="{}"><title>{}</title></use>').format(
            "s" if point.small and point.style != "probe" else "m",
            styles[point.style].shape,
            frame.x(point.x),
            frame.y(point.y),
            printable(point.label),
        )
        groups.setdefault((point.style, point.hollow, point.small), []).append(mark)
    for (style, hollow, small), marks in groups.items():
        kind = colour(styles[style]) + " o" * hollow + " s" * small
        parts.append(Markup('<g class="{}">{}</g>').format(kind, Markup().join(marks)))
    return Markup().join(parts)


def _stroke(path: str, kind: str, label: str = "") -> Markup:
    title = Markup("<title>{}</title>").format(printable(label)) if label else Markup()
    return Markup('<path class="{}" d="{}">{}</path>').format(kind, path, title)


def _text(x: float, y: float, text: str, kind: str) -> Markup:
    if not text:
        return Markup()
    return Markup('<text x="{}" y="{}" class="{}">{}</text>').format(
        round(x, 1), round(y, 1), kind, escape(printable(text))
    )


def shortened(text: str, most: int) -> str:
    """The text with its middle left out where it is too long: names differ at their ends."""
    text = printable(text)
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[-(most - 1 - head) :]}"
