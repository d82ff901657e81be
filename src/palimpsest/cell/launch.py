"""Run cells in a folder: fix the terms, do what is left, say what failed.

Every command comes through here: a study, an audit, ``unlearn`` or ``retrain`` is a function that
builds the specs of its cells, the terms of its run and the list of its candidates.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palimpsest.errors import InputError, ModelError, PalimpsestError, PlanError, StudyFailed
from palimpsest.models.device import keep_freed_memory
from palimpsest.run.executor import Event, OnEvent, Outcome, make_executor, silent
from palimpsest.run.files import folder_path, remove
from palimpsest.run.steps import CellWork, Failure
from palimpsest.run.store import Run, Terms


@dataclass(frozen=True)
class RunOptions:
    """Where and how steps are done; none of these can change a result."""

    executor: str = "inline"
    """inline (this process), local (worker processes) or ray."""
    workers: int = 1
    on_event: OnEvent = silent
    reuse: str = ""
    """Run folder whose stored steps are taken over where they are asked for again."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    """Options of the Ray executor."""


@dataclass(frozen=True)
class CellJob:
    """How a worker gets at the cells: ``build`` must be picklable."""

    build: Callable[[str], Any]

    def cell(self, cell_id: str) -> CellWork:
        """Return the work of one cell."""
        from palimpsest.cell.work import CellWork as Work

        keep_freed_memory()
        return Work(self.build(cell_id))


def run_cells(
    job: CellJob,
    out: Path,
    terms: Terms,
    roster: Sequence[Mapping[str, Any]],
    options: RunOptions,
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


def raise_failures(run: Run, outcome: Outcome) -> None:
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
