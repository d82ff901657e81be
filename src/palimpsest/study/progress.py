"""A study as somebody watches it: bars on a terminal, plain lines otherwise, all on stderr."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from palimpsest.errors import PalimpsestError
from palimpsest.plan import Plan
from palimpsest.run.executor import Event, OnEvent, silent
from palimpsest.run.executor import executor as executor_named
from palimpsest.run.store import Run
from palimpsest.study.matrix import start


class StudyFailed(PalimpsestError):
    """Some cells failed; the others are finished and kept."""


def follow(
    plan: Plan,
    out: Path,
    *,
    executor: str = "local",
    workers: int = 1,
    pool: Path | None = None,
    fork: bool = False,
    address: str | None = None,
    on_run: Callable[[Path], OnEvent] | None = None,
) -> Run:
    """Run what is left of a study and show it; StudyFailed names the cells that did not finish.

    on_run: given the run folder before its first cell begins, gives what is told every event.
    """
    run = start(plan, out, fork=fork)
    told = silent if on_run is None else on_run(run.path)
    with run.lease("palimpsest study"):
        todo = [cell for cell in run.cells if not run.cell(cell).finished()]
        watch = Watch(len(run.cells), len(run.cells) - len(todo))

        def tell(event: Event) -> None:
            if event.kind == "step":  # for `palimpsest status`, in whatever terminal it is asked
                step = {"step": event.label, "done": event.done, "total": event.total}
                run.note("begun", cell=event.cell, **step)
            watch(event)
            told(event)

        with watch:
            watch.say(
                f"{run.path}: {len(todo)} of {len(run.cells)} cells to do, "
                f"rules {run.rules_hash[7:19]}, seal {run.seal['commitment'][7:19]}"
            )
            options = {"address": address} if executor == "ray" else {}
            outcome = executor_named(executor, **options).execute(
                run.path, todo, workers=workers, pool_file=pool, on_event=tell
            )
    if outcome.failed:
        reasons = "; ".join(f"{cell}: {reason}" for cell, reason in outcome.failed.items())
        raise StudyFailed(
            f"{len(outcome.failed)} of {len(run.cells)} cells failed ({reasons}); the others are "
            f"kept, run the same command to try again"
        )
    return run


class Watch:
    """Shows events of an executor: one bar a running cell, one for the whole."""

    def __init__(self, total: int, done: int) -> None:
        self._total = total
        self._done = done
        self._bars: dict[str, Any] = {}
        self._progress: Any = None
        self._all: Any = None
        self._plain = not sys.stderr.isatty()
        self._last: dict[str, str] = {}

    def __enter__(self) -> "Watch":
        if not self._plain:
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

    def __call__(self, event: Any) -> None:
        """Show one event: a cell's step, its end, or its failure."""
        if event.kind == "step":
            self._step(event)
        elif event.kind == "finished":
            self._done += 1
            self._close(event.cell)
            self.say(f"{event.cell}: finished ({self._done}/{self._total})")
        elif event.kind == "failed":
            self._close(event.cell)
            self.say(f"{event.cell}: failed: {event.label}")
        else:
            self.say(f"{event.cell}: {event.label}")

    def _step(self, event: Any) -> None:
        if self._progress is None:
            if self._last.get(event.cell) != event.label:
                self._last[event.cell] = event.label
                self.say(f"{event.cell}: {event.label} ({event.done}/{event.total})")
            return
        if event.cell not in self._bars:
            self._bars[event.cell] = self._progress.add_task(event.cell, total=event.total)
        self._progress.update(
            self._bars[event.cell],
            description=f"{event.cell} {event.label}",
            completed=event.done,
            total=event.total,
        )

    def _close(self, cell: str) -> None:
        if self._progress is None:
            return
        if cell in self._bars:
            self._progress.remove_task(self._bars.pop(cell))
        if self._all is not None:
            self._progress.update(self._all, completed=self._done)
