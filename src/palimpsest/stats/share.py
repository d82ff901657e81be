"""How much of the injected weights is left: a share with its bound, and a scale of distance.

An audit's own mixtures are its ruler: references with known shares of the injected weights.

**The share** speaks of the axes that show knowledge of the forget facts. For axis a

    u_a(x) = 0.1 * (x_a - mean of references_a) / (mean over j of (10 % mixture of j - j)_a),

so that a retraining reads 0 and a mixture of 10 % reads 0.1; axes on which that mixture moves less
than one standard deviation of the references are left out. The reading of a model is the mean of u
over the axes, and its share is the reading interpolated along those of the larger mixtures and the
injected model. The bound adds the one-sided 95 % prediction limit of one more retraining,

    t(0.95, K-1) * sd over references of their readings * sqrt(1 + 1/K),

to the reading. One number per model, so neither a prior nor the correlation of axes enters. It
speaks of models between a retraining and the injected model: knowledge that is hidden has a share
of 0 or less, and the joint comparison of all axes must find it.

**The scale** says how far a model lies from retrainings, in whatever direction, in terms that carry
over between audits: as far as a mixture of that share (``distance_scale``). It is no share of
knowledge: a router that keeps every fact may read 24 %.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from palimpsest.stats.axes import AXES, Axis, Sign
from palimpsest.stats.comparison import bag_scores, median_score
from palimpsest.stats.controls import axis_values
from palimpsest.stats.measures import CellMeasures, ModelMeasures
from palimpsest.stats.models import Model, Role
from palimpsest.stats.rules import MINIMUM_REFERENCES, UNIT

Values = NDArray[np.float64]

KNOWLEDGE = tuple(a for a in AXES if {a.low.sign, a.high.sign} == {Sign.KNOWS, Sign.FORGETS})
"""The axes of which one side shows knowledge of the forget facts, and the other the lack of it."""
CONFIDENCE = 0.95
"""Of the bound, one-sided."""
BORROWED_SPREAD = 0.036
"""Standard deviation of a retraining's reading that an audit with fewer than five references
assumes at least."""
LEAST_STAKE = 0.4
"""With fewer than five references: how far the injected model must lie from them on an axis, in
nats, so that the axis can be read. Where a one-way question taught nothing, their spread would show
it, which is not known."""


def mixtures_of(measures: CellMeasures, names: Sequence[str]) -> dict[float, dict[str, str]]:
    """Return the measured mixtures of these references: by share, by the reference's name."""
    found: dict[float, dict[str, str]] = {}
    for name in measures.of_role(Role.CONTROL):
        record: Model = measures.records[name]
        if record.of in names and record.share is not None:
            found.setdefault(record.share, {})[record.of] = name
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of the injected weights in a model, unless it is hidden."""

    share: float
    """Point estimate; 0 for a retraining, negative for a model that forgot more than one."""
    bound: float
    """At most this share is left, with confidence ``CONFIDENCE``; never below 0."""
    least: float
    """At least this share is left, likewise; negative where nothing need be left."""
    by_axis: Mapping[str, float]
    """The share that each axis alone shows, interpolated along the mixtures."""

    @property
    def overshoots(self) -> bool:
        """Whether it forgot significantly more than a retraining."""
        return 2 * self.share < self.least


@dataclass(frozen=True, slots=True, eq=False)
class Ruler:
    """Reads the share of a model; made by ``make_ruler``."""

    axes: tuple[str, ...]
    zero: Values
    """Mean of the references (A,)."""
    unit: Values
    """How far a mixture of 10 % lies from the reference that it is made of (A,)."""
    knots: Values
    """Readings of known models and their shares (n, 2), both increasing."""
    axis_knots: tuple[Values, ...]
    """The same for each axis alone."""
    spread: float
    """Standard deviation of a retraining's reading."""
    width: float
    """Half of the one-sided prediction interval of a further retraining's reading."""
    references: int
    borrowed: bool
    """Whether the spread is that of other models' retrainings."""

    def readings(self, model: ModelMeasures) -> Values:
        """Return what each axis reads (A,)."""
        values = axis_values(model, [axis for axis in KNOWLEDGE if axis.name in self.axes])
        readings: Values = UNIT * (values - self.zero) / self.unit
        return readings

    def left(self, model: ModelMeasures) -> Left | None:
        """Return what is left in a model; None where one of the axes was not measured."""
        readings = self.readings(model)
        if not np.isfinite(readings).all():
            return None
        reading = float(readings.mean())
        share, width = _along(self.knots, reading), self.width
        # Where shares rise more slowly than readings, models vary more in readings too: the width
        # is not compressed with them.
        return Left(
            share=share,
            bound=max(0.0, share + width, _along(self.knots, reading + width)),
            least=min(share - width, _along(self.knots, reading - width)),
            by_axis={
                name: _along(knots, float(value))
                for name, knots, value in zip(self.axes, self.axis_knots, readings)
            },
        )


