"""Is this model one more retraining? The comparison of one model with K references.

Null hypothesis: the model and the K references are exchangeable (same base, same retained data,
same recipe, scored by the same code).

Exact test (K >= 1/alpha - 1). All K+1 models go into one bag. On each axis values are standardised
by mean and standard deviation of **all K+1**; S_j is the largest |z| of model j over the axes, and

    p = #{j : S_j >= S_model} / (K+1)

with the model itself counted and ties in favour of not rejecting. The construction treats the K+1
models alike, so under the null p is valid for any dependence between axes and any distribution,
without a correction over axes. Standardising by the references alone, with the model outside, does
not treat them alike and rejects too often. It is full conformal anomaly detection, equivalently a
max-T Monte-Carlo test (Westfall and Young 1993; the "+1": Phipson and Smyth, arXiv:1603.05766).

Student-t region (fewer references, at least two). The model is rejected when on any of A axes
|x - mean| > t sd sqrt(1 + 1/K), t the 1 - alpha/(2A) quantile with K-1 degrees of freedom: a
simultaneous prediction region by Bonferroni. p is A times the smallest two-sided p-value over the
axes, at most 1. It assumes normally distributed draws, for which it rejects at most alpha
(simulated, 3 to 18 references, 1 to 12 axes). With heavy tails (Student t, 3 degrees of freedom) it
rejects 6 to 24 % of retrained models at alpha = 5 %, so it errs towards rejecting the truth.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from palimpsest.criteria.axes import Axis
from palimpsest.criteria.multiplicity import exact_level
from palimpsest.criteria.rules import Rules
from palimpsest.errors import ScoreError

Values = NDArray[np.float64]
Test = Literal["exact", "student-t"]

TIE = 1e-9
"""Relative difference below which two values or scores count as equal: rounding, not evidence."""


@dataclass(frozen=True, slots=True)
class Worst:
    """The axis on which a model lies furthest from the retrainings."""

    axis: str
    direction: Literal["high", "low"]
    sd: float | None
    """Distance in standard deviations of the references, signed as z is; None where they do not
    vary at all."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Distance from the mean of the references as a share of what was at stake."""

    share: float
    bound: float
    """With confidence 1 - alpha a further retraining lies no further from the model than this."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One model against K references."""

    name: str
    test: Test
    p: float
    rejected: bool
    """p is at most alpha."""
    references: int
    z: Mapping[str, float | None]
    """By axis: signed distance from the references' mean in their standard deviations; None on an
    axis that was not measured or on which the references do not vary."""
    worst: Worst
    gaps: Mapping[str, Gap | None]
    """By axis; None where it was not measured or nothing was at stake."""
    restored: float | None
    """1 minus the largest share, at least 0; None without any gap."""
    equivalent: bool
    """``rules.margin`` is set and every axis' gap bound is at most that."""
    missing: tuple[str, ...]
    """Axes on which the model has no finite value; with any it is never accepted."""
    accepted: bool
    """Every axis was measured, and the model is equivalent (with a margin) or not rejected."""


def required_references(alpha: float) -> int:
    """Return the fewest references with which the exact test can reject at all: 1/(K+1) <= alpha.

    The model-level twin of the screen's certifiability bound; 19 at alpha = 0.05.
    """
    return math.ceil(1 / exact_level(alpha)) - 1


def which_test(references: int, alpha: float) -> Test:
    """Return the test that applies to so many references."""
    return "exact" if references >= required_references(alpha) else "student-t"


def bag_scores(bag: Values, sides: Sequence[str]) -> Values:
    """Return S of every model of a bag (..., models, axes): its largest |z| over the axes.

    Mean and standard deviation are those of the whole bag. An axis on which no model differs adds
    nothing. Sums run in sorted order, so that scores do not depend on the order of the models.
    """
    ordered = np.sort(bag, axis=-2)
    centre = ordered.mean(axis=-2, keepdims=True)
    spread = np.sqrt(np.mean(np.square(ordered - centre), axis=-2, keepdims=True))
    alike = _alike(ordered)
    z = np.where(alike, 0.0, (bag - centre) / np.where(alike, 1.0, spread))
    distances: Values = _sided(sides, -z, z, np.abs(z)).max(axis=-1)
    return distances


