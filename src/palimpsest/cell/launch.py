"""A task, and the one way to run any: check it, say what it would take, or do what is left of it.

A task is what a command does with cells, from its configuration to the plan of each cell. Studies,
audits, ``retrain`` and ``unlearn`` are tasks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from palimpsest.cell.checkpoints import check_out
from palimpsest.cell.estimate import Estimate, check_memory, estimate_cells, suitable_workers
from palimpsest.cell.models import try_plugins
from palimpsest.cell.plan import CellPlan
from palimpsest.cell.work import CellWork
from palimpsest.config.sections import Engine
from palimpsest.errors import InputError, ModelError, PalimpsestError, PlanError, StudyFailed
from palimpsest.models.device import check_device, keep_freed_memory, precision_remark
from palimpsest.plugins import IN_MEMORY
from palimpsest.run.executor import Event, OnEvent, Outcome, execute, silent
from palimpsest.run.files import remove
from palimpsest.run.steps import Failure, Job
from palimpsest.run.store import Roster, Run, Terms
from palimpsest.text import shown

PLANS = 64
"""How many plans of cells a process keeps."""


class Task:
    """What a command does with cells; terms, list of models and plans are made once in a process.

    A worker takes its fields and what ``carried`` names as they were when the task was checked:
    what lies on disk may have changed since.
    """

    config: Any
    """The configuration of the command."""
    carried: ClassVar[tuple[str, ...]] = ("fixed",)

    @property
    def kind(self) -> str:
        """The command, as the terms of the run name it."""
        raise NotImplementedError

    @property
    def folder(self) -> Path:
        """The run folder."""
        raise NotImplementedError

    @property
    def engine(self) -> Engine:
        """How numbers are computed."""
        engine: Engine = self.config.engine
        return engine

    def check(self) -> list[str]:
        """Raise for whatever can be known to be wrong; return what is worth knowing."""
        raise NotImplementedError

    def fix(self) -> tuple[Terms, Roster]:
        """Return what is fixed before the first step, and the run's candidates and references."""
        raise NotImplementedError

    def build(self, cell: str) -> CellPlan:
        """Return the plan of a cell."""
        raise NotImplementedError

    def preview(self, estimate: Estimate, workers: int) -> list[str]:
        """Return what would be done and what it would take, one paragraph or row each."""
        raise NotImplementedError

    @cached_property
    def fixed(self) -> tuple[Terms, Roster]:
        """The terms and the list of models."""
        return self.fix()

    def terms(self) -> Terms:
        """Return what is fixed about the run before its first step."""
        return self.fixed[0]

    def roster(self) -> Roster:
        """Return the candidates and references of the run."""
        return self.fixed[1]

    def plan(self, cell: str) -> CellPlan:
        """Return the plan of a cell, one of the last that were asked for."""
        if cell not in self._plans:
            if len(self._plans) == PLANS:
                self._plans.clear()
            self._plans[cell] = self.build(cell)
        return self._plans[cell]

    @cached_property
    def _plans(self) -> dict[str, CellPlan]:
        return {}

    def cell(self, cell_id: str) -> CellWork:
        """Return the work of a cell, for a worker."""
        keep_freed_memory()
        return CellWork(self.plan(cell_id))

    def __getstate__(self) -> dict[str, Any]:
        names = [item.name for item in fields(self)]  # type: ignore[arg-type]
        own = {name: getattr(self, name) for name in (*names, *self.carried)}
        return {"in memory": IN_MEMORY, "own": own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        IN_MEMORY.update(state["in memory"])
        vars(self).update(state["own"])


@dataclass(frozen=True)
class RunOptions:
    """Where and how steps are done; none of these can change a result."""

    executor: str = "inline"
    """inline (this process), local (worker processes) or ray."""
    workers: int = 1
    """0 takes as many as cores and memory allow."""
    on_event: OnEvent = silent
    reuse: str = ""
    """Run folder whose stored steps are taken over where they are asked for again."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    """Options of the Ray executor."""
    on_remark: Callable[[str], None] = lambda remark: None
    """Told what is worth knowing of the task before anything is computed."""


def preview(task: Task, options: RunOptions) -> list[str]:
    """Return what a task would do and take, one paragraph or row each; nothing is written."""
    _, workers = _check(task, options)
    plans = {cell: task.plan(cell) for cell in task.terms().cells}
    return task.preview(estimate_cells(plans, task.folder, options.reuse), workers)


def launch(task: Task, options: RunOptions) -> Run:
    """Check a task, try its plug-ins and do what is left of it; return its run."""
    first, workers = _check(task, options)
    check_memory(first)
    try_plugins(first)
    options = replace(options, workers=workers)
    run, outcome = run_cells(task, task.folder, task.terms(), task.roster(), options)
    failed = outcome.failed
    if len(run.cells) == 1:
        for failure in failed.values():
            raise _error(failure)
    if failed:
        reasons = "; ".join(f"{cell}, {why.step}: {why.reason}" for cell, why in failed.items())
        raise StudyFailed(
            f"{len(failed)} of {len(run.cells)} cells failed ({reasons}); the others are kept; run "
            "the same command again to retry them"
        )
    return run


def run_cells(
    job: Job, out: Path, terms: Terms, roster: Roster, options: RunOptions
) -> tuple[Run, Outcome]:
    """Create, resume or grow the run at ``out`` and do what is left of it.

    Bad input that a step of a new run finds removes the folder: the corrected command has other
    inputs and could use nothing of it.
    """
    out = check_out(out)
    new = not out.exists() or not any(out.iterdir())
    run = Run.create_or_resume(out, terms, roster)
    reuse = Run.open(options.reuse) if options.reuse else None
    with run.lock(f"palimpsest {terms.kind}"):
        outcome = execute(
            job,
            run,
            executor=options.executor,
            workers=options.workers,
            on_event=options.on_event,
            reuse=reuse,
            **options.resources,
        )
        bad_input = any(isinstance(_error(why), InputError) for why in outcome.failed.values())
        if bad_input and new and len(run.cells) == 1:
            remove(run.path)
    return run, outcome


def _check(task: Task, options: RunOptions) -> tuple[CellPlan, int]:
    """Return the first cell's plan and the number of workers, if nothing is found to be wrong."""
    executor, workers = options.executor, options.workers
    if executor not in ("inline", "local", "ray"):
        raise PlanError(f"expected local, ray or inline, got {shown(executor)}", key="executor")
    if not isinstance(workers, int) or workers < 0:
        raise PlanError(f"expected a number of at least 0, got {shown(workers)}", key="workers")
    if options.executor != "ray":  # its nodes have other devices
        check_device(task.engine.device)
    check_out(task.folder)
    for remark in (*task.check(), precision_remark(task.engine.device, task.engine.dtype)):
        if remark:
            options.on_remark(remark)
    cells = task.terms().cells
    first = task.plan(cells[0])
    most = len(cells) * (len(first.models) + len(first.methods))
    return first, options.workers or suitable_workers(first, most)


def _error(failure: Failure) -> PalimpsestError:
    kinds = {ModelError.kind: ModelError, InputError.kind: InputError}
    return kinds.get(failure.kind, StudyFailed)(failure.reason)


def progress_listener(progress: Callable[[str, int, int], None] | None) -> OnEvent:
    """Return a listener that reports steps as (words, done, total), for Python callers."""

    def listen(event: Event) -> None:
        if progress is not None and event.kind == "step":
            progress(event.words, event.done, event.total)

    return listen
