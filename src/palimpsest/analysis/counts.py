"""Counts and averages over cells, with their bounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from palimpsest.analysis.table import Estimate, Row, Share
from palimpsest.criteria.intervals import (
    clopper_pearson,
    clopper_pearson_clustered,
    cluster_bootstrap,
)
from palimpsest.criteria.rules import Rules


@dataclass(frozen=True, slots=True)
class Bounded:
    """So many of so many, with exact one-sided upper bounds."""

    count: int
    total: int
    upper: float | None
    """Clopper–Pearson over cells; None without trials."""
    upper_clustered: float | None
    """The same with one trial per architecture, which counts when any of its cells does."""

    @property
    def share(self) -> Share | None:
        """The count as a cell of a table; None without trials."""
        return Share(self.count, self.total) if self.total else None

    def bounds(self, label: str) -> Row:
        """Return the two bounds as columns of a table."""
        return {
            f"{label}, upper bound": self.upper,
            f"{label}, upper bound by architecture": self.upper_clustered,
        }


def bounded(events: Sequence[bool], clusters: Sequence[str], rules: Rules) -> Bounded:
    """Return the count with upper bounds, also clustered by architecture."""
    if not events:
        return Bounded(0, 0, None, None)
    count = sum(events)
    upper = clopper_pearson(count, len(events), rules.confidence, "upper").high
    clustered = clopper_pearson_clustered(events, clusters, rules.confidence, "upper").high
    return Bounded(count, len(events), upper, clustered)


def averaged(
    values: Sequence[float],
    clusters: Sequence[str],
    rules: Rules,
    statistic: Literal["mean", "median"] = "mean",
) -> Estimate | None:
    """Return the average with the limits of a cluster bootstrap; without limits from fewer than
    two clusters, and None without values."""
    if not len(values):
        return None
    if len(set(clusters)) < 2:
        average = np.mean if statistic == "mean" else np.median
        return Estimate(float(average(values)), None, None)
    return Estimate.of(cluster_bootstrap(values, clusters, rules, statistic))


def spread(values: Sequence[float]) -> Estimate | None:
    """Return median and range as an estimate; None without values."""
    if not len(values):
        return None
    return Estimate(float(np.median(values)), float(min(values)), float(max(values)))
