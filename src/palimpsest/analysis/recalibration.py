"""The paper's edition of the certificate over a run: its recalibrated bar, counted and never used.

Four versions of the bar are counted side by side: the paper's, which has no relearn veto, and the
one with it, each at the family's own tolerance and at the smallest delta_f of all families (the
sensitivity row). Cells of a family without replicated references have no such bar and are counted
apart, never as abstentions. The verdicts of a run are those of ``palimpsest.verdict``.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.criteria.bars import (
    DamageBar,
    Tolerances,
    absolute_bar,
    damage_bar,
    global_minimum,
)
from palimpsest.criteria.intervals import (
    Interval,
    clopper_pearson,
    clopper_pearson_clustered,
    cluster_bootstrap,
)
from palimpsest.criteria.rules import Rules
from palimpsest.criteria.screen import screen_alone
from palimpsest.criteria.selector import smallest_oracle_kl, smallest_residual, smallest_worst_axis

Selector = Callable[[CellResult, Rules], str | None]
PaperReason = Literal["underpowered", "not_identifiable", "all_excluded", "no_candidate_clears_bar"]


@dataclass(frozen=True, slots=True, eq=False)
class PaperVerdict:
    """What the paper's bar says of one cell: its pick, or why there is none."""

    candidate: str | None
    reason: PaperReason | None
    bars: Mapping[str, DamageBar]
    """By candidate."""

    @property
    def certified(self) -> bool:
        return self.candidate is not None


def paper_verdict(cell: CellResult, rules: Rules, tolerances: Tolerances) -> PaperVerdict:
    """Return the recalibrated bar's verdict on a cell with candidates."""
    measures = cell.evaluation
    bars = {
        name: damage_bar(measures, name, cell.survives(name), tolerances, rules)
        for name in cell.candidates
    }

    def without(reason: PaperReason) -> PaperVerdict:
        return PaperVerdict(None, reason, bars)

    assert cell.screen is not None
    if not cell.screen.bound.certifiable:
        return without("underpowered")
    if not cell.survivors:
        excluded = screen_alone(measures[measures.references[0]], rules).excluded
        return without("not_identifiable" if excluded else "all_excluded")
    if not screen_alone(measures.injected, rules).excluded:
        return without("not_identifiable")
    pick = smallest_worst_axis(bars, [name for name in cell.candidates if bars[name].clears])
    return without("no_candidate_clears_bar") if pick is None else PaperVerdict(pick, None, bars)


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
        return tuple(cell for cell, verdict in self.verdicts.items() if verdict.certified)

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


def certify(
    results: RunResults, title: str, rules: Rules, tolerances: Mapping[str, Tolerances]
) -> Certification:
    """Return every cell's verdict under one version of the bar."""
    judged = {
        cell.id: cell
        for cell in results.cells
        if cell.family in tolerances and cell.candidates and cell.evaluation.references
    }
    verdicts = {
        cell_id: paper_verdict(cell, rules, tolerances[cell.family])
        for cell_id, cell in judged.items()
    }
    return Certification(
        title,
        rules,
        tolerances,
        verdicts,
        tuple(cell.id for cell in results.cells if cell.id not in judged),
        tuple(
            (judged[cell_id], name)
            for cell_id, verdict in verdicts.items()
            if verdict.certified
            for name, bar in verdict.bars.items()
            if bar.clears
        ),
        sum(len(cell.candidates) for cell in judged.values()),
    )


@lru_cache(maxsize=4)
def _version(results: RunResults, veto: bool, smallest: bool) -> Certification:
    title = (
        f"{'global minimum' if smallest else 'recalibrated'}, {'relearn' if veto else 'no'} veto"
    )
    tolerances = global_minimum(results.tolerances) if smallest else results.tolerances
    return certify(results, title, replace(results.rules, relearn_veto=veto), tolerances)


def without_veto(results: RunResults) -> Certification:
    """Return the paper's bar: families' own tolerances, no relearn veto."""
    return _version(results, veto=False, smallest=False)


def with_veto(results: RunResults) -> Certification:
    """Return the same with the relearn veto."""
    return _version(results, veto=True, smallest=False)


def versions(results: RunResults) -> tuple[Certification, ...]:
    """Return all four versions, remembered for the run read last; none without tolerances."""
    if not results.tolerances:
        return ()
    return tuple(_version(results, veto, low) for low in (False, True) for veto in (False, True))


# -- what each criterion would pick, and where the pick lies -------------------------------------


def absolute_pick(cell: CellResult, rules: Rules) -> str | None:
    """Return the smallest residual among candidates clearing the absolute bar; where none clears
    it, among screen survivors, which is the oracle-free selector without a bar."""
    measures = cell.evaluation
    clearing = [
        name
        for name in cell.candidates
        if absolute_bar(measures[name], cell.survives(name), rules).clears
    ]
    return smallest_residual(measures, clearing or cell.survivors)


def trained_probe_pick(cell: CellResult, rules: Rules) -> str | None:
    """Return the smallest oracle-KL of all candidates, screened or not."""
    return smallest_oracle_kl(cell.evaluation, cell.candidates)


@dataclass(frozen=True, slots=True)
class Position:
    """Where one pick lies on the held-out axes; damages are clipped at 0."""

    cell: str
    candidate: str
    method: str
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
        cell.methods[name],
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
    certified = {
        cell_id: version.verdicts[cell_id].candidate for cell_id in version.certified_cells
    }
    selectors: tuple[tuple[str, Selector], ...] = (
        ("recalibrated certificate pick", lambda cell, rules: certified[cell.id]),
        ("absolute-bar pick", absolute_pick),
        ("trained-probe best", trained_probe_pick),
    )
    rows = []
    for title, selector in selectors:
        picks = []
        for cell_id in certified:
            cell = results.cell(cell_id)
            name = selector(cell, version.rules)
            if name is not None:
                tolerances = version.tolerances[cell.family]
                picks.append(position(cell, name, tolerances, version.rules))
        rows.append(SelectorQuality(title, tuple(picks)))
    return tuple(rows)


# -- suppression: how much of it gets through -----------------------------------------------------


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


def residual_selects_suppression(results: RunResults) -> Bounded:
    """Return the cells whose smallest-residual survivor was made by a suppression method.

    Cells where nobody survives select nobody, and count as cells that did not.
    """
    events = []
    for cell in results.cells:
        pick = smallest_residual(cell.evaluation, cell.survivors)
        events.append(pick is not None and cell.kind(pick) == "suppresses")
    return bounded(events, [cell.model for cell in results.cells], results.rules)


def suppression_certified(version: Certification) -> int:
    """Return the certified candidates that suppression methods made."""
    return sum(cell.kind(name) == "suppresses" for cell, name in version.certified)


def suppression_picked(results: RunResults, version: Certification) -> Bounded:
    """Return the cells in which the certificate's pick was made by a suppression method."""
    cells = [results.cell(cell_id) for cell_id in version.verdicts]
    picks = [version.verdicts[cell.id].candidate for cell in cells]
    events = [
        pick is not None and cell.kind(pick) == "suppresses" for cell, pick in zip(cells, picks)
    ]
    return bounded(events, [cell.model for cell in cells], version.rules)


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
