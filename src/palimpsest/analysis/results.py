"""A run as numbers: every finished cell measured, screened and judged, from stored files alone.

Nothing here trains or loads a model, so results are read on a machine without torch. A cell that is
not finished, or whose files are damaged, is listed in ``missing`` and never silently left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from palimpsest.analysis.replication import Draws, Replication, pool_tolerances, read_draws
from palimpsest.criteria.bars import Tolerances
from palimpsest.criteria.headroom import Headroom, read_headroom
from palimpsest.criteria.items import Columns
from palimpsest.criteria.measures import CellMeasures, Roles, measure_cell
from palimpsest.criteria.rules import Rules
from palimpsest.criteria.screen import Screen, screen_candidates
from palimpsest.errors import DamagedArtifact, StoreError
from palimpsest.run.status import status
from palimpsest.run.store import Run
from palimpsest.verdict import Verdict, decide

SECOND_POOL = "calibration"
"""A pool no loss, threshold or choice ever used: the untouched second suite."""


@dataclass(frozen=True, slots=True, eq=False)
class CellResult:
    """One finished cell."""

    id: str
    model: str
    seed: int
    family: str
    gated: bool
    roles: Roles
    """What each model is, from ``cell.json``, models that failed included."""
    candidates: tuple[str, ...]
    """Candidates that were measured."""
    evaluation: CellMeasures
    """Every model on the screen's pool."""
    panel: CellMeasures | None
    """Known-label models on the sealed pool; None when the panel was not run."""
    screen: Screen | None
    """Over the candidates; None when no candidate could be made."""
    tolerances: Tolerances | None = None
    """Of its family, for the paper's edition; None when no cell of it has several references."""
    verdict: Verdict | None = None
    """Under the run's own rules; None when there is no candidate."""
    headroom: Headroom | None = None
    """Of its forget facts; None when no evidence was asked with."""

    @property
    def draws(self) -> int:
        """Number of references."""
        return len(self.evaluation.references)

    @property
    def methods(self) -> Mapping[str, str]:
        """The method of each candidate; in an audit, which knows none, its own name."""
        return {name: self.roles[name].get("method") or name for name in self.candidates}

    def kind(self, name: str) -> str:
        """Return what the candidate's method does: restores, suppresses or other."""
        return str(self.roles[name].get("kind") or "other")

    def suppresses(self, name: str | None) -> bool:
        """Return whether a suppression method made the candidate; no candidate is none."""
        return name is not None and self.kind(name) == "suppresses"

    @property
    def failed(self) -> Mapping[str, str]:
        """Candidates that could not be made or measured, with the reason."""
        return self._failures(applicable=True)

    @property
    def not_applicable(self) -> tuple[str, ...]:
        """Candidates that were never meant for this architecture; not among the failed."""
        return tuple(self._failures(applicable=False))

    def _failures(self, applicable: bool) -> dict[str, str]:
        return {
            name: str(role["failure"]["reason"])
            for name, role in self.roles.items()
            if role["role"] == "candidate" and role.get("failure")
            if (role["failure"]["kind"] != "not_applicable") == applicable
        }

    @property
    def survivors(self) -> tuple[str, ...]:
        """Candidates the screen did not exclude."""
        return () if self.screen is None else self.screen.survivors

    def survives(self, name: str) -> bool:
        return self.screen is not None and not self.screen[name].excluded


@dataclass(frozen=True, slots=True)
class Missing:
    """A planned cell without results."""

    id: str
    state: str
    """waiting, running, failed, halted (ended on purpose, without results) or damaged."""
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class RunResults:
    """A run's plan, rules and finished cells."""

    name: str
    plan: Mapping[str, Any]
    rules: Rules
    rules_hash: str
    planned: tuple[str, ...]
    cells: tuple[CellResult, ...]
    missing: tuple[Missing, ...]
    replication: Mapping[str, Replication]
    """By family, in order of first appearance; families without replicated cells are absent."""

    @property
    def judged(self) -> list[tuple[CellResult, Verdict]]:
        """The cells that have a verdict, with it."""
        return [(cell, cell.verdict) for cell in self.cells if cell.verdict is not None]

    @property
    def certified(self) -> int:
        """In how many cells a candidate is certified."""
        return sum(verdict.certified for _, verdict in self.judged)

    @property
    def tolerances(self) -> dict[str, Tolerances]:
        """By family."""
        return {family: noise.tolerances for family, noise in self.replication.items()}

    @property
    def families(self) -> tuple[str, ...]:
        """In order of first appearance."""
        return tuple(dict.fromkeys(cell.family for cell in self.cells))

    @property
    def methods(self) -> tuple[str, ...]:
        """In the order of the plan, then of first appearance."""
        planned = [grid["name"] for grid in self.plan.get("methods", ())]
        seen = dict.fromkeys(method for cell in self.cells for method in cell.methods.values())
        return tuple(name for name in dict.fromkeys([*planned, *seen]) if name in seen)

    def of_kind(self, kind: str) -> tuple[str, ...]:
        """Return the methods that restore ("restores"), suppress ("suppresses") or do other."""
        kinds = {cell.methods[name]: cell.kind(name) for cell, name in self.candidates()}
        return tuple(method for method in self.methods if kinds[method] == kind)

    def cell(self, cell_id: str) -> CellResult:
        for cell in self.cells:
            if cell.id == cell_id:
                return cell
        raise StoreError(f"no finished cell {cell_id!r}; there are {len(self.cells)} of them")

    def of_family(self, family: str) -> tuple[CellResult, ...]:
        return tuple(cell for cell in self.cells if cell.family == family)

    def by_method(self) -> dict[str, list[tuple[CellResult, str]]]:
        """Return the candidates of every method, in the order of the plan."""
        groups: dict[str, list[tuple[CellResult, str]]] = {method: [] for method in self.methods}
        for cell, name in self.candidates():
            groups[cell.methods[name]].append((cell, name))
        return groups

    def candidates(self) -> Iterator[tuple[CellResult, str]]:
        """Return every candidate with its cell, in the order of the plan."""
        for cell in self.cells:
            for name in cell.candidates:
                yield cell, name


