"""What models are called in tables and figures, and how far references lie from their mean."""

from palimpsest.analysis.results import CellResult
from palimpsest.analysis.table import percent
from palimpsest.criteria.axes import Axis
from palimpsest.criteria.controls import Control, reference_bag
from palimpsest.criteria.retraining import Comparison
from palimpsest.criteria.rules import Rules

ROLES = {
    "base": "base model",
    "injected": "injected model",
    "reference": "retraining",
    "retraining": "fresh retraining",
    "control": "control",
    "challenge": "known-label model",
    "candidate": "candidate",
}
"""The roles that are compared, in words, in the order of tables."""


def cell_axes(cell: CellResult, rules: Rules) -> tuple[Axis, ...]:
    """Return the axes of the rules on which the cell's references were measured."""
    return reference_bag(cell.evaluation, cell.roles, rules).axes


def reference_distances(cell: CellResult, rules: Rules) -> dict[str, dict[str, float]]:
    """Return the distance of every reference from the mean of all, by name and axis."""
    bag = reference_bag(cell.evaluation, cell.roles, rules)
    if len(bag.names) < 2:
        return {}
    spread = bag.values.std(axis=0, ddof=1)
    z = (bag.values - bag.values.mean(axis=0)) / [value if value > 0 else 1.0 for value in spread]
    kept = [axis.name for axis in bag.axes]
    return {name: dict(zip(kept, map(float, row))) for name, row in zip(bag.names, z)}


def known(comparison: Comparison | None) -> dict[str, float]:
    """Return the distances of a comparison that were measured, by axis."""
    return {} if comparison is None else {a: z for a, z in comparison.z.items() if z is not None}


def label(cell: CellResult, name: str) -> str:
    """Return what a model is called in tables: the registry's name of a known-label model."""
    role = cell.roles.get(name, {})
    if role.get("role") == "control" and "share" in role:
        return f"{percent(role['share'])} of injected weights left"
    return str(role.get("entry") or name)


def control_label(cell: CellResult, control: Control) -> str:
    """Return what a control is called in tables."""
    if control.share is not None:
        return f"{percent(control.share)} of injected weights left"
    return label(cell, control.name)
