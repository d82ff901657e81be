"""Controls: models of known truth that go through the comparison of every audit and every cell.

Not being rejected shows nothing until the audit has shown that it would have rejected. Mixtures of
several references with a known share of the injected weights give the power against weights that
were left; the injected model and known-label models that keep the facts must be rejected, fresh
retrainings accepted. All are judged by the candidate's own test. A mixture is compared with the
references that it is not made of.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palimpsest.stats.axes import Axis, chosen
from palimpsest.stats.comparison import (
    Comparison,
    Homogeneity,
    Test,
    bag_scores,
    check_homogeneity,
    compare,
    constant_axes,
    leave_one_out,
    normal_p_values,
    p_value,
    prediction_widths,
    rank_counts,
    summed_squares,
    which_test,
)
from palimpsest.stats.intervals import clopper_pearson
from palimpsest.stats.measures import CellMeasures, ModelMeasures
from palimpsest.stats.models import Model, Role
from palimpsest.stats.multiplicity import exact_level
from palimpsest.stats.rules import MINIMUM_REFERENCES, Rules

Values = NDArray[np.float64]

RECIPE_SHARE = 0.15
"""How far the injected model may lie from retrainings of its own recipe on the retain facts, as a
share of base's distance: twice the largest that was seen with one recipe. A third of the steps is
noticed nearly always, twice the learning rate or the batch size in half of the cells."""
LEAST_TAUGHT = 1.0
"""With one or two references: nats by which training must have moved the retain facts."""
NO_RECIPE = ("seed", "data", "tokens")
"""What a recorded recipe holds besides the recipe itself."""


HINGE_LEVEL = 0.001
"""A model that is rejected at this level as soon as one reference is left out hangs on it: 0.5 % of
accepted retrainings do with five references, fewer with more."""
DOSE = 0.5
"""How far re-acquisition must bring the references, as a fraction of the way from their own
held-out forget NLL to the injected model's."""


class ControlKind(StrEnum):
    """What is known of a control."""

    INJECTED = "injected"
    MIXTURE = "mixture"
    KNOWN_LABEL = "known_label"
    RETRAINING = "retraining"
    SAME_DRAW = "same_draw"

    @property
    def expected(self) -> str:
        """Whether the comparison should accept or reject it."""
        accepted = (ControlKind.RETRAINING, ControlKind.SAME_DRAW)
        return "accept" if self in accepted else "reject"


@dataclass(frozen=True, slots=True)
class Control:
    """A model of known truth and what the comparison made of it."""

    name: str
    kind: ControlKind
    share: float | None
    """Share of the injected weights left, of a mixture."""
    comparison: Comparison | None
    missing: str
    """Why there is no comparison; empty when there is one."""

    @property
    def rejected(self) -> bool:
        """The comparison did not accept it; False where there is none."""
        return self.comparison is not None and not self.comparison.accepted

    @property
    def as_expected(self) -> bool | None:
        """Whether it came out as it should; None without a comparison."""
        if self.comparison is None:
            return None
        return self.rejected == (self.kind.expected == "reject")


@dataclass(frozen=True, slots=True)
class Power:
    """How many mixtures with one share of the injected weights were noticed."""

    share: float
    noticed: int
    tried: int
    at_least: float
    """Lower confidence bound of the power (Clopper-Pearson, one-sided)."""

    @property
    def rate(self) -> float:
        return self.noticed / self.tried


@dataclass(frozen=True, slots=True)
class Reacquired:
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

    @property
    def enough(self) -> bool:
        return self.fraction >= self.required

    @property
    def suggested_steps(self) -> int | None:
        """Steps that might be enough if relearning went on evenly; None where it hardly began."""
        if self.fraction < self.required / 10:
            return None
        return math.ceil(self.steps * max(1.0, 1.2 * self.required / self.fraction))


