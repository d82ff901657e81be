"""The trained-probe criterion against held-out truth, and the diagnostic it comes from.

A candidate is rated adequate when its oracle-KL on trained probes is at most a fraction of the
injected model's. What such candidates still know is read on the held-out pool, per fact, against
three statements of the never-learned level:

- ``base``: NLL_C(F_i) - NLL_base(F_i). Base never learned F; this is the base-anchored delta of the
  paper and the one set beside its -2.82 nats;
- ``probes``: the same minus the median of the candidate's own probe deltas, which takes out drift
  common to everything the candidate was never taught;
- ``reference``: NLL_C(F_i) - NLL_reference(F_i), the matched retraining's level.
"""

from dataclasses import dataclass

import numpy as np

from palimpsest.analysis.recalibration import bootstrap
from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.criteria.bars import rated_adequate
from palimpsest.criteria.intervals import Interval

LEVELS = ("base", "probes", "reference")
MATCHED_WITHIN = 1.0
"""Nats of held-out forget NLL within which two candidates count as equally forgetting."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out scores of adequate candidates' forget facts against one never-learned level."""

    level: str
    mean: float
    interval: Interval | None
    """Cluster bootstrap by cell; None with fewer than two cells."""
    median: float
    facts: int
    candidates: int
    cells: int


@dataclass(frozen=True, slots=True)
class MethodHeldOut:
    """What the held-out screen says about one method's candidates: the dichotomy."""

    method: str
    candidates: int
    adequate: int
    excluded: int
    median_gap: float
    """Median over candidates of median forget delta minus median probe delta."""
    median_oracle_kl: float
    median_retain_rise: float
    """Median over candidates of retain NLL minus the injected model's."""


@dataclass(frozen=True, slots=True)
class Point:
    """One candidate of the diagnostic figure."""

    cell: str
    family: str
    candidate: str
    method: str
    kind: str
    """What its method does: restores, suppresses or other."""
    oracle_kl: float
    forget_nll: float
    retain_nll: float
    reference_forget_nll: float
    reference_retain_nll: float


@dataclass(frozen=True, slots=True)
class Matched:
    """Restoration against suppression at matched forgetting, within cells."""

    pairs: int
    cells: int
    restoration: float | None
    """Median oracle-KL over pairs."""
    suppression: float | None
    closer: int
    """Pairs in which restoration has the smaller oracle-KL."""


def adequate(results: RunResults) -> tuple[tuple[CellResult, str], ...]:
    """Return the candidates that the trained-probe criterion rates adequate."""
    return tuple(
        (cell, name)
        for cell, name in results.candidates()
        if rated_adequate(cell.evaluation[name], cell.evaluation.injected, results.rules)
    )


def held_out(results: RunResults, level: str = "base") -> HeldOut | None:
    """Return what adequate candidates score on held-out forget facts; None when none is
    adequate."""
    values: list[float] = []
    clusters: list[str] = []
    rated = adequate(results)
    for cell, name in rated:
        model = cell.evaluation[name]
        deltas = model.forget_deltas
        if level == "probes":
            deltas = deltas - np.median(model.probe_deltas)
        elif level == "reference":
            deltas = deltas - cell.evaluation["reference"].forget_deltas
        values += deltas.tolist()
        clusters += [cell.id] * len(deltas)
    if not values:
        return None
    return HeldOut(
        level,
        float(np.mean(values)),
        bootstrap(values, clusters, results.rules),
        float(np.median(values)),
        len(values),
        len(rated),
        len(set(clusters)),
    )


def by_method(results: RunResults) -> tuple[MethodHeldOut, ...]:
    """Return what the screen excludes of each method, and what else it does: the dichotomy."""
    rated = {(cell.id, name) for cell, name in adequate(results)}
    rows = []
    for method in results.methods:
        mine = [(c, n) for c, n in results.candidates() if c.methods[n] == method]
        models = [cell.evaluation[name] for cell, name in mine]
        before = [cell.evaluation.injected.need("retain_nll") for cell, _ in mine]
        medians = np.median(
            [
                (model.median_gap, model.need("oracle_kl"), model.need("retain_nll") - injected)
                for model, injected in zip(models, before)
            ],
            axis=0,
        )
        adequate_count = sum((cell.id, name) in rated for cell, name in mine)
        excluded = sum(not cell.survives(name) for cell, name in mine)
        rows.append(MethodHeldOut(method, len(mine), adequate_count, excluded, *medians.tolist()))
    return tuple(rows)


def diagnostic(results: RunResults) -> tuple[Point, ...]:
    """Return every candidate's oracle-KL, held-out forget NLL and retain NLL."""
    points = []
    for cell, name in results.candidates():
        model, reference = cell.evaluation[name], cell.evaluation["reference"]
        labels = (cell.id, cell.family, name, cell.methods[name], cell.kind(name))
        mine = (model.need("oracle_kl"), model.forget_nll, model.need("retain_nll"))
        theirs = (reference.forget_nll, reference.need("retain_nll"))
        points.append(Point(*labels, *mine, *theirs))
    return tuple(points)


def matched_forgetting(points: tuple[Point, ...]) -> Matched:
    """Return restoration against suppression over all pairs of a cell that forget alike."""
    pairs = [
        (point.cell, point.oracle_kl, other.oracle_kl)
        for point in points
        if point.kind == "restores"
        for other in points
        if other.kind == "suppresses"
        and other.cell == point.cell
        and abs(other.forget_nll - point.forget_nll) <= MATCHED_WITHIN
    ]
    if not pairs:
        return Matched(0, 0, None, None, 0)
    cells, restoration, suppression = zip(*pairs)
    closer = sum(a < b for a, b in zip(restoration, suppression))
    medians = float(np.median(restoration)), float(np.median(suppression))
    return Matched(len(pairs), len(set(cells)), *medians, closer)
