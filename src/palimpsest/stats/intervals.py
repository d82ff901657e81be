"""Intervals and equivalence: Clopper–Pearson, cluster bootstrap, TOST."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from palimpsest.errors import ScoreError
from palimpsest.stats.ranktest import rank_test

Side = Literal["two-sided", "upper", "lower"]

CONFIDENCE = 0.95
"""Confidence level of every reported interval."""
RESAMPLES = 10_000
"""Resamples of a bootstrap."""
SEED = 20_250
"""Of the bootstrap, so that a report gives the same intervals again."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence limits."""

    estimate: float
    low: float
    high: float
    confidence: float
    method: str


def clopper_pearson(
    successes: int, trials: int, confidence: float = CONFIDENCE, side: Side = "two-sided"
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
    if not 0 < confidence < 1:
        raise ScoreError(f"confidence is {confidence}; expected a number between 0 and 1")
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
    confidence: float = CONFIDENCE,
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
    return replace(interval, method=interval.method + ", clustered")


def cluster_bootstrap(
    values: ArrayLike,
    clusters: Sequence[Hashable],
    statistic: Literal["mean", "median"] = "mean",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Interval:
    """Return the percentile bootstrap limits of a statistic of (items,) values, resampling whole
    clusters.

    Field & Welsh (2007), JRSS B 69.
    """
    data = _finite("values", values)
    if len(data) != len(clusters):
        raise ScoreError(f"{len(data)} values for {len(clusters)} cluster labels")
    labels: dict[Hashable, int] = {}
    member = np.array([labels.setdefault(label, len(labels)) for label in clusters])
    count = len(labels)
    if count < 2:
        raise ScoreError(f"a cluster bootstrap needs at least 2 clusters; found {count}")
    weights = bootstrap_weights(count, resamples, seed)
    if statistic == "mean":
        sums = np.bincount(member, weights=data, minlength=count)
        replicates = (weights @ sums) / (weights @ np.bincount(member, minlength=count))
    else:
        # Positions of the two middle values of each resample, by how often every value is in it.
        order = np.argsort(data, kind="stable")
        upto = weights[:, member[order]].cumsum(axis=1)
        middle = [(upto > (upto[:, -1:] - odd) // 2).argmax(axis=1) for odd in (1, 0)]
        replicates = data[order][middle].sum(axis=0) / 2
    return bootstrap_interval(replicates)


@lru_cache(maxsize=16)
def bootstrap_weights(
    count: int, resamples: int = RESAMPLES, seed: int = SEED
) -> NDArray[np.int64]:
    """Return how often each of ``count`` clusters is drawn (1 + resamples, count); the first row
    is the sample itself."""
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), resamples)
    return np.concatenate([np.ones((1, count), dtype=np.int64), drawn])


def bootstrap_interval(replicates: NDArray[np.float64]) -> Interval:
    """Return the percentile limits of a bootstrap's replicates (1 + resamples,), of which the
    first is the estimate."""
    low, high = np.quantile(replicates[1:], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    estimate = float(replicates[0])
    return Interval(estimate, float(low), float(high), CONFIDENCE, "cluster bootstrap, percentile")


def tost(forget_deltas: ArrayLike, probe_deltas: ArrayLike, margin: float) -> float:
    """Return the p-value of two one-sided tests that (m,) forget deltas lie within ``margin`` nats
    of (n,) probe deltas; null: they differ by the margin or more.

    Exact rank tests with the probes shifted by each margin, valid for any common shape.
    Schuirmann (1987), Journal of Pharmacokinetics and Biopharmaceutics 15; Wellek (2010), Testing
    Statistical Hypotheses of Equivalence and Noninferiority, chapter 6.
    """
    forget = _finite("forget deltas", forget_deltas)
    probe = _finite("probe deltas", probe_deltas)
    if not (math.isfinite(margin) and margin > 0):
        raise ScoreError(f"the equivalence margin is {margin}; expected a positive number of nats")
    below = rank_test(probe - margin, forget).p_value
    return max(below, rank_test(forget, probe + margin).p_value)


def _finite(name: str, values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise ScoreError(f"{name} have shape {array.shape}; expected at least one value, (items,)")
    wrong = np.flatnonzero(~np.isfinite(array))
    if len(wrong):
        raise ScoreError(f"{name}: item {wrong[0]} is {array[wrong[0]]}; expected a finite number")
    return array
