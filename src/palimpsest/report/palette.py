"""Colors and markers of methods and known models: the one place every figure asks.

Colors are Okabe and Ito's, which stay distinct for color-blind readers ("Color Universal Design",
2008): cool for methods that restore, warm for those that suppress. The marker says the same as the
color, so nothing depends on color alone. A method that is not listed gets the next free style.
"""

from collections.abc import Iterable
from dataclasses import dataclass


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


def method_styles(methods: Iterable[str]) -> dict[str, Style]:
    """Return the style of every method named: listed ones in their order, then the others."""
    wanted = list(dict.fromkeys(methods))
    others = [name for name in wanted if name not in METHODS]
    free = [Style(_FREE[n % 6], "XPH*d8"[n // 6 % 6]) for n in range(len(others))]
    return {n: s for n, s in METHODS.items() if n in wanted} | dict(zip(others, free))
