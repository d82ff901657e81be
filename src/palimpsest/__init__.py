"""Palimpsest tests whether a language model that unlearned something was restored or suppressed.

The public names load what they need when they are first used, so importing the package is cheap
and the statistics never load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palimpsest.audit.run import audit
    from palimpsest.criteria.rules import Rules
    from palimpsest.errors import PalimpsestError
    from palimpsest.facts.files import Fact, read_facts
    from palimpsest.models.load import load
    from palimpsest.plan import Plan, plan_from_yaml
    from palimpsest.presets import preset
    from palimpsest.results import load_run
    from palimpsest.study.matrix import run_cell, start
    from palimpsest.verdict import Verdict, decide
    from palimpsest.watching import watch

__version__ = "0.2.0"

_HOMES = {
    "Fact": "palimpsest.facts.files",
    "PalimpsestError": "palimpsest.errors",
    "Plan": "palimpsest.plan",
    "Rules": "palimpsest.criteria.rules",
    "Verdict": "palimpsest.verdict",
    "audit": "palimpsest.audit",
    "decide": "palimpsest.verdict",
    "load": "palimpsest.models.load",
    "load_run": "palimpsest.results",
    "plan_from_yaml": "palimpsest.plan",
    "preset": "palimpsest.presets",
    "read_facts": "palimpsest.facts.files",
    "run_cell": "palimpsest.study.matrix",
    "start": "palimpsest.study.matrix",
    "watch": "palimpsest.watching",
}

__all__ = [
    "Fact",
    "PalimpsestError",
    "Plan",
    "Rules",
    "Verdict",
    "audit",
    "decide",
    "load",
    "load_run",
    "plan_from_yaml",
    "preset",
    "read_facts",
    "run_cell",
    "start",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'palimpsest' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
