"""What is put to trial with Palimpsest and is not needed to audit a model.

A plan names the plug-ins below as ``palimpsest_trials:full_mimic`` and so on. Most import torch, so
each is looked up when it is asked for.
"""

from importlib import import_module
from typing import Any

ADVERSARIES = {
    "hidden": (
        *("layered", "one_fact_left", "trigger", "low_rank", "undo_10", "undo_20", "undo_40"),
        *("sub_quantum", "steered", "circuit_breaker"),
    ),
    "penalties": ("tuned_suppression", "baked_suppression", "fuzzy_router"),
    "rescaling": ("rescaled_suppressed", "rescaled_retrained"),
    "tampering": ("tamper_resistant", "curve_mimic", "full_mimic", "family_mimic"),
}
"""Known-label models beyond the paper's panel, by the file of ``adversaries/`` that they are in."""
MEASURES = ("Criteria", "CheapCriteria")
"""Classes that take the measures of published criteria."""
METHODS = {"Distilled": "distilled", "MatchedVector": "matched_vector"}
"""Unlearning methods, by the file that they are in."""


def __getattr__(name: str) -> Any:
    if name in METHODS:
        return getattr(import_module(f"{__name__}.{METHODS[name]}"), name)
    if name in MEASURES:
        return getattr(import_module(f"{__name__}.criteria.measures"), name)
    for file, names in ADVERSARIES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.adversaries.{file}"), name)
    raise AttributeError(f"{__name__!r} has no {name!r}")
