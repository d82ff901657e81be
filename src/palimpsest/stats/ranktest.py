"""The one-sided exact Mann–Whitney test of forget deltas below probe deltas.

Null hypothesis: given the pooled m + n values, every choice of m of them as "forget" is equally
likely. The statistic U counts the pairs (forget, probe) with forget above probe, a tie counting
one half, and the p-value is the chance of a U as small as the one seen or smaller. Ties get the
exact conditional distribution of that statistic, not a normal approximation.

Mann & Whitney (1947), Annals of Mathematical Statistics 18; ties as in Streitberg & Röhmel (1986),
Statistical Software Newsletter 12.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from palimpsest.errors import ScoreError

Method = Literal["exact", "exact-ties", "normal"]

EXACT_PAIRS = 10_000
"""Largest m * n computed exactly (m = n = 100); beyond it the normal approximation is used."""


@dataclass(frozen=True, slots=True)
class RankTest:
    """Result of one test; ``p_value`` is small when forget deltas lie below probe deltas."""

    statistic: float
    """U: pairs with the forget delta above the probe delta, ties counting one half."""
    p_value: float
    method: Method
    """"exact"; "exact-ties": exact given the tie pattern; "normal": tie-corrected normal
    approximation with continuity correction, never below 1 / arrangements."""
    count: int | None
    """Arrangements with a statistic as small or smaller; None under the normal approximation."""
    arrangements: int
    """Number of ways to choose the forget facts among all facts: C(m + n, m)."""

    @property
    def exact_p(self) -> Fraction:
        """The p-value as a fraction (of the float itself under the normal approximation)."""
        if self.count is None:
            return Fraction(self.p_value)
        return Fraction(self.count, self.arrangements)


def rank_test(
    forget_deltas: ArrayLike, probe_deltas: ArrayLike, exact_pairs: int = EXACT_PAIRS
) -> RankTest:
    """Return the test of (m,) forget deltas below (n,) probe deltas.

    exact_pairs: the largest m * n computed exactly.
    """
    forget, probe = (np.asarray(deltas, np.float64) for deltas in (forget_deltas, probe_deltas))
    if forget.ndim != 1 or probe.ndim != 1:
        raise ScoreError(
            f"forget and probe deltas have shapes {forget.shape} and {probe.shape}; "
            "expected one value per fact, (m,) and (n,)"
        )
    return rank_tests(forget[None, :], probe[None, :], exact_pairs)[0]


def rank_tests(
    forget_deltas: ArrayLike, probe_deltas: ArrayLike, exact_pairs: int = EXACT_PAIRS
) -> tuple[RankTest, ...]:
    """Return one test per row of (models, m) forget deltas and (models, n) probe deltas."""
    forget, probe = (np.asarray(deltas, np.float64) for deltas in (forget_deltas, probe_deltas))
    if forget.ndim != 2 or probe.ndim != 2 or len(forget) != len(probe):
        raise ScoreError(
            f"forget and probe deltas have shapes {forget.shape} and {probe.shape}; "
            "expected (models, m) and (models, n)"
        )
    _require_finite("forget", forget)
    _require_finite("probe", probe)

    m, n = forget.shape[1], probe.shape[1]
    arrangements = math.comb(m + n, m)
    doubled_u, ties = _doubled_statistics(forget, probe)
    results = []
    for u, pattern in zip(doubled_u.tolist(), ties):
        blocks = _block_sizes(pattern.tobytes())
        count: int | None = None
        if m * n > exact_pairs:
            method: Method = "normal"
            p = _normal_tail(u / 2, m, n, blocks, arrangements)
        else:
            method = "exact-ties" if len(blocks) < m + n else "exact"
            count = tail_count(blocks, m, u)
            p = count / arrangements
        results.append(RankTest(u / 2, p, method, count, arrangements))
    return tuple(results)


def tail_count(blocks: Sequence[int], m: int, doubled_u: int) -> int:
    """Return how many arrangements have a doubled statistic 2 U of at most ``doubled_u``, exactly.

    ``blocks`` are the sizes of the runs of equal values in the sorted pooled sample (all ones
    without ties).
    """
    total = sum(blocks)
    if 2 * m > total:  # choose the smaller group: the probes' U is m n minus the forget facts' U
        probes = total - m
        above = tail_count(blocks, probes, 2 * m * probes - doubled_u - 1)
        return math.comb(total, m) - above
    # 2 U moves in steps of two when no value ties with an odd number of others.
    step = 2 if all(size % 2 for size in blocks) else 1
    tails = _tail_counts(tuple(blocks), m, step)
    return 0 if doubled_u < 0 else tails[min(doubled_u // step, len(tails) - 1)]


@lru_cache(maxsize=64)
def _tail_counts(blocks: tuple[int, ...], m: int, step: int) -> tuple[int, ...]:
    """Return the number of m-subsets with 2 U of at most i * step, for every i.

    The generating polynomial of each size k of a subset is held at a power of two wide enough that
    no coefficient spills, so multiplying by x**s is a shift and the whole lattice is added at once.
    """
    total = sum(blocks)
    width = (math.comb(total, m).bit_length() + 7) // 8
    rows = [1] + [0] * m
    earlier = 0
    for size in blocks:
        doubled_midrank = 2 * earlier + size + 1
        for seen in range(earlier + 1, earlier + size + 1):
            for k in range(min(m, seen), max(0, m - total + seen - 1), -1):
                # As the k-th chosen value, it lies above (midrank - k) values not chosen. Within
                # a tie this may be negative, but what it undoes was added earlier in the block.
                shift = (doubled_midrank - 2 * k) * 8 * width // step
                rows[k] += rows[k - 1] << shift if shift >= 0 else rows[k - 1] >> -shift
        earlier += size
    points = 2 * m * (total - m) // step + 1
    data = rows[m].to_bytes(points * width, "little")
    pieces = (data[at : at + width] for at in range(0, len(data), width))
    return tuple(accumulate(int.from_bytes(piece, "little") for piece in pieces))


def _doubled_statistics(
    forget: NDArray[np.float64], probe: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return 2 U per row, and per row where the sorted pooled sample starts a new value, (models,
    m+n)."""
    m = forget.shape[1]
    pooled = np.concatenate([forget, probe], axis=1)
    size = pooled.shape[1]
    order = np.argsort(pooled, axis=1, kind="stable")
    values = np.take_along_axis(pooled, order, axis=1)
    starts = np.ones(values.shape, dtype=np.bool_)
    starts[:, 1:] = values[:, 1:] != values[:, :-1]
    ends = np.ones(values.shape, dtype=np.bool_)
    ends[:, :-1] = starts[:, 1:]
    position = np.arange(1, size + 1)
    first = np.maximum.accumulate(np.where(starts, position, 0), axis=1)
    last = np.minimum.accumulate(np.where(ends, position, size)[:, ::-1], axis=1)[:, ::-1]
    doubled_midranks = first + last
    rank_sums = np.where(order < m, doubled_midranks, 0).sum(axis=1)
    return rank_sums - m * (m + 1), starts