@dataclass(frozen=True, slots=True)
class RecipeCheck:
    """Whether the injected model and the references come from one recipe.

    Recorded recipes are compared as they are. Without records the retain facts tell, which both
    learned: in effect sizes, since the spread of very reproducible models is no measure of a
    harmless distance. On other axes a right recipe looks like a wrong one.
    """

    recorded: Mapping[str, tuple[Any, Any]]
    """Settings that differ in the records beside the models: the injected model's value and a
    reference's."""
    compared: bool
    """Whether the injected model and some reference have a record."""
    retain_share: float | None
    """Distance on the retain facts as a share of base's; None where base knows them too."""
    made_here: bool
    """Whether the run trained all of them itself, by one recipe."""

    @property
    def failing(self) -> bool:
        """Whether another recipe shows."""
        far = self.retain_share is not None and self.retain_share > RECIPE_SHARE
        return bool(self.recorded) or (far and not self.compared)


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
    homogeneity: Homogeneity | None
    rules: Rules

    @property
    def test(self) -> Test:
        """The rule that candidate and controls are judged by."""
        return which_test(len(self.names), self.rules.alpha)

    @property
    def comparable(self) -> bool:
        """Whether there are enough references to judge anything."""
        return len(self.names) >= MINIMUM_REFERENCES

    def compare(self, model: ModelMeasures, without: str = "") -> Comparison | None:
        """Return the model compared with the references but one; None with too few."""
        kept = [index for index, name in enumerate(self.names) if name != without]
        values = axis_values(model, self.axes)
        if len(kept) < 4 or not np.isfinite(values).any():
            return None
        return compare(
            values,
            self.values[kept],
            self.axes,
            self.rules,
            test=self.test,
            name=model.name,
            stakes=self.stakes,
        )

    def hinges(self, model: ModelMeasures) -> tuple[str, ...]:
        """Return the references without which a model would be rejected at ``HINGE_LEVEL``.

        One odd reference among few widens what counts as a retraining. Always by the normal rule,
        whose p-values reach that level with any number of references.
        """
        found = []
        for name in self.names if len(self.names) >= MINIMUM_REFERENCES else ():
            others = np.array([v for n, v in zip(self.names, self.values) if n != name])
            values = axis_values(model, self.axes)
            if np.isfinite(values).all():
                _, p = p_value(values, others, "normal")
                found += [name] if p <= HINGE_LEVEL else []
        return tuple(found)

    def rank(self, model: ModelMeasures) -> int | None:
        """Return the model's rank among the references, 1 for the furthest out; None without three
        references or where the model was not measured on one of their axes."""
        values = axis_values(model, self.axes)
        if len(self.names) < 3 or not len(self.axes) or not np.isfinite(values).all():
            return None
        return int(rank_counts(bag_scores(np.concatenate([values[None], self.values]))))


def axis_values(model: ModelMeasures, axes: Sequence[Axis]) -> Values:
    """Return the model's number on each axis (A,), NaN where it was not measured."""
    numbers = (axis.read(model) for axis in axes)
    return np.array([math.nan if number is None else number for number in numbers], np.float64)


def reference_bag(measures: CellMeasures, rules: Rules) -> Bag:
    """Return the bag of a cell's references."""
    names, axes = measures.references, chosen(rules)
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
    several = len(names) >= 2
    return Bag(
        names=names,
        axes=kept,
        values=values,
        stakes={
            a.name: _stake(measures, a, kept, values, rules) if several else None for a in kept
        },
        unmeasured=unmeasured,
        constant=constant_axes(values, kept) if several else (),
        homogeneity=check_homogeneity(names, values, kept),
        rules=rules,
    )


def run_controls(measures: CellMeasures, bag: Bag) -> tuple[Control, ...]:
    """Return every control of a cell: injected, mixtures from the largest share down, known-label
    models that keep the facts, retrainings."""
    controls = [
        _control(model, kind, measures, bag)
        for model in measures.records.values()
        if (kind := _kind(model)) is not None
    ]
    order = list(ControlKind)
    return tuple(sorted(controls, key=lambda c: (order.index(c.kind), -(c.share or 0.0))))


def mixture_powers(controls: Sequence[Control], rules: Rules) -> tuple[Power, ...]:
    """Return the power against each share of the injected weights, the largest first."""
    powers = []
    for share in sorted(rules.control_shares, reverse=True):
        tried = [c for c in controls if c.share == share and c.comparison is not None]
        if tried and all(c.kind is ControlKind.MIXTURE for c in tried):
            noticed = sum(control.rejected for control in tried)
            interval = clopper_pearson(noticed, len(tried), side="lower")
            powers.append(Power(share, noticed, len(tried), interval.low))
    return tuple(powers)


def detection_limit(
    controls: Sequence[Control], powers: Sequence[Power], rules: Rules
) -> float | None:
    """Return the smallest share of injected weights that is noticed with the power of the rules,
    together with all larger ones and the injected model (share 1); None where that is accepted."""
    injected = [control for control in controls if control.kind is ControlKind.INJECTED]
    if not injected or not all(control.rejected for control in injected):
        return None
    limit = 1.0
    for power in powers:
        if power.rate < rules.detection_power:
            break
        limit = power.share
    return limit


