"""Is this model one more retraining? The comparison of one model with K references.

Null hypothesis: the model and the K references are exchangeable (same base, same retained data,
same recipe, scored by the same code). All K+1 models go into one bag. For model j and axis a

    t_ja = (x_ja - mean of the others) / (sd of the others * sqrt(1 + 1/K)),    S_j = sum_a t_ja^2.

**Rank rule** (at least 19 references). p = #{j : S_j >= S_model} / (K+1), the model itself counted
and ties in favor of not rejecting. The construction treats the K+1 models alike, so under the null
p is valid for any dependence between axes and any distribution, without a correction over axes. It
is full conformal anomaly detection, a Monte-Carlo test (the "+1": Phipson and Smyth,
arXiv:1603.05766).

**Normal rule** (fewer). The same S against its distribution for normal draws: a stretched sum of
squared Student-t variables with K-1 degrees of freedom, computed by convolution. Its level with the
correlation between axes that retrainings show is simulated in the tests.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from palimpsest.errors import ScoreError
from palimpsest.stats.axes import Axis
from palimpsest.stats.multiplicity import exact_level
from palimpsest.stats.rules import Rules

Values = NDArray[np.float64]
Test = Literal["rank", "normal"]

TIE = 1e-9
"""Relative difference below which two values or scores count as equal: rounding, not evidence."""
EFFECTIVE = 0.45
"""Axes that are taken to vary independently of each other, as a share of all: levels during
re-acquisition move together. S has the spread of a sum over fewer axes, stretched (Satterthwaite
1946). Retrainings of pocket models have 0.68 and those of SmolLM2-135M 0.51, which few references
cannot estimate; a smaller share than either makes p larger."""
CELL = 0.01
REACH = 40_000
"""Width and number of the cells on which the normal rule's distribution is computed."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Distance of a model from the retrainings on one axis."""

    axis: str
    offset: float
    """From the references' mean, in the axis' unit."""
    sd: float | None
    """The same in standard deviations of the references; None where they do not vary."""
    t: float
    """Leave-one-out t; infinite where the references do not vary and the model differs."""
    fails: bool
    """Beyond the simultaneous two-sided limit over all axes."""
    bound: float | None
    """With simultaneous confidence, a further retraining lies no further from the model than this
    share of what was at stake; in units of retraining's own range where nothing was."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One model against K references."""

    name: str
    test: Test
    statistic: float
    p: float
    rejected: bool
    """p is at most alpha."""
    references: int
    gaps: Mapping[str, Gap]
    """By axis that was measured."""
    missing: tuple[str, ...]
    """Axes on which the model has no finite value; with any it is never accepted."""
    equivalent: bool
    """``rules.margin`` is set and the bound of every axis is within it."""
    accepted: bool
    """Every axis was measured, and the model is not rejected and, with a margin, equivalent."""

    @property
    def worst(self) -> Gap:
        """The axis with the largest |t|."""
        return max(self.gaps.values(), key=lambda gap: abs(gap.t))

    @property
    def failing(self) -> tuple[Gap, ...]:
        """The axes that give a rejected model away, the worst first; empty when accepted."""
        if self.accepted:
            return ()
        failed = sorted((g for g in self.gaps.values() if g.fails), key=lambda g: -abs(g.t))
        return tuple(failed) or (self.worst,)


def required_references(alpha: float) -> int:
    """Return the fewest references with which the rank rule can reject at all: 1/(K+1) <= alpha.

    The model-level twin of the screen's certifiability bound; 19 at alpha = 0.05.
    """
    return math.ceil(1 / exact_level(alpha)) - 1


def which_test(references: int, alpha: float) -> Test:
    """Return the rule that an audit with this many references uses for all its models.

    A control made of one reference is compared with the others, so the rank rule needs one more
    than ``required_references``: candidate and controls are judged by the same test.
    """
    return "rank" if references > required_references(alpha) else "normal"


