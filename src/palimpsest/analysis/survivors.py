"""What surviving the screen means: how far survivors lie from never-learned, and how many are
equivalent to it. Not being excluded is not equivalence."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from palimpsest.analysis.recalibration import bootstrap
from palimpsest.analysis.replication import median_delta
from palimpsest.analysis.results import RunResults
from palimpsest.criteria.intervals import Interval, tost


@dataclass(frozen=True, slots=True)
class EquivalentShare:
    """Survivors equivalent to never-learned at a margin."""

    margin: str
    """How the margin was chosen."""
    smallest: float
    largest: float
    """The margins used, in nats; equal when one serves all."""
    equivalent: int
    total: int
    share: Interval | None
    """Cluster bootstrap by cell; None with fewer than two cells."""


@dataclass(frozen=True, slots=True)
class Survivors:
    """The screen's survivors over a run."""

    candidates: int
    survivors: int
    cells: int
    """Cells with a survivor."""
    median_gap: float | None
    """Median over survivors of |median forget delta - median probe delta|."""
    gap: Interval | None
    """The same with a cluster bootstrap by cell."""
    shares: tuple[EquivalentShare, ...]


@lru_cache(maxsize=1)
def survivors(results: RunResults) -> Survivors:
    """Return the gap and equivalence of every survivor, at the median delta_f and each family's
    own."""
    alive = [(cell, name) for cell in results.cells for name in cell.survivors]
    gaps = [abs(cell.evaluation[name].median_gap) for cell, name in alive]
    clusters = [cell.id for cell, _ in alive]
    shares = []
    common = median_delta(results.tolerances)
    if common is not None:
        everywhere = dict.fromkeys(results.families, common)
        shares.append(_share(results, "median delta_f", everywhere))
        own = {family: noise.delta_f for family, noise in results.tolerances.items()}
        shares.append(_share(results, "family's delta_f", own))
    return Survivors(
        sum(len(cell.candidates) for cell in results.cells),
        len(alive),
        len(set(clusters)),
        float(np.median(gaps)) if gaps else None,
        bootstrap(gaps, clusters, results.rules, "median"),
        tuple(shares),
    )


def _share(results: RunResults, title: str, margins: Mapping[str, float]) -> EquivalentShare:
    rules = results.rules
    outcomes: list[float] = []
    clusters: list[str] = []
    for cell in results.cells:
        for name in cell.survivors if cell.family in margins else ():
            model = cell.evaluation[name]
            p_value = tost(model.forget_deltas, model.probe_deltas, margins[cell.family])
            outcomes.append(float(p_value <= rules.equivalence_alpha))
            clusters.append(cell.id)
    return EquivalentShare(
        title,
        min(margins.values()),
        max(margins.values()),
        int(sum(outcomes)),
        len(outcomes),
        bootstrap(outcomes, clusters, rules),
    )
