"""Many candidates, few facts: Holm's step-down, the certifiability bound, and exact power.

The bound is a property of the test's lattice, not of the data: with m forget facts, n probes and
K candidates, no candidate can be excluded at any effect size unless C(m + n, m) >= K / alpha.
It promises resolution, not power; power against a stated shift is computed beside it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from palimpsest.criteria.ranktest import EXACT_PAIRS, tail_count
from palimpsest.errors import PlanError, ScoreError


@dataclass(frozen=True, slots=True)
class Holm:
    """Adjusted p-values and decisions, in the order the hypotheses were given."""

    adjusted: tuple[float, ...]
    rejected: tuple[bool, ...]


def holm(p_values: Sequence[float | Fraction], alpha: float) -> Holm:
    """Holm's step-down at family-wise level ``alpha``.

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
    """The finite-sample certifiability bound for one cell."""
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
    """Smallest n with C(m + n, m) >= ``required``."""
    high = 1
    while math.comb(forget + high, forget) < required:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if math.comb(forget + middle, forget) >= required:
            high = middle
        else:
            low = middle
    return high


def minimum_matched(candidates: int, alpha: float) -> int:
    """Smallest m with C(2m, m) >= K / alpha, when probes are matched one to a forget fact."""
    required = math.ceil(candidates / exact_level(alpha))
    m = 1
    while math.comb(2 * m, m) < required:
        m += 1
    return m


@dataclass(frozen=True, slots=True)
class Power:
    """Chance that the screen excludes a model whose forget deltas lie ``shift`` sd too low."""

    power: float
    shift: float
    level: float
    """Level of the single test: alpha / K is Holm's first, strictest step."""
    critical: int | None
    """Largest U that rejects; None when no U does."""
    method: Literal["exact", "normal"]


EXACT_POWER_WORK = 50_000_000
"""Most integrated values for an exact power (about a second); beyond it U is taken as normal."""

PANEL_ORDER = 12
"""Nodes per panel of the integration."""


def screen_power(forget: int, probes: int, candidates: int, alpha: float, shift: float) -> Power:
    """Power of the screen when probe deltas are N(0, 1) and forget deltas N(-shift, 1).

    The stated level is alpha / K: what a candidate faces when it alone must be excluded, hence a
    lower bound on its power under Holm's step-down.
    """
    if not (math.isfinite(shift) and shift >= 0):
        raise PlanError(f"the shift is {shift}; expected a finite number of at least 0")
    level = exact_level(alpha) / candidates
    if forget * probes > EXACT_PAIRS:
        return Power(
            _normal_power(forget, probes, float(level), shift), shift, float(level), None, "normal"
        )
    critical = critical_value(forget, probes, level)
    if critical is None:
        return Power(0.0, shift, float(level), None, "exact")
    nodes = _panels(-9.0 - shift, 9.0, forget + probes)[0].size
    if (forget + 1) * (probes + 1) * (critical + 1) * nodes > EXACT_POWER_WORK:
        mean, deviation = _shifted_moments(forget, probes, shift)
        power = float(ndtr((critical + 0.5 - mean) / deviation))
        return Power(power, shift, float(level), critical, "normal")
    power = _shifted_tail(forget, probes, critical, shift)
    return Power(power, shift, float(level), critical, "exact")


@lru_cache(maxsize=1024)
def critical_value(m: int, n: int, level: Fraction) -> int | None:
    """Largest U, without ties, whose exact p-value is at most ``level``; None if there is none."""
    blocks = (1,) * (m + n)
    allowed = level * math.comb(m + n, m)
    if allowed < 1:
        return None
    low, high = 0, m * n  # U = 0 rejects, U = m n does not unless the level is 1
    if level >= 1:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if tail_count(blocks, m, 2 * middle) <= allowed:
            low = middle
        else:
            high = middle
    return low