def exact_counts(bag: Values, sides: Sequence[str]) -> NDArray[np.int64]:
    """Return #{j : S_j >= S_i} for each model i of a bag (..., models, axes), i itself counted.

    Divided by the size of the bag this is the p-value of model i against the others.
    """
    scores = bag_scores(bag, sides)
    slack = TIE * np.maximum(1.0, np.abs(scores))
    at_least = scores[..., None, :] >= (scores - slack)[..., :, None]
    counts: NDArray[np.int64] = at_least.sum(axis=-1)
    return counts


def student_p_values(values: Values, references: Values, sides: Sequence[str]) -> Values:
    """Return the p-value (..., axes) of each axis under the Student-t prediction distribution.

    ``values`` (..., axes), ``references`` (..., K, axes). Two-sided, or one-sided on an axis that
    is. Where references do not vary, a model that differs has p-value 0 and one that agrees 1.
    """
    count = references.shape[-2]
    ordered = np.sort(references, axis=-2)
    centre = ordered.mean(axis=-2)
    spread = ordered.std(axis=-2, ddof=1) * math.sqrt(1 + 1 / count)
    alike = _alike(ordered)[..., 0, :]
    same = np.abs(values - centre) <= TIE * np.maximum(1.0, np.abs(centre))
    constant = np.where(same, 0.0, np.copysign(np.inf, values - centre))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(alike, constant, (values - centre) / np.where(alike, 1.0, spread))
    below, above = stdtr(count - 1, t), stdtr(count - 1, -t)
    p_values = _sided(sides, below, above, np.minimum(1.0, 2 * np.minimum(below, above)))
    # A number too large to subtract from or divide by is no agreement.
    p_values = np.where(np.isnan(p_values), 0.0, p_values)
    return np.where(alike & same, 1.0, p_values)


def p_value(
    values: Values, references: Values, sides: Sequence[str], alpha: float
) -> tuple[Test, Fraction | float]:
    """Return which test applies and its p-value, exact as a fraction.

    ``values`` (axes,), ``references`` (K, axes), all finite.
    """
    test = which_test(len(references), alpha)
    if test == "exact":
        bag = np.concatenate([values[None], references])
        return test, Fraction(int(exact_counts(bag, sides)[0]), len(bag))
    smallest = float(student_p_values(values, references, sides).min())
    return test, min(1.0, smallest * len(sides))


def constant_axes(references: Values, axes: Sequence[Axis]) -> tuple[str, ...]:
    """Return the axes on which references (K, A) do not vary at all."""
    alike = _alike(references)[0]
    return tuple(axis.name for axis, same in zip(axes, alike) if same)


