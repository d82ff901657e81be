"""Pure statistics on stored numbers: numpy and scipy only, so a verdict is checked without torch.

Names are loaded on first use; importing this package costs nothing.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "rules": ("Rules",),
    "axes": ("AXES", "Axis", "axis", "chosen"),
    "retraining": ("Comparison", "Gap", "Worst", "compare", "required_references", "which_test"),
    "controls": (
        "Bag",
        "Control",
        "Dose",
        "Recipe",
        "check_recipe",
        "detection_limit",
        "measure_dose",
        "reference_bag",
        "run_controls",
    ),
    "measures": ("CellMeasures", "ModelMeasures", "RelearningCurve", "measure_cell"),
    "ranktest": ("RankTest", "rank_test", "rank_tests"),
    "multiplicity": (
        "Certifiability",
        "Holm",
        "Power",
        "certifiability",
        "holm",
        "screen_power",
    ),
    "intervals": (
        "Equivalence",
        "Interval",
        "clopper_pearson",
        "clopper_pearson_clustered",
        "cluster_bootstrap",
        "replication_gap",
        "spearman",
        "tost",
    ),
    "screen": ("Screen", "Screened", "screen_alone", "screen_by_design", "screen_candidates"),
    "bars": (
        "AbsoluteBar",
        "DamageBar",
        "RelearnVeto",
        "Tolerances",
        "absolute_bar",
        "damage_bar",
        "global_minimum",
        "measure_tolerances",
        "rated_adequate",
        "relearn_veto",
    ),
    "selector": ("smallest_oracle_kl", "smallest_residual", "smallest_worst_axis"),
    "headroom": ("Headroom", "measure_headroom"),
    "identifiability": ("Identifiability", "World", "decide_identifiability"),
    "design": ("Design", "design_screen"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