def read_run(path: Path | str) -> RunResults:
    """Return the results of the run at ``path``."""
    run = Run.open(path)
    rules = _rules(run)
    finished: list[CellResult] = []
    replicated: dict[str, list[Draws]] = {}
    missing = _unfinished(run)
    absent = {cell.id for cell in missing}
    for cell_id in run.cells:
        if cell_id in absent:
            continue
        try:
            result, draws = _read_cell(run, cell_id, rules)
        except DamagedArtifact as damage:
            missing.append(Missing(cell_id, "damaged", str(damage)))
            continue
        finished.append(result)
        if draws is not None:
            replicated.setdefault(result.family, []).append(draws)
    replication = {
        family: pool_tolerances(family, replicated[family], rules)
        for family in dict.fromkeys(cell.family for cell in finished)
        if family in replicated
    }
    cells = tuple(
        replace(cell, tolerances=replication[cell.family].tolerances)
        if cell.family in replication
        else cell
        for cell in finished
    )
    order = {cell_id: place for place, cell_id in enumerate(run.cells)}
    missing.sort(key=lambda cell: order[cell.id])
    return RunResults(
        str(run.plan.get("name", "run")),
        MappingProxyType(run.plan),
        rules,
        run.rules_hash,
        run.cells,
        cells,
        tuple(missing),
        MappingProxyType(replication),
    )


def _rules(run: Run) -> Rules:
    try:
        return Rules(**run.rules)
    except TypeError as error:
        raise StoreError(
            f"{run.path}/rules.json: not the rules this version reads ({error}); expected the keys "
            "of Rules; read the run with the version that made it"
        ) from error


def _unfinished(run: Run) -> list[Missing]:
    seen = status(run)
    missing = {cell: Missing(cell, "running", "") for cell in seen.running}
    missing |= {cell: Missing(cell, "halted", reason) for cell, reason in seen.halted.items()}
    missing |= {cell: Missing(cell, "failed", why.reason) for cell, why in seen.failed.items()}
    missing |= {cell: Missing(cell, "waiting", "") for cell in seen.waiting}
    return [missing[cell] for cell in run.cells if cell in missing]


def _read_cell(run: Run, cell_id: str, rules: Rules) -> tuple[CellResult, Draws | None]:
    store = run.cell(cell_id)
    summary = store.summary()
    items, curves = store.table("items"), store.table("curves")
    further = store.table("measures") if "measures.parquet" in summary["artifacts"] else None
    roles: Roles = MappingProxyType(summary["models"])
    evaluation = measure_cell(items, curves, rules.screen_pool, roles=roles, measures=further)
    candidates = evaluation.of_role("candidate")
    headroom = read_headroom(store.table("headroom"), rules) if summary.get("headroom") else None
    result = CellResult(
        id=cell_id,
        model=summary["model"],
        seed=summary["seed"],
        family=summary["family"],
        gated=summary["gated"],
        roles=roles,
        candidates=candidates,
        evaluation=evaluation,
        panel=_on_pool(items, curves, rules.panel_pool, roles),
        screen=screen_candidates(evaluation, candidates, rules) if candidates else None,
        verdict=decide(evaluation, roles, rules, headroom) if candidates else None,
        headroom=headroom,
    )
    if result.draws < rules.minimum_draws:
        return result, None
    return result, read_draws(cell_id, items, evaluation, rules)


def _on_pool(items: Columns, curves: Columns, pool: str, roles: Roles) -> CellMeasures | None:
    """Return the models scored on one more pool; None when none were."""
    models = dict.fromkeys(items["model"][items["pool"] == pool])
    if not models:
        return None
    mine = np.isin(items["model"], list(models))
    scored = {column: values[mine] for column, values in items.items()}
    return measure_cell(scored, curves, pool, roles=roles)