def make_ruler(measures: CellMeasures, names: Sequence[str]) -> Ruler | None:
    """Return the ruler of an audit with these references; None where its mixtures give none."""
    mixtures = mixtures_of(measures, names)
    if not names or UNIT not in mixtures or "injected" not in measures:
        return None
    draws = np.array([axis_values(measures[name], KNOWLEDGE) for name in names])
    zero, count = np.sort(draws, axis=0).mean(axis=0), len(names)
    injected = axis_values(measures["injected"], KNOWLEDGE) - zero

    def moves(share: float) -> Values:
        pairs = [
            axis_values(measures[mixture], KNOWLEDGE) - axis_values(measures[of], KNOWLEDGE)
            for of, mixture in mixtures[share].items()
        ]
        moved: Values = np.sort(pairs, axis=0).mean(axis=0)
        return moved

    unit = moves(UNIT)
    borrowed = count < MINIMUM_REFERENCES
    least = draws.std(axis=0, ddof=1) if count > 1 else 0.0
    with np.errstate(invalid="ignore"):  # NaN where it was not measured
        kept = (np.abs(unit) >= least) & (unit * injected > 0)
        kept &= np.abs(injected) >= (LEAST_STAKE if borrowed else 0.0)
    if not kept.any():
        return None
    unit, zero = unit[kept], zero[kept]
    known = [(share, UNIT * moves(share)[kept] / unit) for share in mixtures if share >= UNIT]
    known.append((1.0, UNIT * injected[kept] / unit))
    readings = UNIT * (draws[:, kept] - zero) / unit
    factor = math.sqrt(1 + 1 / count)
    own = float(np.sort(readings.mean(axis=1)).std(ddof=1)) if count > 1 else 0.0
    spread = max(own, BORROWED_SPREAD) if borrowed else own
    quantile = float(ndtri(CONFIDENCE) if borrowed else stdtrit(count - 1, CONFIDENCE))
    return Ruler(
        axes=tuple(axis.name for axis, keep in zip(KNOWLEDGE, kept) if keep),
        zero=zero,
        unit=unit,
        knots=_knots([(share, float(values.mean())) for share, values in known]),
        axis_knots=tuple(
            _knots([(share, float(values[index])) for share, values in known])
            for index in range(len(unit))
        ),
        spread=spread,
        width=quantile * spread * factor,
        references=count,
        borrowed=borrowed,
    )


def _knots(known: Sequence[tuple[float, float]]) -> Values:
    """Return readings and shares (n, 2) from (share, reading) in order of share; those that do not
    increase are left out."""
    kept = [(0.0, 0.0)]
    for share, reading in known:
        if reading > kept[-1][0]:
            kept.append((reading, share))
    return np.array(kept)


def _along(knots: Values, reading: float) -> float:
    """Return the share at a reading; beyond the ends along the first and the last piece."""
    readings, shares = knots.T
    if len(knots) < 2:
        return reading
    index = int(np.clip(np.searchsorted(readings, reading) - 1, 0, len(knots) - 2))
    slope = (shares[index + 1] - shares[index]) / (readings[index + 1] - readings[index])
    return float(shares[index] + slope * (reading - readings[index]))


# -- the scale -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scale:
    """As far from retrainings as a mixture of this share: estimate and 90 % interval.

    ``inf`` is beyond the injected model.
    """

    share: float
    low: float
    high: float


GRID = np.concatenate([[0.0], np.geomspace(0.001, 1.0, 301)])


