"""Replication noise of the reference: delta_f and epsilon_f of each family, with their uncertainty.

Independent retrainings of the reference differ; the tolerances say by how much. A family's come
from its replicated cells (one, as the paper does, or more): delta_f is the percentile of the gaps
of all of them together, the spreads epsilon_f are averaged, and the falls of re-acquisition give
one pooled standard deviation. With one replicated cell this is exactly ``measure_tolerances``.

This is the paper's edition, which had three draws: of a cell with more, the first three are used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from palimpsest.analysis.table import Estimate, Row, Table, number, row
from palimpsest.criteria.bars import Tolerances, measure_tolerances
from palimpsest.criteria.intervals import bootstrap_interval, draw_gaps, replication_gap
from palimpsest.criteria.items import Columns, ItemTable, Values
from palimpsest.criteria.measures import TRAINED_POOLS, CellMeasures
from palimpsest.criteria.rules import Rules
from palimpsest.errors import ScoreError

DRAWS = 3
"""References of a cell that the paper's tolerances are taken from."""


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """What the reference draws of one cell scored, per fact: all that tolerances are made of."""

    cell: str
    tolerances: Tolerances
    deltas: Values
    """(draws, facts) held-out deltas of the forget facts."""
    retain_nlls: Values
    """(draws, retain facts) cloze NLL."""
    residual_retain: tuple[Values, Values]
    """(draws, retain facts) sums of KL, and (retain facts,) tokens, after re-acquisition."""
    residual_general: tuple[Values, Values]
    """The same over pieces of general text."""


@dataclass(frozen=True, slots=True, eq=False)
class Replication:
    """The tolerances of one family and the cells they were measured in."""

    family: str
    tolerances: Tolerances
    cells: tuple[Draws, ...]


def read_draws(cell: str, items: Columns, measures: CellMeasures, rules: Rules) -> Draws:
    """Return what the draws of a replicated cell scored."""
    names = measures.references[:DRAWS]
    tolerances = measure_tolerances(measures, rules, names)
    mine = {column: values[np.isin(items["model"], names)] for column, values in items.items()}
    retain = ItemTable(mine).fact_nlls("retain", "cloze")
    return Draws(
        cell,
        tolerances,
        np.stack([measures[name].forget_deltas for name in names]),
        np.stack([retain.by_model[name] for name in names]),
        _sums(mine, names, "retain", TRAINED_POOLS),
        _sums(mine, names, "general", ("general",)),
    )


def pool_tolerances(family: str, cells: Sequence[Draws], rules: Rules) -> Replication:
    """Return the family's tolerances from all of its replicated cells."""
    if not cells:
        raise ScoreError(f"family {family} has no replicated cell to take tolerances from")
    if len(cells) == 1:
        return Replication(family, cells[0].tolerances, tuple(cells))
    each = [draws.tolerances for draws in cells]
    gaps = np.concatenate([draw_gaps(draws.deltas).ravel() for draws in cells])
    freedom = np.array([noise.draws - 1 for noise in each])
    deviations = [noise.fall_deviation for noise in each if noise.fall_deviation is not None]
    pooled = None
    if len(deviations) == len(each):
        pooled = float(np.sqrt(np.sum(freedom * np.square(deviations)) / freedom.sum()))
    tolerances = Tolerances(
        delta_f=float(np.percentile(gaps, rules.tolerance_percentile)),
        epsilon_retain=float(np.mean([noise.epsilon_retain for noise in each])),
        epsilon_residual=float(np.mean([noise.epsilon_residual for noise in each])),
        fall_deviation=pooled,
        # Pooled variance has the summed degrees of freedom, and the veto reads draws - 1.
        draws=int(freedom.sum()) + 1,
    )
    return Replication(family, tolerances, tuple(cells))


def replication_table(replications: Mapping[str, Replication], rules: Rules) -> Table:
    """Return delta_f and epsilon_f of each family with their uncertainty."""
    rows: list[Row] = []
    for family, replication in replications.items():
        estimates = tolerance_intervals(replication, rules)
        without = [
            replication_gap(np.delete(draws.deltas, left, axis=0), rules.tolerance_percentile)
            for draws in replication.cells
            if len(draws.deltas) > 2
            for left in range(len(draws.deltas))
        ] or [replication.tolerances.delta_f]
        left_out = Estimate(replication.tolerances.delta_f, min(without), max(without))
        count = sum(draws.tolerances.draws for draws in replication.cells)
        cells = ", ".join(draws.cell for draws in replication.cells)
        rows.append(
            row("family|replicated cells|draws", family, cells, count)
            | row("delta_f, bootstrap|delta_f, one draw left out", estimates[0], left_out)
            | row("epsilon_f retain|epsilon_f residual", *estimates[1:])
            | row("deviation of first-chunk falls", replication.tolerances.fall_deviation)
        )
    deltas = [replication.tolerances.delta_f for replication in replications.values()]
    reading = "No cell has several reference draws, so there are no tolerances."
    if deltas:
        reading = (
            f"Retraining moves held-out deltas by {number(min(deltas))} to {number(max(deltas))} "
            f"nats across {len(deltas)} families (median {number(float(np.median(deltas)))}), at "
            f"percentile {rules.tolerance_percentile:g}."
        )
    return Table.of("replication", "Replication noise", reading, rows)


