"""Where the models of a cell lie among its retrainings, axis by axis, for tables and figures.

Distances of candidates and controls are those of the verdict; those of the references are taken
from the same bag.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from palimpsest.analysis.results import CellResult
from palimpsest.analysis.table import percent
from palimpsest.criteria.axes import Axis, chosen
from palimpsest.criteria.controls import Control, reference_bag
from palimpsest.criteria.retraining import Comparison
from palimpsest.criteria.rules import Rules
from palimpsest.verdict import Finding

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


@dataclass(frozen=True, slots=True)
class Position:
    """One model on one axis."""

    cell: str
    model: str
    role: str
    axis: Axis
    value: float
    z: float | None
    """Distance from the mean of the retrainings, in their standard deviations."""


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


def comparisons(cell: CellResult) -> dict[str, Comparison]:
    """Return the comparison of every candidate and control of a cell, by name."""
    if cell.verdict is None:
        return {}
    judged: list[Finding | Control] = [*cell.verdict.findings, *cell.verdict.controls]
    return {model.name: model.comparison for model in judged if model.comparison is not None}


def positions(cell: CellResult, rules: Rules) -> Iterator[Position]:
    """Yield every model of a cell on every axis on which it was measured."""
    references = reference_distances(cell, rules)
    compared = comparisons(cell)
    roles = {name: str(cell.roles.get(name, {}).get("role", "")) for name in cell.evaluation}
    for role, name in ((r, n) for r in ROLES for n in roles if roles[n] == r):
        z = references.get(name) or known(compared.get(name))
        for axis in chosen(rules):
            value = axis.read(cell.evaluation[name])
            if value is not None:
                yield Position(cell.id, name, role, axis, value, z.get(axis.name))


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
