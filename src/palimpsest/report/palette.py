"""Colours, marker shapes and order of methods: the one place every figure and table asks.

Colours are Okabe and Ito's, which stay apart for colour-blind readers ("Color Universal Design",
2008): cool for methods that restore, warm for those that suppress. Shape says the same as colour,
so nothing is told by colour alone. A method that is not listed gets the next free style.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Style:
    """How one method, or one known model, is drawn."""

    name: str
    light: str
    """Colour on paper."""
    dark: str
    """Colour on a dark page."""
    shape: str
    """A key of ``SHAPES``."""
    key: str = ""
    """What classes call it where the name is not one of ours."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One marker."""

    path: str
    """SVG path within five units around the origin."""
    matplotlib: str


SHAPES = {
    "circle": Shape("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "o"),
    "square": Shape("M-3.6-3.6h7.2v7.2h-7.2z", "s"),
    "diamond": Shape("M0-5L5 0L0 5L-5 0z", "D"),
    "up": Shape("M0-4.8L4.7 3.6H-4.7z", "^"),
    "down": Shape("M0 4.8L4.7-3.6H-4.7z", "v"),
    "plus": Shape("M-1.5-4.8h3v3.3h3.3v3h-3.3v3.3h-3v-3.3h-3.3v-3h3.3z", "P"),
    "pentagon": Shape("M0-4.8L4.6-1.5L2.8 3.9H-2.8L-4.6-1.5z", "p"),
    "left": Shape("M-4.8 0L3.6-4.7V4.7z", "<"),
    "right": Shape("M4.8 0L-3.6-4.7V4.7z", ">"),
    "hexagon": Shape("M-4.6 0L-2.3-4H2.3L4.6 0L2.3 4H-2.3z", "h"),
    "cross": Shape(
        "M-3.6-2.2l1.4-1.4L0-1.4l2.2-2.2 1.4 1.4L1.4 0l2.2 2.2-1.4 1.4L0 1.4l-2.2 2.2"
        "-1.4-1.4L-1.4 0z",
        "X",
    ),
    "tick": Shape("M-.7-4.6h1.4v9.2h-1.4z", "|"),
}

METHODS = (
    Style("kl_reversion", "#0072b2", "#4ba3dc", "circle"),
    Style("gate_mask", "#009e73", "#2cc79a", "diamond"),
    Style("task_vector", "#3f9fd1", "#8accf2", "square"),
    Style("ga", "#d55e00", "#f0813a", "up"),
    Style("npo", "#d98c00", "#efb443", "down"),
    Style("graddiff", "#a8503c", "#d98a76", "right"),
    Style("simnpo", "#b8860b", "#e0be5a", "left"),
    Style("dpo", "#cc79a7", "#e3a3c6", "pentagon"),
    Style("rmu", "#8f4f86", "#c58fbd", "hexagon"),
    Style("whp", "#6f6bb0", "#a9a5e0", "plus"),
    Style("scrub", "#4f7f3f", "#8fc07f", "pentagon"),
    Style("ssd", "#5b8c8a", "#92c4c2", "hexagon"),
    Style("rollback", "#6b6b6b", "#a9a9a9", "square"),
)
"""In the order in which figures and legends name them."""

KNOWN = (
    Style("base", "#8a8a86", "#8f8f8a", "plus"),
    Style("injected", "#3d3d3a", "#d8d6d0", "square"),
    Style("reference", "#111111", "#ffffff", "diamond"),
    Style("panel", "#7a5195", "#b794d4", "hexagon"),
    Style("probe", "#9a9994", "#85847f", "tick"),
    Style("excluded", "#66635c", "#a39f95", "cross"),
)
"""Models whose truth is known, never-learned probes, and the mark of who is excluded."""

_FREE = (
    ("#0072b2", "#4ba3dc"),
    ("#d55e00", "#f0813a"),
    ("#009e73", "#2cc79a"),
    ("#cc79a7", "#e3a3c6"),
    ("#d98c00", "#efb443"),
    ("#6f6bb0", "#a9a5e0"),
)
_FREE_SHAPES = ("circle", "up", "diamond", "down", "square", "pentagon", "hexagon", "plus")
_OTHERS = tuple(
    (*colours, shape)
    for colours, shape in zip(_FREE * 4, _FREE_SHAPES * 3)
    if (colours[0], shape) not in {(style.light, style.shape) for style in METHODS}
)
"""Colours and shapes that no listed method has, no two alike."""
MARKS = 12
"""How many candidates of an audit, which have no method, get a mark each."""


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """The style of every method named and of every known model, by name, in drawing order."""
    named = {style.name: style for style in METHODS}
    wanted = list(dict.fromkeys(methods))
    found = {name: named[name] for name in in_order(wanted) if name in named}
    for place, name in enumerate(one for one in wanted if one not in named):
        light, dark, shape = _OTHERS[place % len(_OTHERS)]
        found[name] = Style(name, light, dark, shape, f"other-{place}")
    return found | {style.name: style for style in KNOWN if style.name not in found}


def in_order(methods: Iterable[str]) -> tuple[str, ...]:
    """The methods in the order of the palette, then as they come."""
    wanted = list(dict.fromkeys(methods))
    known = [style.name for style in METHODS if style.name in wanted]
    return (*known, *(name for name in wanted if name not in known))
