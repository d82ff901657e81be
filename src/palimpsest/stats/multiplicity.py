"""Many candidates, few facts: Holm's step-down, the certifiability bound, and power.

The bound is a property of the test's lattice, not of the data: with m forget facts, n probes and
K candidates, no candidate can be excluded at any effect size unless C(m + n, m) >= K / alpha.
It promises resolution, not power; power against a stated shift is computed beside it.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from scipy.special import ndtri

from palimpsest.errors import PlanError, ScoreError
from palimpsest.stats.ranktest import EXACT_PAIRS, tail_count


@dataclass(frozen=True, slots=True)
class Holm:
    """Adjusted p-values and decisions, in the order the hypotheses were given."""

    adjusted: tuple[float, ...]
    rejected: tuple[bool, ...]


def holm(p_values: Sequence[float | Fraction], alpha: float) -> Holm:
    """Return Holm's step-down at family-wise level ``alpha``.

    Arithmetic is in fractions, so a p-value lying exactly on its boundary (1/400 for twenty
    candidates at 0.05) is decided as the bound says and not by rounding.
    Holm (1979), Scandinavian Journal of Statistics 6.
    """
    level = exact_level(alpha)
    for index, p in enumerate(p_values):
        if not (math.isfinite(p) and 0 <= p <= 1):
            raise ScoreError(f"p-value {index} is {p}; expected a number from 0 to 1")
    exact = [Fraction(p) for p in p_values]
    order = sorted(range(len(exact)), key=exact.__getitem__)
    adjusted = [Fraction(0)] * len(exact)
    running = Fraction(0)
    for rank, index in enumerate(order):
        running = max(running, min(Fraction(1), (len(exact) - rank) * exact[index]))
        adjusted[index] = running
    return Holm(tuple(float(p) for p in adjusted), tuple(p <= level for p in adjusted))


@dataclass(frozen=True, slots=True)
class Certifiability:
    """Whether a screen of m forget facts against n probes can exclude one of K candidates."""

    forget: int
    probes: int
    candidates: int
    alpha: float
    arrangements: int
    """C(m + n, m)."""
    min_p: float
    """Smallest attainable p-value, 1 / arrangements."""
    required: int
    """Fewest arrangements that suffice: K / alpha, rounded up."""
    certifiable: bool
    min_probes: int
    """Smallest number of probes that suffices for this m, K and alpha."""


def certifiability(forget: int, probes: int, candidates: int, alpha: float) -> Certifiability:
    """Return the finite-sample certifiability bound for one cell."""
    for name, value in (("forget", forget), ("probes", probes), ("candidates", candidates)):
        if value < 1:
            raise PlanError(f"{name} is {value}; expected at least 1")
    required = math.ceil(candidates / exact_level(alpha))
    arrangements = math.comb(forget + probes, forget)
    return Certifiability(
        forget=forget,
        probes=probes,
        candidates=candidates,
        alpha=alpha,
        arrangements=arrangements,
        min_p=1 / arrangements,
        required=required,
        certifiable=arrangements >= required,
        min_probes=minimum_probes(forget, required),
    )


def minimum_probes(forget: int, required: int) -> int:
    """Return the smallest n with C(m + n, m) >= ``required``."""
    enough = 1
    while math.comb(forget + enough, forget) < required:
        enough *= 2
    return bisect_left(range(enough), required, lo=1, key=lambda n: math.comb(forget + n, forget))


def minimum_matched(candidates: int, alpha: float) -> int:
    """Return the smallest m with C(2m, m) >= K / alpha, when probes are matched one to a forget
    fact."""
    required = math.ceil(candidates / exact_level(alpha))
    m = 1
    while math.comb(2 * m, m) < required:
        m += 1
    return m


def screen_power(forget: int, probes: int, candidates: int, alpha: float, shift: float) -> float:
    """Return the chance that the screen excludes a model whose forget deltas are too low.

    Probe deltas are N(0, 1) and forget deltas N(-shift, 1). The level is alpha / K: what a
    candidate faces when it alone must be excluded, hence a lower bound on its power under Holm's
    step-down. Simulated, with a fixed seed so that a plan gives the same answer twice; the
    standard error is at most 0.4 % for up to 200 facts.
    """
    if not (math.isfinite(shift) and shift >= 0):
        raise PlanError(f"the shift is {shift}; expected a finite number of at least 0")
    level = exact_level(alpha) / candidates
    if forget * probes > EXACT_PAIRS:
        deviation = math.sqrt(forget * probes * (forget + probes + 1) / 12)
        critical: float | None = forget * probes / 2 + float(ndtri(float(level))) * deviation - 0.5
    else:
        critical = critical_value(forget, probes, level)
    if critical is None:
        return 0.0
    draws = min(20_000, 4_000_000 // (forget + probes) + 1)
    pooled = np.random.default_rng(20_250).standard_normal((draws, forget + probes))
    pooled[:, :forget] -= shift
    ranks = np.argsort(np.argsort(pooled, axis=1), axis=1)[:, :forget] + 1
    statistics = ranks.sum(axis=1) - forget * (forget + 1) // 2
    return float(np.mean(statistics <= critical))


@lru_cache(maxsize=1024)
def critical_value(m: int, n: int, level: Fraction) -> int | None:
    """Return the largest U, without ties, whose exact p-value is at most ``level``; None if there
    is none."""
    blocks = (1,) * (m + n)
    allowed = math.floor(level * math.comb(m + n, m))
    within = bisect_right(range(m * n + 1), allowed, key=lambda u: tail_count(blocks, m, 2 * u))
    return within - 1 if within else None


def exact_level(alpha: float) -> Fraction:
    """Return the level as the decimal it was written as (0.05 is 1/20, not the nearest float)."""
    if not (math.isfinite(alpha) and 0 < alpha < 1):
        raise PlanError(f"alpha is {alpha}; expected a number strictly between 0 and 1")
    return Fraction(repr(float(alpha)))
