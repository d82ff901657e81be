"""The paper's edition of the certificate over a run: its recalibrated bar, counted and never used.

Four versions of the bar are counted side by side: the paper's, which has no relearn veto, and the
one with it, each at the family's own tolerance and at the smallest delta_f of all families (the
sensitivity row). Cells of a family without replicated references have no such bar and are counted
apart, never as abstentions. The verdicts of a run are those of ``palimpsest.verdict``.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.criteria.bars import DamageBar, Tolerances, absolute_bar, damage_bar
from palimpsest.criteria.intervals import (
    Interval,
    clopper_pearson,
    clopper_pearson_clustered,
    cluster_bootstrap,
)
from palimpsest.criteria.rules import Rules
from palimpsest.criteria.screen import screen_alone

PaperReason = Literal["underpowered", "not_identifiable", "all_excluded", "no_candidate_clears_bar"]


# -- counts and means over cells, with bounds ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bounded:
    """So many of so many, with exact one-sided upper bounds."""

    count: int
    total: int
    upper: float | None
    """Clopper–Pearson over cells; None without trials."""
    upper_clustered: float | None
    """The same with one trial per architecture, which counts when any of its cells does."""


def bounded(events: Sequence[bool], clusters: Sequence[str], rules: Rules) -> Bounded:
    """Return the count with upper bounds, also clustered by architecture."""
    if not events:
        return Bounded(0, 0, None, None)
    count = sum(events)
    upper = clopper_pearson(count, len(events), rules.confidence, "upper").high
    clustered = clopper_pearson_clustered(events, clusters, rules.confidence, "upper").high
    return Bounded(count, len(events), upper, clustered)


def bootstrap(
    values: Sequence[float],
    clusters: Sequence[str],
    rules: Rules,
    statistic: Literal["mean", "median"] = "mean",
) -> Interval | None:
    """Return the cluster bootstrap; None with fewer than two clusters."""
    if len(set(clusters)) < 2:
        return None
    return cluster_bootstrap(values, clusters, rules, statistic)


# -- what each criterion would pick; ties go to the candidate listed first -------------------------


def residual_pick(cell: CellResult, names: Sequence[str] | None = None) -> str | None:
    """Return the smallest residual among survivors (or ``names``); None if there are none."""
    among = cell.survivors if names is None else names
    return min(among, key=lambda name: cell.evaluation[name].need("residual"), default=None)


def nearest_pick(bars: Mapping[str, DamageBar]) -> str | None:
    """Return the smallest worst axis among candidates with a bar; None if there are none."""
    return min(bars, key=lambda name: bars[name].worst_axis, default=None)


def absolute_pick(cell: CellResult, rules: Rules) -> str | None:
    """Return the smallest residual among candidates clearing the absolute bar; where none clears
    it, among screen survivors, which is the oracle-free selector without a bar."""
    clearing = [
        name
        for name in cell.candidates
        if absolute_bar(cell.evaluation[name], cell.survives(name), rules).clears
    ]
    return residual_pick(cell, clearing or cell.survivors)


def trained_probe_pick(cell: CellResult) -> str | None:
    """Return the smallest oracle-KL of all candidates, screened or not."""
    measures = cell.evaluation
    return min(cell.candidates, key=lambda name: measures[name].need("oracle_kl"), default=None)


# -- the bar over all cells ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class PaperVerdict:
    """What the paper's bar says of one cell: its pick, or why there is none."""

    candidate: str | None
    reason: PaperReason | None
    bars: Mapping[str, DamageBar]
    """By candidate."""


def paper_verdict(cell: CellResult, rules: Rules, tolerances: Tolerances) -> PaperVerdict:
    """Return the recalibrated bar's verdict on a cell with candidates."""
    measures = cell.evaluation
    bars = {
        name: damage_bar(measures, name, cell.survives(name), tolerances, rules)
        for name in cell.candidates
    }
    pick = nearest_pick({name: bar for name, bar in bars.items() if bar.clears})
    reason: PaperReason | None = None if pick else "no_candidate_clears_bar"
    assert cell.screen is not None
    if not cell.screen.bound.certifiable:
        reason = "underpowered"
    elif not cell.survivors:
        excluded = screen_alone(measures[measures.references[0]], rules).excluded
        reason = "not_identifiable" if excluded else "all_excluded"
    elif not screen_alone(measures.injected, rules).excluded:
        reason = "not_identifiable"
    return PaperVerdict(None if reason else pick, reason, bars)


@dataclass(frozen=True, slots=True, eq=False)
class Certification:
    """One version of the bar over all cells that have tolerances."""

    title: str
    rules: Rules
    tolerances: Mapping[str, Tolerances]
    verdicts: Mapping[str, PaperVerdict]
    """By cell id."""
    without_tolerances: tuple[str, ...]
    """Cells that could not be judged: their family has no replicated reference."""
    certified: tuple[tuple[CellResult, str], ...]
    """Every candidate that clears the bar in a cell that has a pick."""
    candidates: int

    @property
    def cells(self) -> int:
        return len(self.verdicts)

    @property
    def certified_cells(self) -> tuple[str, ...]:
        return tuple(cell for cell, verdict in self.verdicts.items() if verdict.candidate)

    @property
    def abstentions(self) -> dict[str, int]:
        """Number of abstaining cells by reason."""
        reasons = [verdict.reason for verdict in self.verdicts.values() if verdict.reason]
        return dict(Counter(reasons).most_common())

    def count(self, *, method: str | None = None, family: str | None = None) -> int:
        """Return the number of certified candidates of a method, of a family, or of both."""
        return sum(
            (method is None or cell.methods[name] == method)
            and (family is None or cell.family == family)
            for cell, name in self.certified
        )


