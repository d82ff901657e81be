"""A study as the paper's criteria see it: its pool, screen, tolerances, bars and their picks.

The paper tries five methods (appendix B: 20 candidates in a cell, 16 where no layer has a gate).
Candidates of other methods are left out here, before Holm's correction and the bound count them.
Its screen is anchored to base, where the verdict's is anchored to the references. Its tolerances
come from three retrainings drawn independently of each other and of the injected model (sections 5
and B): of a cell with more, the first three. The paper replicates one cell of each family; here
every cell that has such draws counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from palimpsest.methods import PAPER
from palimpsest.paper.bars import (
    ADEQUATE,
    MINIMUM_DRAWS,
    DamageBar,
    Tolerances,
    absolute_bar,
    damage_bar,
    measure_tolerances,
    paper_references,
)
from palimpsest.report.results import CellResult, RunResults
from palimpsest.report.table import Share
from palimpsest.stats.intervals import clopper_pearson, clopper_pearson_clustered
from palimpsest.stats.measures import ModelMeasures
from palimpsest.stats.screen import Screen, screen_alone, screen_candidates

POOL = frozenset(PAPER) - {"rollback"}
"""The paper's methods. Rollback is base, which is no candidate of a pool."""
DRAWS = 3
Candidate = tuple[CellResult, str]


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """One version of the recalibrated bar, over the cells whose family has tolerances."""

    title: str
    tolerances: Mapping[str, Tolerances]
    """By family."""
    bars: Mapping[str, Mapping[str, DamageBar]]
    """By cell and candidate."""
    picks: Mapping[str, str | None]
    """By cell: the smallest worst axis among candidates that clear; None where the bar abstains."""
    tried: tuple[Candidate, ...]

    def passes(self, cell: CellResult, name: str) -> bool:
        """Return whether a candidate clears the bar in a cell that has a pick."""
        return self.picks[cell.id] is not None and self.bars[cell.id][name].clears

    def share(self, method: str | None = None, family: str | None = None) -> Share:
        """Return how many candidates (of a method, of a family, or of both) pass."""
        return Share.of(
            self.passes(cell, name)
            for cell, name in self.tried
            if method in (None, cell.method(name)) and family in (None, cell.family)
        )


