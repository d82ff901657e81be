"""Colours and markers of methods and known models: the one place every figure asks.

Colours are Okabe and Ito's, which stay apart for colour-blind readers ("Color Universal Design",
2008): cool for methods that restore, warm for those that suppress. The marker says the same as the
colour, so nothing depends on colour alone. A method that is not listed gets the next free style.
Every colour has a counterpart for dark pages; the page swaps them by CSS variables.
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
    marker: str
    """A marker of matplotlib."""


METHODS = (
    Style("kl_reversion", "#0072b2", "#4ba3dc", "o"),
    Style("gate_mask", "#009e73", "#2cc79a", "D"),
    Style("task_vector", "#3f9fd1", "#8accf2", "s"),
    Style("replay", "#117a65", "#5fd3b3", "p"),
    Style("ga", "#d55e00", "#f0813a", "^"),
    Style("npo", "#d98c00", "#efb443", "v"),
    Style("graddiff", "#a8503c", "#d98a76", ">"),
    Style("simnpo", "#b8860b", "#e0be5a", "<"),
    Style("dpo", "#cc79a7", "#e3a3c6", "p"),
    Style("rmu", "#8f4f86", "#c58fbd", "h"),
    Style("whp", "#6f6bb0", "#a9a5e0", "P"),
    Style("scrub", "#4f7f3f", "#8fc07f", "p"),
    Style("ssd", "#5b8c8a", "#92c4c2", "h"),
    Style("rollback", "#6b6b6b", "#a9a9a9", "s"),
)
"""In the order in which figures and legends name them."""

KNOWN = (
    Style("base", "#8a8a86", "#8f8f8a", "P"),
    Style("injected", "#7d2a00", "#ff9d6b", "s"),
    Style("reference", "#767672", "#9d9c97", "o"),
    Style("retraining", "#5c7f9c", "#9fc0da", "o"),
    Style("control", "#b5591b", "#e08a4c", "d"),
    Style("challenge", "#7a5195", "#b794d4", "h"),
    Style("candidate", "#1f5fa8", "#7db6f5", "o"),
    Style("probe", "#9a9994", "#85847f", "|"),
    Style("certified", "#00734f", "#3fd6a0", "D"),
    Style("nearest", "#1f5fa8", "#7db6f5", "D"),
)
"""Models whose truth is known, never-learned probes, and the candidate the verdict is about."""

PAGE = {
    "#333333": "#eae7df",
    "#6b675f": "#a39f95",
    "#e4e4e0": "#34332e",
    "#d9d7cf": "#45433c",
    "#eeede8": "#2a2925",
    "#fbf1d6": "#38311c",
    "#ffffff": "#1d1d1a",
}
"""Ink, quiet ink, grid, band, stripe, highlight and sheet, with their counterparts."""
INK, QUIET, GRID, BAND, STRIPE, HIGHLIGHT, SHEET = PAGE

_FREE = (
    ("#0072b2", "#4ba3dc"),
    ("#d55e00", "#f0813a"),
    ("#009e73", "#2cc79a"),
    ("#cc79a7", "#e3a3c6"),
    ("#d98c00", "#efb443"),
    ("#6f6bb0", "#a9a5e0"),
)
_TAKEN = {(style.light, style.marker) for style in METHODS}
_OTHERS = tuple(
    (*colours, marker)
    for colours, marker in zip(_FREE * 4, "o^DvsphP" * 3)
    if (colours[0], marker) not in _TAKEN
)
"""Colours and markers that no listed method has, no two alike."""
MARKS = 12
"""How many candidates of an audit, which have no method, get a marker each."""


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """Return the style of every method named and of every known model, by name."""
    named = {style.name: style for style in METHODS}
    wanted = in_order(methods)
    others = [name for name in wanted if name not in named]
    chosen = {name: named[name] for name in wanted if name in named}
    chosen |= {
        name: Style(name, *_OTHERS[place % len(_OTHERS)]) for place, name in enumerate(others)
    }
    return chosen | {style.name: style for style in KNOWN if style.name not in chosen}


def in_order(methods: Iterable[str]) -> tuple[str, ...]:
    """Return the methods in the order of the palette, then as they come."""
    wanted = list(dict.fromkeys(methods))
    known = [style.name for style in METHODS if style.name in wanted]
    return (*known, *(name for name in wanted if name not in known))


def counterparts() -> dict[str, str]:
    """Return the dark counterpart of every colour a figure may use, by the light one."""
    pairs = {style.light: style.dark for style in (*METHODS, *KNOWN)}
    return PAGE | pairs | dict(_FREE)
