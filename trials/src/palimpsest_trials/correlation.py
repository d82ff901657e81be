"""Spearman's rank correlation with an interval."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri
from scipy.stats import rankdata

from palimpsest.errors import ScoreError
from palimpsest.stats.intervals import CONFIDENCE, Interval


def spearman(x: ArrayLike, y: ArrayLike) -> Interval:
    """Return Spearman's rank correlation of (items,) pairs, with Bonett and Wright's interval.

    Fisher's z with standard error sqrt((1 + r² / 2) / (n - 3)); approximate, and wide or refused
    for few items. Bonett & Wright (2000), Psychometrika 65.
    """
    first, second = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if first.shape != second.shape or first.ndim != 1 or len(first) < 4:
        raise ScoreError(
            f"values of shapes {first.shape} and {second.shape}; expected as many of each, at "
            "least 4"
        )
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        raise ScoreError("a constant has no rank correlation; both sides must vary")
    rho = float(np.clip(np.corrcoef(rankdata(first), rankdata(second))[0, 1], -1.0, 1.0))
    if abs(rho) > 1 - 1e-12:
        rho = math.copysign(1.0, rho)
        return Interval(rho, rho, rho, CONFIDENCE, "spearman, perfect: no interval")
    half = float(ndtri((1 + CONFIDENCE) / 2)) * math.sqrt((1 + rho**2 / 2) / (len(first) - 3))
    center = math.atanh(rho)
    low, high = math.tanh(center - half), math.tanh(center + half)
    return Interval(rho, low, high, CONFIDENCE, "spearman, bonett-wright")
