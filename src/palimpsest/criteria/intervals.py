"""Intervals and equivalence: Clopper–Pearson, cluster bootstrap, TOST, gaps, Spearman."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.special import betaincinv, ndtr, ndtri

from palimpsest.criteria.ranktest import rank_test
from palimpsest.errors import ScoreError

Side = Literal["two-sided", "upper", "lower"]
Statistic = Literal["mean", "median"] | Callable[[NDArray[np.float64]], float]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence limits."""

    estimate: float
    low: float
    high: float
    confidence: float
    method: str


def clopper_pearson(
    successes: int, trials: int, confidence: float = 0.95, side: Side = "two-sided"
) -> Interval:
    """Return the exact binomial limits of a proportion; a one-sided limit leaves the other end at 0
    or 1.

    Clopper & Pearson (1934), Biometrika 26.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ScoreError(
            f"{successes} successes of {trials} trials; expected 0 <= successes <= trials, "
            "and at least one trial"
        )
    _require_confidence(confidence)
    tail = (1 - confidence) / (2 if side == "two-sided" else 1)
    low, high = 0.0, 1.0
    if side != "upper" and successes > 0:
        low = float(betaincinv(successes, trials - successes + 1, tail))
    if side != "lower" and successes < trials:
        high = float(betaincinv(successes + 1, trials - successes, 1 - tail))
    return Interval(successes / trials, low, high, confidence, f"clopper-pearson {side}")


def clopper_pearson_clustered(
    events: Sequence[bool],
    clusters: Sequence[Hashable],
    confidence: float = 0.95,
    side: Side = "two-sided",
) -> Interval:
    """Return Clopper–Pearson over clusters, a cluster counting when any of its cells does.

    Cells of one architecture are not independent, so the number of trials is the number of
    architectures, which widens the interval honestly.
    """
    if len(events) != len(clusters):
        raise ScoreError(f"{len(events)} events for {len(clusters)} cluster labels")
    happened: dict[Hashable, bool] = {}
    for event, cluster in zip(events, clusters):
        happened[cluster] = happened.get(cluster, False) or bool(event)
    interval = clopper_pearson(sum(happened.values()), len(happened), confidence, side)
    return Interval(
        interval.estimate, interval.low, interval.high, confidence, interval.method + ", clustered"
    )


def cluster_bootstrap(
    values: ArrayLike,
    clusters: Sequence[Hashable],
    statistic: Statistic = "mean",
    *,
    resamples: int = 10_000,
    confidence: float = 0.95,
    method: Literal["percentile", "bca"] = "percentile",
    seed: int,
) -> Interval:
    """Return the bootstrap limits of a statistic of (items,) values, resampling whole clusters.

    BCa takes its acceleration from leaving one cluster out at a time. Efron (1987), Journal of
    the American Statistical Association 82; Field & Welsh (2007), JRSS B 69 for clusters.
    """
    data = _finite("values", values)
    if len(data) != len(clusters):
        raise ScoreError(f"{len(data)} values for {len(clusters)} cluster labels")
    _require_confidence(confidence)
    labels: dict[Hashable, int] = {}
    member = np.array([labels.setdefault(label, len(labels)) for label in clusters])
    count = len(labels)
    if count < 2:
        raise ScoreError(f"a cluster bootstrap needs at least 2 clusters; found {count}")
    evaluate = _evaluator(data, member, count, statistic)

    estimate = float(evaluate(np.ones((1, count), dtype=np.int64))[0])
    generator = np.random.default_rng(seed)
    weights = generator.multinomial(count, np.full(count, 1 / count), size=resamples)
    replicates = evaluate(weights)
    tails = np.array([(1 - confidence) / 2, (1 + confidence) / 2])
    if method == "bca":
        leave_one_out = evaluate(1 - np.eye(count, dtype=np.int64))
        tails = _bca_tails(tails, replicates, estimate, leave_one_out)
    low, high = np.quantile(replicates, tails)
    return Interval(
        estimate, float(low), float(high), confidence, f"cluster bootstrap, {method}, seed {seed}"
    )


def _evaluator(
    data: NDArray[np.float64], member: NDArray[np.int64], count: int, statistic: Statistic
) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
    """Return a function from (resamples, clusters) multiplicities to the statistic of each
    resample."""
    if statistic == "mean":
        sums = np.bincount(member, weights=data, minlength=count)
        sizes = np.bincount(member, minlength=count)
        return lambda weights: (weights @ sums) / (weights @ sizes)
    if statistic == "median":
        order = np.argsort(data, kind="stable")
        return lambda weights: _weighted_medians(data[order], member[order], weights)
    if isinstance(statistic, str):
        raise ScoreError(f"statistic is {statistic!r}; expected mean, median or a function")

    def each(weights: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.array([float(statistic(np.repeat(data, row[member]))) for row in weights])

    return each


def _weighted_medians(
    values: NDArray[np.float64], member: NDArray[np.int64], weights: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the median of each resample: the mean of its two middle values, by cumulative
    multiplicity."""
    medians = np.empty(len(weights))
    for start in range(0, len(weights), 1024):
        part = slice(start, start + 1024)
        cumulative = np.cumsum(weights[part][:, member], axis=1)
        total = cumulative[:, -1:]
        lower = (cumulative >= (total + 1) // 2).argmax(axis=1)
        upper = (cumulative >= total // 2 + 1).argmax(axis=1)
        medians[part] = (values[lower] + values[upper]) / 2
    return medians


def _bca_tails(
    tails: NDArray[np.float64],
    replicates: NDArray[np.float64],
    estimate: float,
    leave_one_out: NDArray[np.float64],
) -> NDArray[np.float64]:
    below = (np.sum(replicates < estimate) + 0.5 * np.sum(replicates == estimate)) / len(replicates)
    if not 0 < below < 1:
        raise ScoreError(
            "every bootstrap replicate lies on one side of the estimate, so BCa has no bias "
            "correction; use the percentile method"
        )
    bias = ndtri(below)
    gaps = leave_one_out.mean() - leave_one_out
    spread = float(np.sum(gaps**2))
    acceleration = 0.0 if spread == 0 else float(np.sum(gaps**3)) / (6 * spread**1.5)
    z = bias + ndtri(tails)
    corrected: NDArray[np.float64] = ndtr(bias + z / (1 - acceleration * z))
    return corrected


@dataclass(frozen=True, slots=True)
class Equivalence:
    """Two one-sided tests that forget deltas lie within ``margin`` of probe deltas."""

    difference: float
    """Mean difference (Welch) or Hodges–Lehmann shift (rank)."""
    margin: float
    p_lower: float
    """Against the difference being -margin or less."""
    p_upper: float
    """Against the difference being +margin or more."""
    p_value: float
    equivalent: bool
    method: str


def tost(
    forget_deltas: ArrayLike,
    probe_deltas: ArrayLike,
    margin: float,
    alpha: float = 0.05,
    method: Literal["rank", "welch"] = "rank",
) -> Equivalence:
    """Return the equivalence of (m,) forget and (n,) probe deltas at ``margin`` nats.

    "rank" shifts the probes by each margin and applies the exact rank test (valid for any common
    shape); "welch" is two t tests with unequal variances. Schuirmann (1987), Journal of
    Pharmacokinetics and Biopharmaceutics 15; Wellek (2010), Testing Statistical Hypotheses of
    Equivalence and Noninferiority, chapter 6.
    """
    forget = _finite("forget deltas", forget_deltas)
    probe = _finite("probe deltas", probe_deltas)
    if not (math.isfinite(margin) and margin > 0):
        raise ScoreError(f"the equivalence margin is {margin}; expected a positive number of nats")
    if method == "rank":
        difference = float(np.median(forget[:, None] - probe[None, :]))
        p_lower = rank_test(probe - margin, forget).p_value
        p_upper = rank_test(forget, probe + margin).p_value
        label = "two one-sided exact rank tests"
    elif method == "welch":
        difference = float(forget.mean() - probe.mean())
        p_lower, p_upper = _welch_tails(forget, probe, margin)
        label = "two one-sided Welch t tests"
    else:
        raise ScoreError(f"the equivalence method is {method!r}; expected rank or welch")
    p_value = max(p_lower, p_upper)
    return Equivalence(difference, margin, p_lower, p_upper, p_value, p_value <= alpha, label)


def _welch_tails(
    forget: NDArray[np.float64], probe: NDArray[np.float64], margin: float
) -> tuple[float, float]:
    if min(len(forget), len(probe)) < 2:
        raise ScoreError("Welch's test needs at least two forget and two probe deltas")
    if np.ptp(forget) == np.ptp(probe) == 0:
        raise ScoreError("the deltas do not vary, so Welch's test has no scale; use method rank")
    low, high = (
        stats.ttest_ind(forget + moved, probe, equal_var=False, alternative=side).pvalue
        for moved, side in ((margin, "greater"), (-margin, "less"))
    )
    return float(low), float(high)


def replication_gap(draws: ArrayLike, percentile: float = 90.0) -> float:
    """Return the percentile, over facts and pairs of draws, of the absolute gap of (draws, facts)
    deltas."""
    deltas = np.asarray(draws, dtype=np.float64)
    if deltas.ndim != 2 or deltas.shape[0] < 2 or deltas.shape[1] < 1:
        raise ScoreError(
            f"draws have shape {deltas.shape}; expected (draws, facts), 2 draws or more"
        )
    if not np.isfinite(deltas).all():
        draw, fact = (int(i) for i in np.argwhere(~np.isfinite(deltas))[0])
        raise ScoreError(f"draw {draw}, fact {fact}: the delta is {deltas[draw, fact]}")
    gaps = [np.abs(deltas[a] - deltas[b]) for a, b in combinations(range(len(deltas)), 2)]
    return float(np.percentile(np.concatenate(gaps), percentile))


def spearman(x: ArrayLike, y: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return Spearman's rank correlation of (items,) pairs, with Bonett and Wright's interval.

    Fisher's z with standard error sqrt((1 + r² / 2) / (n - 3)); approximate, and wide or refused
    for few items. Bonett & Wright (2000), Psychometrika 65.
    """
    first, second = _finite("x", x), _finite("y", y)
    if len(first) != len(second) or len(first) < 4:
        raise ScoreError(
            f"{len(first)} and {len(second)} values; expected as many of each, at least 4"
        )
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        raise ScoreError("a constant has no rank correlation; both sides must vary")
    _require_confidence(confidence)
    ranks = stats.rankdata(first), stats.rankdata(second)
    rho = float(np.clip(np.corrcoef(*ranks)[0, 1], -1.0, 1.0))
    if abs(rho) > 1 - 1e-12:
        rho = math.copysign(1.0, rho)
        return Interval(rho, rho, rho, confidence, "spearman, perfect: no interval")
    error = math.sqrt((1 + rho**2 / 2) / (len(first) - 3))
    half = float(ndtri((1 + confidence) / 2)) * error
    center = math.atanh(rho)
    return Interval(
        rho,
        math.tanh(center - half),
        math.tanh(center + half),
        confidence,
        "spearman, bonett-wright",
    )


def _finite(name: str, values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise ScoreError(f"{name} have shape {array.shape}; expected at least one value, (items,)")
    wrong = np.flatnonzero(~np.isfinite(array))
    if len(wrong):
        raise ScoreError(f"{name}: item {wrong[0]} is {array[wrong[0]]}; expected a finite number")
    return array


def _require_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ScoreError(f"confidence is {confidence}; expected a number strictly between 0 and 1")
