"""A study of one cell that takes seconds, and what was done to finish it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from palimpsest.cell.launch import RunOptions, launch
from palimpsest.cell.study import StudyTask
from palimpsest.cell.work import CellWork
from palimpsest.config.load import changed
from palimpsest.config.plan import Plan
from palimpsest.config.presets import preset
from palimpsest.config.sections import MethodGrid, Replication
from palimpsest.run.cell import CellStore
from palimpsest.run.executor import Event
from palimpsest.run.store import Run

METHODS = (
    MethodGrid("kl_reversion", (("weight", (3.0, 12.0)),)),
    MethodGrid("gate_mask", (("weight", (3.0,)),)),
    MethodGrid("task_vector", (("coefficient", (0.5, 1.0)),)),
    MethodGrid("replay", (("share", (0.5,)),)),
)


SMALL = {
    "facts": {"forget": 2, "retain": 2, "probes": 3, "phrasings": 2},
    "injection": {"steps": 4, "learning_rate": 1.5e-4, "fact_items": 2, "general_items": 2},
    "unlearning": {"steps": 2, "forget_items": 2, "retain_items": 2},
    "reacquisition": {"steps": 2, "chunks": 2, "learning_rate": 1.5e-4, "items": 2},
    "general": {"train_pieces": 8, "scored_pieces": 2, "piece_tokens": 12},
    "known_label": ["suppression", "router", "interpolation-50"],
    "replication": {"draws": 2, "retrainings": 1},
}


def small_plan(model: Path | str = "pocket/qwen2-s", **changes: Any) -> Plan:
    plan = changed(preset("demo"), SMALL | {"models": [str(model)]})
    return replace(plan, **{"methods": METHODS, **changes})


def bare_plan(model: Path | str = "pocket/qwen2-s", **changes: Any) -> Plan:
    """The smallest cell that can be finished: one reference beside the first, nothing else."""
    few = {"methods": (), "known_label": (), "replication": Replication(draws=1)}
    plan = small_plan(model, **(few | changes))
    return replace(plan, rules=replace(plan.rules, control_shares=(0.1,)))


def finish(plan: Plan, out: Path, **options: Any) -> tuple[Run, list[str]]:
    """Run a study; return it with the steps that were done, in order."""
    done: list[str] = []

    def note(event: Event) -> None:
        if event.kind == "step" and event.step != "finish":
            done.append(event.step)

    run = launch(StudyTask(plan, out), RunOptions(on_event=note, **options))
    return run, done


def cell_work(plan: Plan) -> CellWork:
    """Return the work of a plan's only cell with nothing in its caches."""
    (cell,) = plan.cell_ids()
    return CellWork(StudyTask(plan).plan(cell))


def only_cell(run: Run) -> CellStore:
    (cell,) = run.cells
    return run.cell(cell)


def artifacts(run: Run) -> dict[str, bytes]:
    """The stored results of the only cell."""
    folder = run.path / "cells" / run.cells[0]
    names = ("cell.json", "items.parquet", "curves.parquet")
    return {name: (folder / name).read_bytes() for name in names}


def rows(run: Run) -> Mapping[str, list[tuple[str, ...]]]:
    """The rows of the items table by model."""
    table = only_cell(run).table("items")
    found: dict[str, list[tuple[str, ...]]] = {}
    for row in zip(*table.values()):
        named = dict(zip(table, row))
        found.setdefault(str(named["model"]), []).append(tuple(map(repr, row)))
    return found
