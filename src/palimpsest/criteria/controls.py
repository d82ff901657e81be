"""Controls: models of known truth that go through the comparison of every audit and every cell.

Not being rejected shows nothing until the audit has shown that it would have rejected. Positive
controls are retrainings: each reference against the others, and fresh retrainings that never enter
the bag. Negative controls are the injected model, interpolations that keep a share of the injected
weights, and the models of the panel that keep the facts. The smallest share that is rejected
together with all larger ones and the injected model is the detection limit.

A control made from one of the references (``of``) is compared with the others only. Where that
leaves fewer references than the exact test needs, the Student-t region judges it, and it says so.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from palimpsest.criteria import axes as table
from palimpsest.criteria.axes import Axis, chosen
from palimpsest.criteria.measures import CellMeasures, ModelMeasures, Roles
from palimpsest.criteria.retraining import Comparison, compare, constant_axes, prediction_widths
from palimpsest.criteria.rules import Rules

Kind = Literal["injected", "interpolation", "suppressor", "reference", "retraining"]
Expected = Literal["reject", "accept"]
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Control:
    """A model of known truth and what the comparison made of it."""

    name: str
    kind: Kind
    expected: Expected
    share: float | None
    """Share of the injected weights left, of an interpolation."""
    comparison: Comparison | None
    rejected: bool
    """The comparison did not accept it; False where there is none."""
    missing: str
    """Why there is no comparison; empty when there is one."""

    @property
    def as_expected(self) -> bool | None:
        """Whether it came out as it should; None without a comparison."""
        if self.comparison is None:
            return None
        return self.rejected == (self.expected == "reject")


@dataclass(frozen=True, slots=True)
class Dose:
    """How far re-acquisition brought the references towards the injected model.

    On held-out forget questions, mean NLL over the references; the fraction is 0 where nothing was
    relearned and 1 at the injected model's own level.
    """

    before: float
    after: float
    injected: float
    fraction: float
    required: float
    steps: int
    """Steps of re-acquisition."""
    enough: bool

    @property
    def suggested_steps(self) -> int | None:
        """Steps that might be enough if relearning went on evenly; None where it hardly began."""
        if self.fraction < self.required / 10:
            return None
        return math.ceil(self.steps * max(1.0, 1.2 * self.required / self.fraction))


@dataclass(frozen=True, slots=True)
class Recipe:
    """Distance of the injected model from the references where a shared recipe puts it near them.

    ``z`` by axis, in standard deviations of the references.
    """

    z: Mapping[str, float]
    limit: float

    @property
    def axis(self) -> str | None:
        """The axis of the largest distance; None where none was measured."""
        return max(self.z, key=lambda name: abs(self.z[name]), default=None)

    @property
    def far(self) -> bool:
        return any(abs(value) > self.limit for value in self.z.values())


@dataclass(frozen=True, slots=True, eq=False)
class Bag:
    """The references of a cell on the chosen axes, and what a comparison with them needs."""

    names: tuple[str, ...]
    axes: tuple[Axis, ...]
    """The axes that every reference has a finite value on."""
    values: Values
    """(K, axes)."""
    stakes: Mapping[str, float | None]
    """What was at stake on each axis; None where that is unknown or nothing."""
    unmeasured: Mapping[str, tuple[str, ...]]
    """Chosen axes that some reference has no finite value on, with the names of those."""
    constant: tuple[str, ...]
    """Axes on which the references do not vary at all; nothing is certified on such."""
    rules: Rules

    def compare(self, model: ModelMeasures, without: str | None = None) -> Comparison | None:
        """Return the model compared with the references but one; None with fewer than two."""
        kept = [place for place, name in enumerate(self.names) if name != without]
        values = axis_values(model, self.axes)
        if len(kept) < 2 or not np.isfinite(values).any():
            return None
        return compare(
            values, self.values[kept], self.axes, self.rules, name=model.name, stakes=self.stakes
        )


def axis_values(model: ModelMeasures, axes: Sequence[Axis]) -> Values:
    """Return the model's number on each axis (A,), NaN where it was not measured."""
    numbers = (axis.read(model) for axis in axes)
    return np.array([math.nan if number is None else number for number in numbers], np.float64)


def reference_bag(measures: CellMeasures, roles: Roles, rules: Rules) -> Bag:
    """Return the bag of a cell's references."""
    names = replace(measures, roles=roles).references
    axes = chosen(rules)
    numbers = np.array([axis_values(measures[name], axes) for name in names])
    numbers = numbers.reshape(-1, len(axes))
    finite = np.isfinite(numbers)
    unmeasured = {
        axis.name: tuple(name for name, known in zip(names, column) if not known)
        for axis, column in zip(axes, finite.T)
        if not column.all()
    }
    kept = tuple(axis for axis in axes if axis.name not in unmeasured)
    values = numbers[:, [axis.name not in unmeasured for axis in axes]]
    stakes: dict[str, float | None] = dict.fromkeys(axis.name for axis in kept)
    constant: tuple[str, ...] = ()
    if len(names) >= 2:
        stakes = {axis.name: _stake(measures, axis, kept, values, rules) for axis in kept}
        constant = constant_axes(values, kept)
    return Bag(names, kept, values, stakes, unmeasured, constant, rules)


