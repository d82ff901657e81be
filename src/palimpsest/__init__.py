"""Palimpsest tests whether a language model that unlearned something was restored or suppressed.

The public names load what they need when they are first used, so that ``palimpsest --help`` answers
at once and the statistics never load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palimpsest.api import Answer, audit, retrain, study, unlearn
    from palimpsest.certificate import verify
    from palimpsest.config.load import load_config
    from palimpsest.config.plan import Plan
    from palimpsest.config.presets import preset
    from palimpsest.errors import PalimpsestError
    from palimpsest.facts.files import Fact, read_facts
    from palimpsest.models.checkpoint import load
    from palimpsest.openunlearning import logs, screen
    from palimpsest.report.documents import load_run
    from palimpsest.stats.rules import Rules
    from palimpsest.stats.verdict import Verdict, decide

__version__ = "0.3.0"

__all__ = [
    "Answer", "Fact", "PalimpsestError", "Plan", "Rules", "Verdict", "audit", "decide", "load",
    "load_config", "load_run", "logs", "preset", "read_facts", "retrain", "screen",
    "study", "unlearn", "verify",
]  # fmt: skip

_HOMES = {
    "palimpsest.api": ("Answer", "audit", "retrain", "study", "unlearn"),
    "palimpsest.certificate": ("verify",),
    "palimpsest.config.load": ("load_config",),
    "palimpsest.config.plan": ("Plan",),
    "palimpsest.config.presets": ("preset",),
    "palimpsest.errors": ("PalimpsestError",),
    "palimpsest.facts.files": ("Fact", "read_facts"),
    "palimpsest.models.checkpoint": ("load",),
    "palimpsest.openunlearning": ("logs", "screen"),
    "palimpsest.report.documents": ("load_run",),
    "palimpsest.stats.rules": ("Rules",),
    "palimpsest.stats.verdict": ("Verdict", "decide"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'palimpsest' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
