"""A run as somebody watches it: bars on a terminal, plain lines otherwise, all on stderr."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from palimpsest.errors import StudyFailed
from palimpsest.plan import Plan
from palimpsest.run.executor import Event, OnEvent, silent
from palimpsest.run.executor import executor as executor_named
from palimpsest.run.graph import Job
from palimpsest.run.store import Run
from palimpsest.study.matrix import StudyJob, start

OnRun = Callable[[Path], OnEvent]
"""Called with the run folder before the first step; returns what receives every event."""


def follow(
    plan: Plan,
    out: Path,
    *,
    pool: Path | None = None,
    fork: bool = False,
    **options: Any,
) -> Run:
    """Run what is left of a study and show it; further options are those of ``complete``."""
    run = start(plan, out, fork=fork)
    job = StudyJob(run.path.resolve(), None if pool is None else pool.resolve())
    return complete(run, job, "palimpsest study", **options)


def complete(
    run: Run,
    job: Job,
    command: str,
    *,
    executor: str = "local",
    workers: int = 1,
    address: str | None = None,
    on_run: OnRun | None = None,
) -> Run:
    """Do what is left of a run and show it; StudyFailed names the cells that did not finish."""
    tracker = silent if on_run is None else on_run(run.path)
    with run.lock(command):
        todo = [cell for cell in run.cells if not run.cell(cell).finished()]
        watch = Watch(len(run.cells), len(run.cells) - len(todo))

        def show(event: Event) -> None:
            watch(event)
            tracker(event)

        with watch:
            watch.say(
                f"{run.path}: {len(todo)} of {len(run.cells)} cells to do, "
                f"rules {run.rules_hash[7:19]}, seal {run.seal['commitment'][7:19]}"
            )
            options = {"address": address} if executor == "ray" else {}
            outcome = executor_named(executor, **options).execute(
                job, run.path, todo, workers=workers, on_event=show
            )
    if outcome.failed:
        reasons = "; ".join(
            f"{cell}, {failure.step}: {failure.reason}" for cell, failure in outcome.failed.items()
        )
        raise StudyFailed(
            f"{len(outcome.failed)} of {len(run.cells)} cells failed ({reasons}); the others are "
            "kept, run the same command to try again"
        )
    return run


class Watch:
    """Shows events of an executor: one bar per running cell, one for the whole."""

    def __init__(self, total: int, done: int) -> None:
        self._total = total
        self._done = done
        self._bars: dict[str, Any] = {}
        self._progress: Any = None
        self._all: Any = None

    def __enter__(self) -> "Watch":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._progress.start()
            if self._total > 1:
                self._all = self._progress.add_task(
                    "cells", total=self._total, completed=self._done
                )
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def say(self, text: str) -> None:
        """Print a line beside the bars."""
        if self._progress is not None:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def __call__(self, event: Event) -> None:
        """Show one event: a step of a cell, its end, or its failure."""
        if event.kind in ("step", "done"):
            self._step(event)
            return
        if event.kind == "again":
            self.say(f"{event.cell}: {event.words}")
            return
        if event.kind == "finished":
            self._done += 1
            self.say(f"{event.cell}: finished ({self._done}/{self._total})")
        else:
            self.say(f"{event.cell}: {event.step} {event.kind}: {event.words}")
        if self._progress is not None:
            if event.cell in self._bars:
                self._progress.remove_task(self._bars.pop(event.cell))
            if self._all is not None:
                self._progress.update(self._all, completed=self._done)

    def _step(self, event: Event) -> None:
        if self._progress is None:
            if event.kind == "step":
                self.say(f"{event.cell}: {event.words} ({event.done}/{event.total})")
            return
        if event.cell not in self._bars:
            self._bars[event.cell] = self._progress.add_task(event.cell, total=event.total)
        self._progress.update(
            self._bars[event.cell],
            description=f"{event.cell} {event.words}",
            completed=event.done,
            total=event.total,
        )