def compare(
    values: ArrayLike,
    references: ArrayLike,
    axes: Sequence[Axis],
    rules: Rules,
    *,
    name: str = "",
    stakes: Mapping[str, float | None] | None = None,
) -> Comparison:
    """Return how one model's values (A,) compare with the references' (K, A) on ``axes``.

    NaN among the values means "not measured" and is listed in ``missing``; NaN among the
    references is an error. ``stakes`` gives what was at stake on each axis, in its unit. At least
    two references are needed; ``rules.minimum_references`` is the verdict's business.
    """
    mine, draws = np.asarray(values, np.float64), np.asarray(references, np.float64)
    if mine.shape != (len(axes),) or draws.ndim != 2 or draws.shape[1] != len(axes):
        raise ScoreError(
            f"model {name}: values of shape {mine.shape} and references of shape {draws.shape}; "
            f"expected ({len(axes)},) and (K, {len(axes)}), one column per axis"
        )
    if len(draws) < 2:
        raise ScoreError(f"model {name}: {len(draws)} references; a comparison needs at least two")
    if not np.isfinite(draws).all():
        raise ScoreError(f"model {name}: a reference has no finite value on an axis compared")
    measured = np.isfinite(mine)
    if not measured.any():
        raise ScoreError(f"model {name}: no axis has a finite value; there is nothing to compare")
    kept = [axis for axis, known in zip(axes, measured) if known]
    test, p = p_value(
        mine[measured], draws[:, measured], [axis.sides for axis in kept], rules.alpha
    )
    rejected = p <= exact_level(rules.alpha)
    ordered = np.sort(draws, axis=0)
    offsets = mine - ordered.mean(axis=0)
    alike = _alike(ordered)[0]
    beyond = np.where(np.abs(offsets) <= TIE * np.maximum(1.0, np.abs(mine)), 0.0, np.inf)
    spread = np.where(alike, 1.0, ordered.std(axis=0, ddof=1))
    distances = np.where(alike, np.copysign(beyond, offsets), offsets / spread)
    widths = prediction_widths(draws, rules.alpha)
    z: dict[str, float | None] = {}
    gaps: dict[str, Gap | None] = {}
    worst, furthest = None, -math.inf
    for place, axis in enumerate(axes):
        z[axis.name] = gaps[axis.name] = None
        if not measured[place]:
            continue
        distance, offset = float(distances[place]), float(offsets[place])
        z[axis.name] = None if alike[place] else distance
        stake = (stakes or {}).get(axis.name)
        if stake is not None:
            bound = (abs(offset) + float(widths[place])) / stake
            gaps[axis.name] = Gap(abs(offset) / stake, bound)
        counted = {"two": abs(distance), "low": -distance, "high": distance}[axis.sides]
        if worst is None or counted > furthest + TIE * max(1.0, abs(furthest)):
            direction: Literal["high", "low"] = "high" if offset >= 0 else "low"
            worst, furthest = Worst(axis.name, direction, z[axis.name]), counted
    assert worst is not None
    shares = [gap.share for gap in gaps.values() if gap is not None]
    equivalent = rules.margin > 0 and all(
        gap is not None and gap.bound <= rules.margin for gap in gaps.values()
    )
    missing = tuple(axis.name for axis, known in zip(axes, measured) if not known)
    passes = equivalent if rules.margin > 0 else not rejected
    return Comparison(
        name=name,
        test=test,
        p=float(p),
        rejected=bool(rejected),
        references=len(draws),
        z=z,
        worst=worst,
        gaps=gaps,
        restored=max(0.0, 1 - max(shares)) if shares else None,
        equivalent=equivalent,
        missing=missing,
        accepted=passes and not missing,
    )


def _sided(sides: Sequence[str], low: Values, high: Values, two: Values) -> Values:
    """Return on each axis (..., axes) the values of the side that counts against a model there."""
    low_only, high_only = (np.array([side == which for side in sides]) for which in ("low", "high"))
    values: Values = np.where(low_only, low, np.where(high_only, high, two))
    return values


def _alike(bag: Values) -> NDArray[np.bool_]:
    """Tell on which axes (..., 1, axes) the models of a bag do not differ beyond rounding."""
    low, high = bag.min(axis=-2, keepdims=True), bag.max(axis=-2, keepdims=True)
    alike: NDArray[np.bool_] = high - low <= TIE * np.maximum(1.0, np.maximum(abs(low), abs(high)))
    return alike


def prediction_widths(references: Values, alpha: float) -> Values:
    """Return how far a further draw may lie from the mean of these (K, axes), two-sided at alpha,
    on each axis."""
    count = len(references)
    factor = float(stdtrit(count - 1, 1 - alpha / 2)) * math.sqrt(1 + 1 / count)
    widths: Values = factor * np.sort(references, axis=0).std(axis=0, ddof=1)
    return widths