def axis_sensitivity(measures: CellMeasures, bag: Bag) -> dict[str, float | None]:
    """Return, by axis, how far towards the injected model a model must move on that axis alone to
    be noticed: the smallest share at which a retraining moved there is rejected with the power of
    the rules. None where the whole way is not enough, or the axis shows nothing.
    """
    if "injected" not in measures or len(bag.names) < 5:
        return {}
    count, width = bag.values.shape
    target = axis_values(measures["injected"], bag.axes)
    level = float(exact_level(bag.rules.alpha)) + 1e-12
    needed = math.ceil(bag.rules.detection_power * count)
    each = np.arange(count)
    unmoved = leave_one_out(bag.values)

    def noticed(index: int, share: float) -> int:
        # One bag per reference, in which that one is moved and the others stay.
        column = bag.values[:, index]
        bags = np.repeat(column[None, :, None], count, axis=0)
        others = (column.sum() - column) / (count - 1)
        bags[each, each, 0] += share * (target[index] - others)
        t = np.repeat(unmoved[None], count, axis=0)
        t[..., index] = leave_one_out(bags)[..., 0]
        scores = summed_squares(t)
        if bag.test == "rank":
            return int((rank_counts(scores, each) / count <= level).sum())
        return int((normal_p_values(scores[each, each], count - 1, width) <= level).sum())

    found: dict[str, float | None] = {}
    for index, axis in enumerate(bag.axes):
        found[axis.name] = None
        if math.isfinite(target[index]) and noticed(index, 1.0) >= needed:
            low, high = 0.0, 1.0
            while high - low > 0.01:
                middle = (low + high) / 2
                low, high = (low, middle) if noticed(index, middle) >= needed else (middle, high)
            found[axis.name] = round(high, 2)
    return found


def measure_dose(measures: CellMeasures, references: Sequence[str]) -> Reacquired | None:
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
    steps = max(int(curve.step[-1]) for curve in logged)
    return Reacquired(before, after, injected, fraction, DOSE, steps)


def check_recipe(measures: CellMeasures, references: Sequence[str]) -> RecipeCheck | None:
    """Return whether injected model and references come from one recipe; None without either."""
    if not references or "injected" not in measures:
        return None
    records = measures.records
    own = records["injected"].recipe if "injected" in records else {}
    others = [records[name].recipe for name in references if name in records]
    recorded = {
        key: (own[key], other[key])
        for other in reversed(others)
        for key in sorted(own.keys() & other.keys() - {*NO_RECIPE})
        if own[key] != other[key]
    }
    trained = all(
        name in records and not records[name].source for name in ("injected", *references)
    )
    share = _retain_share(measures, references)
    return RecipeCheck(recorded, bool(own and any(others)), share, trained)


def _retain_share(measures: CellMeasures, references: Sequence[str]) -> float | None:
    own = measures["injected"].retain_nll
    base = measures["base"].retain_nll if "base" in measures else None
    levels = [level for name in references if (level := measures[name].retain_nll) is not None]
    if own is None or base is None or len(levels) < len(references):
        return None
    mean, column = math.fsum(levels) / len(levels), np.array(levels)[:, None]
    # Where training hardly moved the retain facts, a share of that movement is noise.
    noise = float(prediction_widths(column, 0.05)[0]) if len(levels) > 2 else LEAST_TAUGHT / 10
    if abs(base - mean) <= 10 * noise:
        return None
    return float(abs(own - mean) / abs(base - mean))


def _control(model: Model, kind: ControlKind, measures: CellMeasures, bag: Bag) -> Control:
    comparison, missing = None, ""
    if model.failure is not None:
        missing = model.failure.reason
    elif model.name not in measures:
        missing = f"it has no scores on the {measures.pool} pool"
    else:
        comparison = bag.compare(measures[model.name], model.of)
        if comparison is None:
            missing = "too few references are left to compare it with"
        elif comparison.missing and not comparison.rejected:
            # One that only lacks axes was rejected by nothing, and must not count as noticed.
            missing = f"it has no finite value on {comparison.missing[0]}"
            comparison = None
    share = model.share if kind is ControlKind.MIXTURE else None
    return Control(model.name, kind, share, comparison, missing)


def _kind(model: Model) -> ControlKind | None:
    if model.role is Role.KNOWN_LABEL:
        # An interpolation is a mixture, of which there are some already.
        return None if model.truth in ("restored", "graded", "partial") else ControlKind.KNOWN_LABEL
    if model.role is Role.REFERENCE:
        return ControlKind.SAME_DRAW if model.same_draw else None
    kinds = {
        Role.INJECTED: ControlKind.INJECTED,
        Role.CONTROL: ControlKind.MIXTURE,
        Role.RETRAINING: ControlKind.RETRAINING,
    }
    return kinds.get(model.role)


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
