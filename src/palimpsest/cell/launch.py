"""Check a task, say what it would take, or do what is left of it: the one way to run anything."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from palimpsest.cell.estimate import check_memory, estimate_cells, suitable_workers
from palimpsest.cell.plan import CellPlan
from palimpsest.cell.task import Task
from palimpsest.errors import InputError, ModelError, PalimpsestError, PlanError, StudyFailed
from palimpsest.models.device import check_device
from palimpsest.run.executor import Event, OnEvent, Outcome, make_executor, silent
from palimpsest.run.files import folder_path, remove
from palimpsest.run.steps import Failure, Job
from palimpsest.run.store import Roster, Run, Terms


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
    return task.preview(estimate_cells(plans, task.folder), workers)


def launch(task: Task, options: RunOptions) -> Run:
    """Check a task, try its plug-ins and do what is left of it; return its run."""
    first, workers = _check(task, options)
    check_memory(first)
    if first.plugins or first.measure_plugins:
        from palimpsest.cell.models import try_plugins

        try_plugins(first)
    options = replace(options, workers=workers)
    run, outcome = run_cells(task, task.folder, task.terms(), task.roster(), options)
    _raise_failures(run, outcome)
    return run


def run_cells(
    job: Job, out: Path, terms: Terms, roster: Roster, options: RunOptions
) -> tuple[Run, Outcome]:
    """Create, resume or grow the run at ``out`` and do what is left of it.

    Bad input that a step of a new run finds removes the folder: the corrected command has other
    inputs and could use nothing of it.
    """
    out = check_out(out)
    executor = make_executor(options.executor, **options.resources)
    new = not out.exists() or not any(out.iterdir())
    run = Run.create_or_resume(out, terms, roster)
    reuse = Run.open(options.reuse) if options.reuse else None
    with run.lock(f"palimpsest {terms.kind}"):
        outcome = executor.execute(
            job, run, workers=options.workers, on_event=options.on_event, reuse=reuse
        )
        bad = [f for f in outcome.failed.values() if f.kind in (InputError.kind, ModelError.kind)]
        if bad and new and len(run.cells) == 1:
            remove(run.path)
    return run, outcome


def _check(task: Task, options: RunOptions) -> tuple[CellPlan, int]:
    """Return the first cell's plan and the number of workers, if nothing is wrong on paper."""
    if options.executor != "ray":  # its nodes have other devices
        check_device(task.engine.device)
    for remark in task.check():
        options.on_remark(remark)
    cells = task.terms().cells
    first = task.plan(cells[0])
    most = len(cells) * (len(first.models) + len(first.methods))
    return first, options.workers or suitable_workers(first, most)


def _raise_failures(run: Run, outcome: Outcome) -> None:
    """Raise an error that names the cells that failed, if any did."""
    failed = outcome.failed
    if not failed:
        return
    if len(run.cells) == 1:
        raise _error(next(iter(failed.values())))
    reasons = "; ".join(f"{cell}, {why.step}: {why.reason}" for cell, why in failed.items())
    raise StudyFailed(
        f"{len(failed)} of {len(run.cells)} cells failed ({reasons}); the others are kept; run "
        "the same command again to retry them"
    )


def _error(failure: Failure) -> PalimpsestError:
    kinds = {ModelError.kind: ModelError, InputError.kind: InputError}
    return kinds.get(failure.kind, StudyFailed)(failure.reason)


def check_out(out: Path) -> Path:
    """Return the resolved path of the folder to make; PlanError where none can be made."""
    try:
        out = folder_path(out)
    except InputError as error:
        raise PlanError(str(error), key="out") from error
    nearest = next(path for path in (out, *out.parents) if path.exists())
    if not nearest.is_dir():
        raise PlanError(f"{nearest} is a file; expected a folder; choose another", key="out")
    if not os.access(nearest, os.W_OK):
        raise PlanError(f"{nearest} cannot be written to; choose another folder", key="out")
    return out


def progress_listener(progress: Callable[[str, int, int], None] | None) -> OnEvent:
    """Return a listener that reports steps as (words, done, total), for Python callers."""

    def listen(event: Event) -> None:
        if progress is not None and event.kind == "step":
            progress(event.words, event.done, event.total)

    return listen