def run_controls(measures: CellMeasures, bag: Bag) -> tuple[Control, ...]:
    """Return every control of a cell: injected, interpolations from the largest share down, known
    suppressors, fresh retrainings, and each reference against the others."""
    controls = [
        _control(name, *described, measures, bag)
        for name, role in measures.roles.items()
        if (described := _described(role)) is not None
    ]
    made = {control.share for control in controls}
    for share in bag.rules.control_shares:
        if share not in made:
            name, missing = f"{share:.0%} of the injected weights", "no such control was made"
            controls.append(Control(name, "interpolation", "reject", share, None, False, missing))
    order = ("injected", "interpolation", "suppressor", "retraining", "reference")
    return tuple(sorted(controls, key=lambda c: (order.index(c.kind), -(c.share or 0.0))))


def detection_limit(controls: Sequence[Control]) -> float | None:
    """Return the smallest share of injected weights that is rejected together with all larger ones
    and the injected model (share 1); None where that is not rejected itself.

    Shares whose control could not be compared are passed over.
    """
    injected = [control for control in controls if control.kind == "injected"]
    if not injected or not all(control.rejected for control in injected):
        return None
    limit = 1.0
    tried = [c for c in controls if c.kind == "interpolation" and c.comparison is not None]
    for share in sorted({c.share for c in tried if c.share is not None}, reverse=True):
        if not all(control.rejected for control in tried if control.share == share):
            break
        limit = share
    return limit


def measure_dose(measures: CellMeasures, references: Sequence[str], rules: Rules) -> Dose | None:
    """Return how far re-acquisition brought the references; None where it was not logged."""
    curves = [measures[name].curve for name in references]
    logged = [curve for curve in curves if curve is not None]
    if not logged or len(logged) < len(curves) or "injected" not in measures:
        return None
    before = math.fsum(float(curve.forget_heldout_nll[0]) for curve in logged) / len(logged)
    after = math.fsum(float(curve.forget_heldout_nll[-1]) for curve in logged) / len(logged)
    own = measures["injected"].curve
    injected = measures["injected"].forget_nll if own is None else float(own.forget_heldout_nll[0])
    way = before - injected
    fraction = (before - after) / way if way > 0 else 0.0
    steps, required = max(int(curve.step[-1]) for curve in logged), rules.dose_fraction
    return Dose(before, after, injected, fraction, required, steps, fraction >= required)


def check_recipe(measures: CellMeasures, references: Sequence[str], rules: Rules) -> Recipe | None:
    """Return the injected model's distance from the references on the axes of a shared recipe;
    None with fewer than two references or without an injected model."""
    if len(references) < 2 or "injected" not in measures:
        return None
    axes = [axis for axis in table.AXES if axis.recipe]
    mine = axis_values(measures["injected"], axes)
    draws = np.array([axis_values(measures[name], axes) for name in references])
    z = {}
    for axis, value, column in zip(axes, mine, draws.T):
        ordered = np.sort(column)
        spread = float(ordered.std(ddof=1))
        if math.isfinite(value) and math.isfinite(spread) and spread > 0:
            z[axis.name] = float((value - ordered.mean()) / spread)
    return Recipe(z, rules.recipe_limit)


def _control(
    name: str, kind: Kind, expected: Expected, measures: CellMeasures, bag: Bag
) -> Control:
    role = measures.roles[name]
    comparison, missing = None, ""
    if role.get("failure"):
        missing = str(role["failure"]["reason"])
    elif name not in measures:
        missing = f"it has no scores on the {measures.pool} pool"
    else:
        comparison = bag.compare(measures[name], name if kind == "reference" else role.get("of"))
        if comparison is None:
            missing = "too few references are left to compare it with"
        elif comparison.missing and not _rejected_where_measured(comparison, bag.rules):
            titles = ", ".join(table.axis(axis).title for axis in comparison.missing)
            comparison, missing = None, f"it has no finite value on {titles}"
    share = float(role["share"]) if kind == "interpolation" else None
    rejected = comparison is not None and not comparison.accepted
    return Control(name, kind, expected, share, comparison, rejected, missing)


def _rejected_where_measured(comparison: Comparison, rules: Rules) -> bool:
    """Tell whether the axes that were measured reject the model. One that only lacks axes was
    rejected by nothing, and must not lower the detection limit."""
    if rules.margin == 0:
        return comparison.rejected
    return any(gap is not None and gap.bound > rules.margin for gap in comparison.gaps.values())


def _described(role: Mapping[str, object]) -> tuple[Kind, Expected] | None:
    if role.get("role") == "challenge":
        labelled = role.get("truth") not in ("restored", "graded")
        return ("suppressor", "reject") if labelled else None
    kinds: dict[object, tuple[Kind, Expected]] = {
        "injected": ("injected", "reject"),
        "control": ("interpolation", "reject"),
        "reference": ("reference", "accept"),
        "retraining": ("retraining", "accept"),
    }
    return kinds.get(role.get("role"))


def _stake(
    measures: CellMeasures, axis: Axis, axes: Sequence[Axis], values: Values, rules: Rules
) -> float | None:
    """Return the references' distance from the axis' stake model, or from that of its stake axis;
    None where that model was not measured or is indistinguishable from a retraining there."""
    scale = next((a for a in axes if a.name == axis.stake_axis), axis)
    if scale.stake not in measures:
        return None
    column = values[:, [a.name for a in axes].index(scale.name)]
    other = scale.read(measures[scale.stake])
    if other is None or not math.isfinite(other):
        return None
    stake = abs(float(np.sort(column).mean() - other))
    return stake if stake > prediction_widths(column[:, None], rules.alpha)[0] else None