@lru_cache(maxsize=4)
def _version(results: RunResults, veto: bool, smallest: bool) -> Certification:
    rules = replace(results.rules, relearn_veto=veto)
    tolerances = results.tolerances
    if smallest:
        least = min(noise.delta_f for noise in tolerances.values())
        tolerances = {f: replace(noise, delta_f=least) for f, noise in tolerances.items()}
    judged = [
        cell
        for cell in results.cells
        if cell.family in tolerances and cell.candidates and cell.evaluation.references
    ]
    verdicts = {cell.id: paper_verdict(cell, rules, tolerances[cell.family]) for cell in judged}
    return Certification(
        f"{'global minimum' if smallest else 'recalibrated'}, {'relearn' if veto else 'no'} veto",
        rules,
        tolerances,
        verdicts,
        tuple(cell.id for cell in results.cells if cell.id not in verdicts),
        tuple(
            (cell, name)
            for cell in judged
            if verdicts[cell.id].candidate
            for name, bar in verdicts[cell.id].bars.items()
            if bar.clears
        ),
        sum(len(cell.candidates) for cell in judged),
    )


def with_veto(results: RunResults) -> Certification:
    """Return the paper's bar at the families' own tolerances, with the relearn veto."""
    return _version(results, veto=True, smallest=False)


def versions(results: RunResults) -> tuple[Certification, ...]:
    """Return all four versions (the paper's own first, then with veto; then both at the smallest
    delta_f), remembered for the run read last; none without tolerances."""
    if not results.tolerances:
        return ()
    return tuple(_version(results, veto, low) for low in (False, True) for veto in (False, True))


# -- where the picks lie ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Position:
    """Where one pick lies on the held-out axes; damages are clipped at 0."""

    cell: str
    candidate: str
    forget_distance: float
    retain_damage: float
    residual_damage: float
    oracle_kl: float
    delta_f: float


def position(cell: CellResult, name: str, tolerances: Tolerances, rules: Rules) -> Position:
    """Return the candidate's axes, measured with the cell's reference and the family's
    tolerances."""
    bare = replace(rules, relearn_veto=False)
    bar = damage_bar(cell.evaluation, name, cell.survives(name), tolerances, bare)
    return Position(
        cell.id,
        name,
        bar.forget_distance,
        max(0.0, bar.retain_damage),
        max(0.0, bar.residual_damage or 0.0),
        cell.evaluation[name].need("oracle_kl"),
        tolerances.delta_f,
    )


@dataclass(frozen=True, slots=True)
class SelectorQuality:
    """One selector's picks on the cells where the certificate does not abstain."""

    selector: str
    picks: tuple[Position, ...]

    def mean(self, axis: str) -> float | None:
        """Return the mean over cells of an axis; None without a pick."""
        values = [getattr(pick, axis) for pick in self.picks]
        return float(np.mean(values)) if values else None

    def interval(self, axis: str, rules: Rules) -> Interval | None:
        """Return a bootstrap interval over cells; None with fewer than two picks."""
        values = [getattr(pick, axis) for pick in self.picks]
        return bootstrap(values, [pick.cell for pick in self.picks], rules)

    @property
    def within_noise(self) -> int:
        """Picks whose forget distance is at most delta_f."""
        return sum(pick.forget_distance <= pick.delta_f for pick in self.picks)


def selection_quality(results: RunResults, version: Certification) -> tuple[SelectorQuality, ...]:
    """Return the three selectors on the same cells: those that ``version`` certifies."""
    cells = [results.cell(cell_id) for cell_id in version.certified_cells]
    named = {
        "recalibrated certificate pick": [version.verdicts[cell.id].candidate for cell in cells],
        "absolute-bar pick": [absolute_pick(cell, version.rules) for cell in cells],
        "trained-probe best": [trained_probe_pick(cell) for cell in cells],
    }
    return tuple(
        SelectorQuality(
            title,
            tuple(
                position(cell, name, version.tolerances[cell.family], version.rules)
                for cell, name in zip(cells, names)
                if name is not None
            ),
        )
        for title, names in named.items()
    )


# -- suppression: how much of it gets through ------------------------------------------------------


def _suppressing(cells: Sequence[CellResult], picks: Sequence[str | None], rules: Rules) -> Bounded:
    """Return the cells whose pick was made by a suppression method; no pick counts as none."""
    events = [
        pick is not None and cell.kind(pick) == "suppresses" for cell, pick in zip(cells, picks)
    ]
    return bounded(events, [cell.model for cell in cells], rules)


def residual_selects_suppression(results: RunResults) -> Bounded:
    """Return the cells whose smallest-residual survivor was made by a suppression method."""
    return _suppressing(results.cells, [residual_pick(c) for c in results.cells], results.rules)


def suppression_picked(results: RunResults, version: Certification) -> Bounded:
    """Return the cells in which the certificate's pick was made by a suppression method."""
    cells = [results.cell(cell_id) for cell_id in version.verdicts]
    picks = [version.verdicts[cell.id].candidate for cell in cells]
    return _suppressing(cells, picks, version.rules)


def suppression_certified(version: Certification) -> int:
    """Return the certified candidates that suppression methods made."""
    return sum(cell.kind(name) == "suppresses" for cell, name in version.certified)