@dataclass(frozen=True, slots=True, eq=False)
class DistanceScale:
    """Distances of an audit's mixtures, beside which a model is put; from ``distance_scale``."""

    parents: tuple[int, ...]
    """Rows of the references that have mixtures of every share."""
    references: Values
    shares: Values
    """Of the mixtures and the injected model, increasing (n,)."""
    beyond: Values
    """How far each lies beyond a retraining, by parent (parents, n)."""
    usual: float
    """Median of S for a retraining."""

    def place(self, values: Values) -> Scale | None:
        """Return where a model with these values (A,) lies; None where one was not measured."""
        if not np.isfinite(values).all():
            return None
        distance = np.array([_distance(values, self.references, row) for row in self.parents])
        curve, own = self.beyond.mean(axis=0), _beyond(distance.mean(), self.usual)
        share = self._share(np.maximum.accumulate(curve), own)
        marks = np.sqrt(np.square(self._at(GRID)) + self.usual)  # (parents, grid)
        apart = distance[:, None] - marks
        count = len(self.parents)
        reach = stdtrit(count - 1, 0.95) * apart.std(axis=0, ddof=1) * math.sqrt(1 + 1 / count)
        fitting = GRID[np.abs(apart.mean(axis=0)) <= reach]
        low, high = (fitting.min(), fitting.max()) if len(fitting) else (share, share)
        low, high = min(float(low), share), max(float(high), share, float(self.shares[0]))
        return Scale(share, low, math.inf if high >= 1.0 else high)

    def _share(self, curve: Values, own: float) -> float:
        """Return the share at which the mixtures lie as far out, linear in logarithms."""
        if own <= 0:
            return 0.0
        if own > curve[-1]:
            return math.inf
        index = int(np.searchsorted(curve, own))
        if index == 0:
            return float(self.shares[0] * own / curve[0])
        (x0, x1), (y0, y1) = (
            np.log(self.shares[index - 1 : index + 1]),
            curve[index - 1 : index + 1],
        )
        part = 1.0 if y0 <= 0 or y1 <= y0 else math.log(own / y0) / math.log(y1 / y0)
        return float(math.exp(x0 + part * (x1 - x0)))

    def _at(self, shares: Values) -> Values:
        """Return how far mixtures of these shares would lie beyond a retraining (parents, n)."""
        first, known = self.shares[0], np.log(self.shares)
        inside = np.maximum(shares, first)
        rows = [
            np.exp(np.interp(np.log(inside), known, np.log(np.maximum(row, 1e-9))))
            for row in self.beyond
        ]
        at: Values = np.array(rows) * np.minimum(shares / first, 1.0)
        return at


def distance_scale(
    measures: CellMeasures, names: Sequence[str], references: Values, axes: Sequence[Axis]
) -> DistanceScale | None:
    """Return the scale of an audit with these references (K, A); None without mixtures of two.

    For every reference j that mixtures of each share were made of, j is left out for mixture and
    model alike: d_j = sqrt(S(model | bag - j)), r_j(s) = sqrt(S(mixture of j at s | bag - j)), and
    both lie beyond the median d0^2 of S for a retraining by sqrt(d^2 - d0^2). The model's share is
    where the two agree, on the means over j; its interval holds the shares that the spread of
    d_j - r_j(s) does not reject at 90 %.
    """
    mixtures = mixtures_of(measures, names)
    parents = [name for name in names if mixtures and all(name in m for m in mixtures.values())]
    if len(parents) < 2 or len(names) < MINIMUM_REFERENCES or "injected" not in measures:
        return None
    usual = median_score(len(names) - 1, len(axes))
    rows = tuple(names.index(parent) for parent in parents)
    known = [[measures[made[parent]] for made in mixtures.values()] for parent in parents]
    values = np.array(
        [[axis_values(model, axes) for model in (*own, measures["injected"])] for own in known]
    )
    if not np.isfinite(values).all():
        return None
    distances = [[_distance(v, references, row) for v in own] for row, own in zip(rows, values)]
    beyond = np.array([[_beyond(distance, usual) for distance in own] for own in distances])
    return DistanceScale(rows, references, np.array([*mixtures, 1.0]), beyond, usual)


def _distance(values: Values, references: Values, without: int) -> float:
    """Return the root of S of a model against the references but one."""
    others = np.delete(references, without, axis=0)
    return math.sqrt(float(bag_scores(np.concatenate([values[None], others]))[0]))


def _beyond(distance: float, usual: float) -> float:
    return math.sqrt(max(0.0, distance * distance - usual))