def tolerance_intervals(replication: Replication, rules: Rules) -> tuple[Estimate, ...]:
    """Return delta_f, epsilon_f(retain) and epsilon_f(residual) with their limits.

    Bootstrap over draws and facts together: a resample keeps the draws that were drawn at least
    once (at least two of them) and resamples facts, retain facts and general pieces. Fewer draws
    spread less, so the limits of a spread lie low; that is the honest sign of few draws.
    """
    generator = np.random.default_rng(rules.bootstrap_seed)
    size = rules.bootstrap_resamples

    def multiplicities(count: int) -> Values:
        weights = generator.multinomial(count, np.full(count, 1 / count), size=size)
        return weights.astype(np.float64)

    gaps, retain, residual = [], [], []
    for draws in replication.cells:
        kept = _kept_draws(generator, len(draws.deltas), size)
        gaps.append(_resampled_gaps(generator, draws.deltas, kept))
        facts = multiplicities(draws.retain_nlls.shape[1])
        retain.append(_spreads(draws.retain_nlls @ facts.T / facts.sum(axis=1), kept))
        parts = []
        for sums, tokens in (draws.residual_retain, draws.residual_general):
            weights = multiplicities(len(tokens))
            parts.append((sums @ weights.T) / (weights @ tokens))
        residual.append(_spreads(parts[0] + parts[1], kept))
    resampled = {
        "delta_f": _percentiles(np.concatenate(gaps, axis=1), rules.tolerance_percentile),
        "epsilon_retain": np.mean(retain, axis=0),
        "epsilon_residual": np.mean(residual, axis=0),
    }
    intervals = []
    for name, values in resampled.items():
        estimate = getattr(replication.tolerances, name)
        limits = bootstrap_interval(estimate, values, rules, "bootstrap over draws and facts")
        intervals.append(Estimate(estimate, limits.low, limits.high))
    return tuple(intervals)


def median_delta(by_family: Mapping[str, Tolerances]) -> float | None:
    """Return the median of delta_f over families: the paper's delta_equiv; None without any
    family."""
    values = [tolerances.delta_f for tolerances in by_family.values()]
    return float(np.median(values)) if values else None


def _sums(
    items: Columns, models: Sequence[str], which: str, pools: tuple[str, ...]
) -> tuple[Values, Values]:
    """Return the KL to injected after re-acquisition, (models, facts) sums, and the (facts,)
    tokens."""
    wanted = (items["stage"] == "reacquired") & (items["set"] == which)
    wanted &= np.isin(items["pool"], pools)
    facts = {fact: place for place, fact in enumerate(dict.fromkeys(items["fact"][wanted]))}
    sums = np.zeros((len(models), len(facts)))
    tokens = np.zeros((len(models), len(facts)))
    for draw, name in enumerate(models):
        mine = np.flatnonzero(wanted & (items["model"] == name))
        places = [facts[fact] for fact in items["fact"][mine]]
        np.add.at(sums[draw], places, items["kl_injected"][mine])
        np.add.at(tokens[draw], places, items["tokens"][mine])
    return sums, tokens[0]


def _kept_draws(generator: np.random.Generator, draws: int, size: int) -> NDArray[np.bool_]:
    """Return which draws (size, draws) each resample keeps: those drawn at least once, two or
    more."""
    kept = np.zeros((size, draws), dtype=np.bool_)
    left = np.arange(size)
    while len(left):
        chosen = generator.integers(draws, size=(len(left), draws))
        kept[left] = (chosen[:, :, None] == np.arange(draws)).any(axis=1)
        left = left[kept[left].sum(axis=1) < 2]
    return kept


def _resampled_gaps(
    generator: np.random.Generator, deltas: Values, kept: NDArray[np.bool_]
) -> Values:
    """Return the gaps (size, pairs * facts) of resampled facts; pairs with a draw left out are
    NaN."""
    size, count = len(kept), deltas.shape[1]
    facts = generator.integers(count, size=(size, count))
    both = [first & second for first, second in combinations(kept.T, 2)]
    gaps = [np.where(k[:, None], gap[facts], np.nan) for k, gap in zip(both, draw_gaps(deltas))]
    return np.concatenate(gaps, axis=1)


def _percentiles(values: Values, percentile: float) -> Values:
    """Return the percentile of each row of (size, values), interpolated, leaving out NaN."""
    ordered = np.sort(values, axis=1)  # NaN last
    last = np.sum(np.isfinite(ordered), axis=1) - 1
    place = percentile / 100 * last
    below = np.floor(place).astype(np.int64)
    rows = np.arange(len(ordered))
    low, high = ordered[rows, below], ordered[rows, np.minimum(below + 1, last)]
    percentiles: Values = low + (place - below) * (high - low)
    return percentiles


def _spreads(values: Values, kept: NDArray[np.bool_]) -> Values:
    """Return the largest minus smallest of (draws, size) values over the draws kept, (size,)."""
    high = np.where(kept.T, values, -np.inf).max(axis=0)
    low = np.where(kept.T, values, np.inf).min(axis=0)
    spreads: Values = high - low
    return spreads