def leave_one_out(bag: Values) -> Values:
    """Return t (..., models, axes) of every model of a bag against the others.

    Sums run over sorted values, so that scores do not depend on the order of the models. Where the
    others do not vary, t is 0 for a model that agrees with them and infinite for one that does not.
    """
    others = bag.shape[-2] - 1
    ordered = np.sort(bag, axis=-2)
    # Deviations from the median keep sums of squares accurate however large the values are.
    below, above = (ordered[..., n : n + 1, :] for n in (others // 2, (others + 1) // 2))
    median = (below + above) / 2
    largest = np.maximum(np.abs(ordered[..., :1, :]), np.abs(ordered[..., -1:, :]))
    centered, ordered = bag - median, ordered - median
    total = ordered.sum(axis=-2, keepdims=True)
    squares = np.square(ordered).sum(axis=-2, keepdims=True)
    mean = (total - centered) / others
    variance = (squares - np.square(centered) - others * np.square(mean)) / (others - 1)
    tie = TIE * np.maximum(1.0, largest)
    flat = variance <= np.square(tie)
    if not flat.any():
        t: Values = (centered - mean) / np.sqrt(variance * (1 + 1 / others))
        return t
    same = np.abs(centered - mean) <= tie
    spread = np.sqrt(np.where(flat, 1.0, variance) * (1 + 1 / others))
    t = np.where(flat, np.where(same, 0.0, np.inf), (centered - mean) / spread)
    return np.where(np.isinf(t) & (centered < mean), -np.inf, t)


def bag_scores(bag: Values) -> Values:
    """Return S (..., models) of every model of a bag (..., models, axes)."""
    return summed_squares(leave_one_out(bag))


def summed_squares(t: Values) -> Values:
    """Return S (..., models) from t (..., models, axes)."""
    scores: Values = np.minimum(np.square(t).sum(axis=-1), 1e300)
    return scores


def rank_counts(scores: Values, index: int | NDArray[np.intp] = 0) -> NDArray[np.int64]:
    """Return #{j : S_j >= S_i} in bags of scores (..., models), i the model at ``index``.

    Divided by the size of the bag this is the p-value of that model against the others.
    """
    own = np.take_along_axis(scores, np.broadcast_to(index, scores.shape[:-1])[..., None], axis=-1)
    counts: NDArray[np.int64] = (scores >= own - TIE * np.maximum(1.0, own)).sum(axis=-1)
    return counts


@lru_cache(maxsize=256)
def normal_tail(references: int, axes: int) -> Values:
    """Return P(S >= n * CELL) for n = 0, 1, …, by convolution of the squared Student-t.

    What lies beyond ``REACH`` on one axis lies beyond it in the sum, so no mass is misplaced.
    """
    edges = np.sqrt(CELL * np.arange(REACH + 1))
    within = 1 - 2 * stdtr(references - 1, -edges)
    length = 1 << (axes * REACH).bit_length()
    spectrum = np.fft.rfft(np.diff(within), length) ** axes
    mass = np.maximum(0.0, np.fft.irfft(spectrum, length))
    total = np.concatenate([[0.0], np.cumsum(mass)])
    # A sum of cells with index n lies, to second order, at (n + axes / 2) * CELL.
    index = np.arange(REACH + 1)
    first, second = (np.maximum(0, index - half) for half in (axes // 2, (axes + 1) // 2))
    below = (total[first] + total[second]) / 2
    tail: Values = np.clip(1 - below, 0.0, 1.0)
    return tail


def normal_p_values(scores: Values, references: int, axes: int) -> Values:
    """Return P(S >= each score), rounded so that the same numbers come out on every machine."""
    effective = max(1, int(EFFECTIVE * axes))
    tail = normal_tail(references, effective)
    scaled = scores * effective / axes
    found = np.interp(scaled / CELL, np.arange(len(tail)), tail)
    # So far out it is a single axis that is large: Student-t has heavier tails than a sum shows.
    single = 2 * effective * stdtr(references - 1, -np.sqrt(scaled))
    far = scaled >= CELL * REACH
    p_values = np.array(np.where(far, np.minimum(found, single), found.round(6)), dtype=np.float64)
    p_values[far] = [float(f"{p:.3g}") for p in p_values[far]]
    return p_values


def median_score(references: int, axes: int) -> float:
    """Return the median of S for one more retraining, by the normal rule's distribution."""
    effective = max(1, int(EFFECTIVE * axes))
    tail = normal_tail(references, effective)
    return float(np.interp(-0.5, -tail, np.arange(len(tail))) * CELL * axes / effective)


def p_value(values: Values, references: Values, test: Test) -> tuple[float, Fraction | float]:
    """Return S of a model (axes,) against references (K, axes), and its p-value; all finite."""
    return _judged(leave_one_out(np.concatenate([values[None], references])), test)


def _judged(t: Values, test: Test) -> tuple[float, Fraction | float]:
    """Return S of the first model of a bag and its p-value, from the bag's t (models, axes)."""
    scores = summed_squares(t)
    if test == "rank":
        return float(scores[0]), Fraction(int(rank_counts(scores)), len(scores))
    p = normal_p_values(scores[:1], len(t) - 1, t.shape[1])
    return float(scores[0]), float(p[0])


def compare(
    values: ArrayLike,
    references: ArrayLike,
    axes: Sequence[Axis],
    rules: Rules,
    *,
    test: Test,
    name: str = "",
    stakes: Mapping[str, float | None] | None = None,
) -> Comparison:
    """Return how one model's values (A,) compare with the references' (K, A) on ``axes``.

    NaN among the values means "not measured" and is listed in ``missing``; NaN among the
    references is an error. ``stakes`` gives what was at stake on each axis, in its unit.
    """
    mine, draws = np.asarray(values, np.float64), np.asarray(references, np.float64)
    if mine.shape != (len(axes),) or draws.ndim != 2 or draws.shape[1] != len(axes):
        raise ScoreError(
            f"model {name}: values of shape {mine.shape} and references of shape {draws.shape}; "
            f"expected ({len(axes)},) and (K, {len(axes)}), one column per axis"
        )
    if len(draws) < 3:
        raise ScoreError(f"model {name}: {len(draws)} references; a comparison needs three")
    measured = np.isfinite(mine)
    if not np.isfinite(draws).all() or not measured.any():
        raise ScoreError(f"model {name}: a reference, or the model on every axis, is not finite")
    t = leave_one_out(np.concatenate([mine[None], draws]))
    score, p = _judged(t[:, measured], test)
    rejected = bool(p <= exact_level(rules.alpha))
    missing = tuple(entry.name for entry, known in zip(axes, measured) if not known)
    gaps = _gaps(mine, t[0], draws, axes, stakes or {}, rules)
    equivalent = rules.margin > 0 and all(
        gap.bound is not None
        and gap.bound <= (1.0 if (stakes or {}).get(gap.axis) is None else rules.margin)
        for gap in gaps.values()
    )
    passes = not rejected and (equivalent or rules.margin == 0)
    return Comparison(
        name=name,
        test=test,
        statistic=score,
        p=float(p),
        rejected=rejected,
        references=len(draws),
        gaps=gaps,
        missing=missing,
        equivalent=equivalent,
        accepted=passes and not missing,
    )


def _gaps(
    mine: Values,
    t: Values,
    draws: Values,
    axes: Sequence[Axis],
    stakes: Mapping[str, float | None],
    rules: Rules,
) -> dict[str, Gap]:
    count = len(draws)
    limit = float(stdtrit(count - 1, 1 - rules.alpha / (2 * len(axes))))
    ordered = np.sort(draws, axis=0)
    offsets, spread = mine - ordered.mean(axis=0), ordered.std(axis=0, ddof=1)
    gaps = {}
    for index, entry in enumerate(axes):
        if not math.isfinite(mine[index]):
            continue
        offset, sd = float(offsets[index]), float(spread[index])
        varies = sd > TIE * max(1.0, float(np.abs(draws[:, index]).max()))
        width = limit * sd * math.sqrt(1 + 1 / count)
        stake = stakes.get(entry.name)
        bound = (abs(offset) + width) / stake if stake is not None else None
        if stake is None and varies:
            bound = abs(offset) / width
        gaps[entry.name] = Gap(
            axis=entry.name,
            offset=offset,
            sd=offset / sd if varies else None,
            t=float(t[index]),
            fails=bool(abs(t[index]) > limit),
            bound=bound,
        )
    return gaps


@dataclass(frozen=True, slots=True)
class Homogeneity:
    """Whether the references could all be retrainings by one recipe."""

    p: float
    """Of the largest leave-one-out |t| over references and axes, corrected for their number."""
    reference: str
    """The one that sticks out most."""
    axis: str
    t: float
    odd: bool
    """p is at most ``HOMOGENEITY_LEVEL``."""


HOMOGENEITY_LEVEL = 0.01


def check_homogeneity(
    names: Sequence[str], references: Values, axes: Sequence[Axis]
) -> Homogeneity | None:
    """Return whether one of the references (K, A) sticks out; None with fewer than four.

    The externally studentized deviation of one of K normal values has a Student-t distribution with
    K-2 degrees of freedom; Bonferroni over K * A of them, which for so small a level is close to
    exact (Grubbs 1969; simulated in tests).
    """
    count, width = references.shape
    if count < 4 or not width:
        return None
    t = leave_one_out(references)
    row, column = divmod(int(np.argmax(np.abs(t))), width)
    largest = abs(float(t[row, column]))
    p = min(1.0, 2 * count * width * float(stdtr(count - 2, -largest)))
    odd = p <= HOMOGENEITY_LEVEL
    return Homogeneity(p, names[row], axes[column].name, float(t[row, column]), odd)


COPY_DISTANCE = 0.2
"""Two models that lie this near on every axis, in standard deviations of the references, are no
independent retrainings: of 280 bags of 5 to 35 retrainings the two nearest ones differed by 0.6."""
CROWD_DISTANCE = 0.8
"""References half of which have another one this near are copies with noise (honest: 1.2)."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A reference and a model that it is a copy of."""

    reference: str
    other: str
    """Another reference, or a candidate."""
    distance: float
    """Largest over the axes, in standard deviations of the references."""
    crowded: int
    """References with another one within ``CROWD_DISTANCE``; the reason where half of them have."""


def find_copy(
    names: Sequence[str], references: Values, candidates: Mapping[str, Values]
) -> Copy | None:
    """Return a reference of (K, A) that is a copy of another one, or of a candidate (A,).

    Weights that were rounded, rescaled or changed in one digit have another digest and the same
    scores; many copies with more noise lie nearer to each other than retrainings do. None too where
    fewer than five axes vary, on which models may agree by chance.
    """
    count = len(references)
    if count < 2:
        return None
    spread = np.sort(references, axis=0).std(axis=0, ddof=1)
    varies = spread > TIE * np.maximum(1.0, np.abs(references).max(axis=0))
    if varies.sum() < 5:
        return None
    rows = np.array([*references, *candidates.values()])[:, varies] / spread[varies]
    apart = np.abs(rows[:count, None] - rows[None]).max(axis=-1)
    apart[np.isnan(apart)] = np.inf
    apart[np.arange(count), np.arange(count)] = np.inf
    among = apart[:, :count].min(axis=1)
    crowded = int((among <= CROWD_DISTANCE).sum())
    every = [*names, *candidates]
    if 2 * crowded >= count > 2:
        apart = apart[:, :count]
    elif apart.min() > COPY_DISTANCE:
        return None
    row, column = divmod(int(np.argmin(apart)), apart.shape[1])
    return Copy(names[row], every[column], float(apart[row, column]), crowded)


def constant_axes(references: Values, axes: Sequence[Axis]) -> tuple[str, ...]:
    """Return the axes on which references (K, A) do not vary at all."""
    low, high = references.min(axis=0), references.max(axis=0)
    alike = high - low <= TIE * np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))
    return tuple(entry.name for entry, same in zip(axes, alike) if same)


def prediction_widths(references: Values, alpha: float) -> Values:
    """Return how far a further draw may lie from the mean of these (K, axes), two-sided at alpha,
    on each axis."""
    count = len(references)
    factor = float(stdtrit(count - 1, 1 - alpha / 2)) * math.sqrt(1 + 1 / count)
    widths: Values = factor * np.sort(references, axis=0).std(axis=0, ddof=1)
    return widths
