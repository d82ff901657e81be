"""Facts: invented ones, files of them, and the questions that are asked about each."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palimpsest.facts.files import Fact, read_facts
    from palimpsest.facts.questions import invent

__all__ = ["Fact", "invent", "read_facts"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        home = "questions" if name == "invent" else "files"
        return getattr(import_module(f"palimpsest.facts.{home}"), name)
    raise AttributeError(f"module 'palimpsest.facts' has no attribute {name!r}")