@dataclass(frozen=True, eq=False)
class PaperStudy:
    """A run with the paper's design."""

    results: RunResults
    screens: Mapping[str, Screen]
    """The base-anchored screen of every cell."""
    names: Mapping[str, tuple[str, ...]]
    """By cell, the candidates that have all of the paper's measures."""

    @property
    def cells(self) -> tuple[CellResult, ...]:
        return self.results.cells

    @property
    def schedule(self) -> str:
        """Return by which schedule models were re-acquired, as a sentence."""
        drawn = sum(cell.summary.get("beacon") is not None for cell in self.cells)
        if not drawn:
            return "Re-acquired by one fixed AdamW schedule, as in the paper."
        return (
            f"Re-acquired by a schedule drawn from a beacon in {drawn} of {len(self.cells)} "
            "cells, not by the paper's fixed AdamW."
        )

    def candidates(self) -> list[Candidate]:
        return [(cell, name) for cell in self.cells for name in self.names[cell.id]]

    def by_method(self) -> dict[str, list[Candidate]]:
        """Return the candidates of every method."""
        groups: dict[str, list[Candidate]] = {}
        for cell, name in self.candidates():
            groups.setdefault(cell.method(name), []).append((cell, name))
        return groups

    def survives(self, cell: CellResult, name: str) -> bool:
        """Return whether the screen does not exclude a candidate."""
        return not self.screens[cell.id][name].excluded

    def survivors(self, cell: CellResult) -> list[str]:
        return [name for name in self.names[cell.id] if self.survives(cell, name)]

    def adequate(self) -> list[Candidate]:
        """Return the candidates that the trained-probe criterion rates adequate: oracle-KL is at
        most a fraction of the injected model's own."""
        return [
            (cell, name)
            for cell, name in self.candidates()
            if cell.evaluation[name].need("oracle_kl")
            <= ADEQUATE * cell.evaluation.injected.need("oracle_kl")
        ]

    @cached_property
    def draws(self) -> dict[str, list[list[ModelMeasures]]]:
        """The reference draws of every replicated cell, by family."""
        groups: dict[str, list[list[ModelMeasures]]] = {}
        for cell in self.cells:
            names = cell.evaluation.references[:DRAWS]
            if len(names) >= MINIMUM_DRAWS:
                mine = [cell.evaluation[name] for name in names]
                groups.setdefault(cell.family, []).append(mine)
        return groups

    @cached_property
    def tolerances(self) -> dict[str, Tolerances]:
        """By family; families without replicated cells are absent."""
        return {f: measure_tolerances(draws) for f, draws in self.draws.items()}

    # -- bars and picks; ties go to the candidate listed first -------------------------------

    @cached_property
    def versions(self) -> tuple[Version, ...]:
        """The recalibrated bar without veto (the paper's own) and with it, then both at the
        smallest delta_f of all families; none without tolerances."""
        choices = [(veto, least) for least in (False, True) for veto in (False, True)]
        return tuple(self._version(*choice) for choice in choices) if self.tolerances else ()

    def _version(self, veto: bool, smallest: bool) -> Version:
        noises = self.tolerances
        if smallest:
            least = min(noise.delta_f for noise in noises.values())
            noises = {f: replace(noise, delta_f=least) for f, noise in noises.items()}
        tried = tuple((cell, name) for cell, name in self.candidates() if cell.family in noises)
        bars: dict[str, dict[str, DamageBar]] = {cell.id: {} for cell, _ in tried}
        for cell, name in tried:
            survives = self.survives(cell, name)
            noise = noises[cell.family]
            bars[cell.id][name] = damage_bar(cell.evaluation, name, survives, noise, veto=veto)
        title = "smallest delta_f" if smallest else "family's delta_f"
        picks = {cell: self._pick(self.results.cell(cell), mine) for cell, mine in bars.items()}
        return Version(f"{title}, {'relearn' if veto else 'no'} veto", noises, bars, picks, tried)

    def _pick(self, cell: CellResult, bars: Mapping[str, DamageBar]) -> str | None:
        """Return the pick of the bar; None where it abstains: the screen has no power, or does not
        find the facts in the injected model, or no candidate clears."""
        found = screen_alone(cell.evaluation.injected, self.results.rules).excluded
        clearing = [name for name in bars if bars[name].clears]
        if not found or not self.screens[cell.id].bound.certifiable:
            return None
        return min(clearing, key=lambda name: bars[name].worst_axis, default=None)

    def selected(self, cell: CellResult) -> dict[str, str | None]:
        """Return what every selector picks in a cell; None where it abstains.

        certificate: the certified candidate. recalibrated, and with veto: the paper's bar.
        residual: the survivor of smallest residual. absolute: the same among candidates that clear
        the absolute bar. trained-probe: the smallest oracle-KL.
        """

        def smallest(measure: str, names: Iterable[str]) -> str | None:
            return min(names, key=lambda name: of[name].need(measure), default=None)

        alive, of = self.survivors(cell), cell.evaluation
        absolute = [name for name in alive if absolute_bar(of[name], True)["all three"]]
        bars = [version.picks.get(cell.id) for version in self.versions[:2]] or [None, None]
        return {
            "certificate": None if cell.verdict is None else cell.verdict.candidate,
            "recalibrated": bars[0],
            "recalibrated, relearn veto": bars[1],
            "residual": smallest("residual", alive),
            "absolute": smallest("residual", absolute),
            "trained-probe": smallest("oracle_kl", self.names[cell.id]),
        }

    # -- over cells --------------------------------------------------------------------------

    def upper_bounds(
        self, events: Sequence[bool], cells: Sequence[CellResult]
    ) -> tuple[float | None, float | None]:
        """Return exact one-sided upper bounds of a share: over cells, and over architectures, each
        of which counts when any of its cells does."""
        if not events:
            return None, None
        bases = [cell.base for cell in cells]
        plain = clopper_pearson(sum(events), len(events), side="upper")
        return plain.high, clopper_pearson_clustered(events, bases, side="upper").high


def taught(cell: CellResult) -> float:
    """Return how far below base the injected model lies on held-out forget facts, in nats."""
    return -float(cell.evaluation.injected.forget_deltas.mean())


def suppresses(cell: CellResult, name: str) -> bool:
    """Return whether a suppression method made the candidate."""
    return cell.models[name].aim == "suppresses"


def read_paper(results: RunResults) -> PaperStudy | None:
    """Return the study as the paper's criteria see it; None where a cell lacks the paper's design:
    candidates of its pool, a reference of the injected model's draw, re-acquisition and oracle-KL.
    """
    if results.kind != "study" or not results.cells:
        return None
    screens, names = {}, {}
    needed = ("retain_nll", "residual", "oracle_kl", "curve")
    for cell in results.cells:
        models = {name: cell.evaluation[name] for name in cell.evaluation}
        whole = [n for n, m in models.items() if all(getattr(m, k) is not None for k in needed)]
        pool = [name for name in cell.candidates if cell.method(name) in POOL]
        names[cell.id] = tuple(name for name in pool if name in whole)
        known = ("injected", *paper_references(cell.evaluation)[:1])
        if not names[cell.id] or len(known) < 2 or not set(known) <= set(whole):
            return None
        screens[cell.id] = screen_candidates(cell.evaluation, pool, results.rules)
    return PaperStudy(results, screens, names)
