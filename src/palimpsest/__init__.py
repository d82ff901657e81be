"""Palimpsest tests whether a language model that unlearned something was restored or suppressed.

The public names load what they need when they are first used, so that ``palimpsest --help`` answers
at once and the statistics never load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palimpsest import facts, plots
    from palimpsest.api import Answer, audit, compare, retrain, study, unlearn
    from palimpsest.certificate import certify, verify
    from palimpsest.config.plan import Plan
    from palimpsest.errors import PalimpsestError
    from palimpsest.facts.files import Fact, read_facts
    from palimpsest.methods.context import GradientMethod, Knobs
    from palimpsest.models.checkpoint import load
    from palimpsest.openunlearning import logs, screen
    from palimpsest.report.documents import load_run
    from palimpsest.stats.rules import Rules
    from palimpsest.stats.verdict import Verdict, decide

__version__ = "0.3.0"

__all__ = [
    "Answer", "Fact", "GradientMethod", "Knobs", "PalimpsestError", "Plan", "Rules", "Verdict",
    "audit", "certify", "compare", "decide", "facts", "load", "load_run", "logs", "plots",
    "read_facts", "retrain", "screen", "study", "unlearn", "verify",
]  # fmt: skip

_HOMES = {
    "palimpsest.api": ("Answer", "audit", "compare", "retrain", "study", "unlearn"),
    "palimpsest.certificate": ("certify", "verify"),
    "palimpsest.config.plan": ("Plan",),
    "palimpsest.errors": ("PalimpsestError",),
    "palimpsest.facts.files": ("Fact", "read_facts"),
    "palimpsest.methods.context": ("GradientMethod", "Knobs"),
    "palimpsest.models.checkpoint": ("load",),
    "palimpsest.openunlearning": ("logs", "screen"),
    "palimpsest.report.documents": ("load_run",),
    "palimpsest.stats.rules": ("Rules",),
    "palimpsest.stats.verdict": ("Verdict", "decide"),
}


def __getattr__(name: str) -> Any:
    if name in ("facts", "plots"):
        return import_module(f"palimpsest.{name}")
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'palimpsest' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