@lru_cache(maxsize=1024)
def _block_sizes(starts: bytes) -> tuple[int, ...]:
    """Return the sizes of the runs of equal values, from the flags that mark where each run
    starts."""
    run = accumulate(starts)
    return tuple(len(list(block)) for _, block in groupby(run))


def _normal_tail(u: float, m: int, n: int, blocks: Sequence[int], arrangements: int) -> float:
    """Return the approximate p-value of U, not below what the exact lattice allows."""
    total = m + n
    tie_term = sum(size**3 - size for size in blocks) / (total * (total - 1))
    variance = m * n / 12 * (total + 1 - tie_term)
    if variance <= 0:  # every value equal: one arrangement as far as the ranks can tell
        return 1.0
    p = float(ndtr((u + 0.5 - m * n / 2) / math.sqrt(variance)))
    return min(1.0, max(1 / arrangements, p))


def _require_finite(which: str, deltas: NDArray[np.float64]) -> None:
    if deltas.shape[1] == 0:
        raise ScoreError(f"there are no {which} deltas; the rank test needs at least one of each")
    wrong = np.argwhere(~np.isfinite(deltas))
    if len(wrong):
        row, column = (int(i) for i in wrong[0])
        raise ScoreError(
            f"{which} delta {column} of model {row} is {deltas[row, column]}; every delta must be "
            "a finite number, so score that fact again or leave the model out"
        )
