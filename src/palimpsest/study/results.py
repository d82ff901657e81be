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

from palimpsest.criteria.bars import Tolerances
from palimpsest.criteria.headroom import Headroom, read_headroom
from palimpsest.criteria.items import Columns
from palimpsest.criteria.measures import CellMeasures, measure_cell
from palimpsest.criteria.rules import Rules
from palimpsest.criteria.screen import Screen, screen_candidates
from palimpsest.errors import DamagedArtifact, StoreError
from palimpsest.run.status import status
from palimpsest.run.store import Run
from palimpsest.study.replication import Draws, Replication, pool_tolerances, read_draws
from palimpsest.verdict import Verdict, decide

SECOND_POOL = "calibration"
"""A pool no loss, threshold or choice ever used: the untouched second suite."""

SUPPRESSION = ("ga", "npo")
"""Methods that push the forget set away."""
RESTORATION = ("kl_reversion", "task_vector")
"""Methods that bring the earlier distribution back."""


@dataclass(frozen=True, slots=True, eq=False)
class CellResult:
    """One finished cell."""

    id: str
    model: str
    seed: int
    family: str
    gated: bool
    draws: int
    candidates: tuple[str, ...]
    methods: Mapping[str, str]
    """The method of each candidate."""
    failed: Mapping[str, str]
    """Candidates that could not be made, with the reason."""
    not_applicable: tuple[str, ...]
    """Candidates that were never meant for this architecture; not among the failed."""
    evaluation: CellMeasures
    """Every model on the screen's pool."""
    panel: CellMeasures | None
    """Known-label models on the sealed pool; None when the panel was not run."""
    second: CellMeasures | None
    """Models scored on the untouched second pool; None when it was not scored."""
    screen: Screen | None
    """Over the candidates; None when no candidate could be made."""
    tolerances: Tolerances | None = None
    """Of its family; None when no cell of the family has several reference draws."""
    verdict: Verdict | None = None
    """Under the run's own rules; None when there is no candidate."""
    headroom: Headroom | None = None
    """Of its forget facts; None when no evidence was asked with."""

    def of_method(self, method: str) -> tuple[str, ...]:
        """The candidates a method made."""
        return tuple(name for name in self.candidates if self.methods[name] == method)

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
    """waiting, running, failed or damaged."""
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
    def tolerances(self) -> dict[str, Tolerances]:
        """By family."""
        return {family: one.tolerances for family, one in self.replication.items()}

    @property
    def families(self) -> tuple[str, ...]:
        """In order of first appearance."""
        return tuple(dict.fromkeys(cell.family for cell in self.cells))

    @property
    def methods(self) -> tuple[str, ...]:
        """In the order of the plan, then of first appearance."""
        planned = [grid["name"] for grid in self.plan.get("methods", ())]
        seen = [cell.methods[name] for cell in self.cells for name in cell.candidates]
        return tuple(name for name in dict.fromkeys([*planned, *seen]) if name in set(seen))

    def cell(self, cell_id: str) -> CellResult:
        for one in self.cells:
            if one.id == cell_id:
                return one
        raise StoreError(f"no finished cell {cell_id!r}; there are {len(self.cells)} of them")

    def of_family(self, family: str) -> tuple[CellResult, ...]:
        return tuple(cell for cell in self.cells if cell.family == family)

    def candidates(self) -> Iterator[tuple[CellResult, str]]:
        """Every candidate with its cell, in the order of the plan."""
        for cell in self.cells:
            for name in cell.candidates:
                yield cell, name


def read_run(path: Path | str) -> RunResults:
    """The results of the run at ``path``."""
    run = Run.open(path)
    rules = _rules(run)
    found: list[CellResult] = []
    replicated: dict[str, list[Draws]] = {}
    missing = _unfinished(run)
    absent = {one.id for one in missing}
    for cell_id in run.cells:
        if cell_id in absent:
            continue
        try:
            result, draws = _read_cell(run, cell_id, rules)
        except DamagedArtifact as damage:
            missing.append(Missing(cell_id, "damaged", str(damage)))
            continue
        found.append(result)
        if draws is not None:
            replicated.setdefault(result.family, []).append(draws)
    replication = {
        family: pool_tolerances(family, replicated[family], rules)
        for family in dict.fromkeys(cell.family for cell in found)
        if family in replicated
    }
    must_pass = bool(run.plan.get("reference_must_pass"))
    cells = tuple(_judged(cell, replication.get(cell.family), rules, must_pass) for cell in found)
    order = {cell_id: place for place, cell_id in enumerate(run.cells)}
    missing.sort(key=lambda one: order[one.id])
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


def method_of(candidate: str) -> str:
    """The method in a candidate's name: all before the first dash."""
    return candidate.partition("-")[0]


def _rules(run: Run) -> Rules:
    try:
        return Rules(**run.rules)
    except TypeError as error:
        raise StoreError(
            f"{run.path}/rules.json: not the rules this version reads ({error}); expected the keys "
            "of Rules; read the run with the version that made it"
        ) from error


def _unfinished(run: Run) -> list[Missing]:
    now = status(run)
    states = [(cell_id, "running", "") for cell_id in now.running]
    states += [(cell_id, "failed", reason) for cell_id, reason in now.failed.items()]
    states += [(cell_id, "waiting", "") for cell_id in now.waiting]
    return [Missing(*state) for state in states]


def _read_cell(run: Run, cell_id: str, rules: Rules) -> tuple[CellResult, Draws | None]:
    store = run.cell(cell_id)
    summary = store.summary()
    items, curves = store.table("items"), store.table("curves")
    measures = measure_cell(items, curves, rules.screen_pool)
    candidates = tuple(summary["candidates"])
    refused = {n: r for n, r in summary["failed"].items() if r.startswith("does not apply")}
    result = CellResult(
        id=cell_id,
        model=summary["model"],
        seed=summary["seed"],
        family=summary["family"],
        gated=summary["gated"],
        draws=len(measures.references),
        candidates=candidates,
        methods=MappingProxyType({name: method_of(name) for name in candidates}),
        failed=MappingProxyType({n: r for n, r in summary["failed"].items() if n not in refused}),
        not_applicable=tuple(refused),
        evaluation=measures,
        panel=_on_pool(items, curves, rules.panel_pool),
        second=_on_pool(items, curves, SECOND_POOL),
        screen=screen_candidates(measures, candidates, rules) if candidates else None,
        headroom=read_headroom(store.table("headroom"), rules) if summary.get("headroom") else None,
    )
    if result.draws < rules.minimum_draws:
        return result, None
    return result, read_draws(cell_id, items, measures, rules)


def _on_pool(items: Columns, curves: Columns, pool: str) -> CellMeasures | None:
    """The models scored on one more pool; None when none were."""
    models = dict.fromkeys(items["model"][items["pool"] == pool])
    if not models:
        return None
    mine = np.isin(items["model"], list(models))
    return measure_cell({column: values[mine] for column, values in items.items()}, curves, pool)


def _judged(
    cell: CellResult, replication: Replication | None, rules: Rules, reference_must_pass: bool
) -> CellResult:
    tolerances = None if replication is None else replication.tolerances
    verdict = None
    if cell.candidates:
        verdict = decide(
            cell.evaluation,
            rules,
            cell.candidates,
            tolerances,
            headroom=cell.headroom,
            reference_must_pass=reference_must_pass,
        )
    return replace(cell, tolerances=tolerances, verdict=verdict)