def _shifted_tail(m: int, n: int, critical: int, shift: float) -> float:
    """P(U <= critical) for normal probes and normal forget deltas lowered by ``shift``.

    Let q[a, b, u](x) be the chance that a given forget and b given probe deltas all lie below x
    and have statistic u. Its derivative follows from which value is the largest,

        q' = a f(x) q[a - 1, b, u - b] + b g(x) q[a, b - 1, u],

    and each q is integrated panel by panel, so that small values keep their relative accuracy:
    an absolute error would be multiplied by up to C(m + n, m) on the way.
    """
    nodes, within, across = _panels(-9.0 - shift, 9.0, m + n)
    f, g = _density(nodes + shift), _density(nodes)
    above: list[NDArray[np.float64]] = []
    for a in range(m + 1):
        row: list[NDArray[np.float64]] = []
        for b in range(n + 1):
            q = np.zeros((critical + 1, *nodes.shape))
            if a == b == 0:
                q[0] = 1.0
            else:
                if a and b <= critical:
                    q[b:] += a * f * above[b][: critical + 1 - b]
                if b:
                    q += b * g * row[b - 1]
                if a == m and b == n:
                    return float(min(1.0, (q @ across).sum()))
                whole = np.cumsum(q @ across, axis=-1)
                q = q @ within
                q[:, 1:, :] += whole[:, :-1, None]
            row.append(q)
        above = row
    raise AssertionError("no forget facts and no probes")


@lru_cache(maxsize=32)
def _panels(
    low: float, high: float, values: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Gauss nodes (panels, order) on [low, high]; the (order, order) matrix that integrates from
    a panel's left end to each of its nodes; the (order,) weights over a whole panel."""
    width = min(0.5, 16 / values)  # the q of many values rise steeply
    edges = np.linspace(low, high, math.ceil((high - low) / width) + 1)
    half = (edges[1] - edges[0]) / 2
    unit, weights = np.polynomial.legendre.leggauss(PANEL_ORDER)
    basis = np.polynomial.legendre.legvander(unit, PANEL_ORDER - 1)
    integrals = np.polynomial.legendre.legint(np.eye(PANEL_ORDER), lbnd=-1.0, axis=0)
    cumulative = np.polynomial.legendre.legvander(unit, PANEL_ORDER) @ integrals
    within = np.linalg.solve(basis.T, cumulative.T) * half
    return (edges[:-1] + half)[:, None] + half * unit, within, weights * half


def _density(x: NDArray[np.float64]) -> NDArray[np.float64]:
    density: NDArray[np.float64] = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    return density


def _shifted_moments(m: int, n: int, shift: float) -> tuple[float, float]:
    """Mean and standard deviation of U under the shift, exactly for normal deltas."""
    nodes, _, weights = _panels(-9.0 - shift, 9.0, 3)
    one = float(ndtr(-shift / math.sqrt(2)))  # forget above probe
    two_forget = float((_density(nodes) * ndtr(-nodes - shift) ** 2 @ weights).sum())
    two_probes = float((_density(nodes + shift) * ndtr(nodes) ** 2 @ weights).sum())
    variance = (
        m
        * n
        * (one * (1 - one) + (m - 1) * (two_forget - one**2) + (n - 1) * (two_probes - one**2))
    )
    return m * n * one, math.sqrt(variance)


def _normal_power(m: int, n: int, level: float, shift: float) -> float:
    null_deviation = math.sqrt(m * n * (m + n + 1) / 12)
    critical = m * n / 2 + float(ndtri(level)) * null_deviation - 0.5
    mean, deviation = _shifted_moments(m, n, shift)
    return float(ndtr((critical + 0.5 - mean) / deviation))


def exact_level(alpha: float) -> Fraction:
    """The level as the decimal it was written as (0.05 is 1/20, not the nearest float)."""
    if not (math.isfinite(alpha) and 0 < alpha < 1):
        raise PlanError(f"alpha is {alpha}; expected a number strictly between 0 and 1")
    return Fraction(repr(float(alpha)))
