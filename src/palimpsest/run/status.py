"""Where a run stands, read without checking digests or disturbing the processes that work on it."""

import math
from dataclasses import dataclass
from pathlib import Path

from palimpsest.run import progress
from palimpsest.run.progress import Progress, StepAtWork
from palimpsest.run.steps import Failure
from palimpsest.run.store import Run


@dataclass(frozen=True, slots=True)
class Status:
    """Cell ids by state, the steps at work, and an estimate of the time left."""

    planned: tuple[str, ...]
    done: tuple[str, ...]
    running: tuple[str, ...]
    failed: dict[str, Failure]
    waiting: tuple[str, ...]
    """Not started, or interrupted."""
    steps: dict[str, tuple[str, ...]]
    """Steps stored so far in unfinished cells."""
    totals: dict[str, int]
    """How many steps these have in all; cells never started are absent."""
    now: tuple[StepAtWork, ...]
    working: bool
    """Whether a command is at work on the run."""
    seconds_left: float | None


def status(run: Run | Path | str, now: float | None = None) -> Status:
    """Return where the run stands; ``now`` is the clock's seconds since 1970."""
    run = run if isinstance(run, Run) else Run.open(run)
    seen = progress.read(run.path, now)
    busy = {work.cell for work in seen.at_work}
    failed: dict[str, Failure] = {}
    steps: dict[str, tuple[str, ...]] = {}
    done = []
    for store in map(run.cell, run.cells):
        if store.ended() and store.id not in busy:
            done.append(store.id)
            continue
        steps[store.id] = store.step_names()
        if store.id not in busy and (failure := store.failure()) is not None:
            failed[store.id] = failure
    running = tuple(cell for cell in steps if cell in busy)
    return Status(
        planned=run.cells,
        done=tuple(done),
        running=running,
        failed=failed,
        waiting=tuple(cell for cell in steps if cell not in busy and cell not in failed),
        steps=steps,
        totals={cell: len(seen.graph[cell]) for cell in steps if cell in seen.graph},
        now=seen.at_work,
        working=run.held() or bool(running),
        seconds_left=_seconds_left(steps, seen),
    )


def _seconds_left(steps: dict[str, tuple[str, ...]], seen: Progress) -> float | None:
    """Return the seconds left: the cost of the steps to do, at the pace of those done so far."""
    costs = {(cell, name): cost for cell in seen.graph for name, cost in seen.graph[cell].items()}
    known = [
        (costs[cell, step], seconds) for cell, step, seconds in seen.spent if (cell, step) in costs
    ]
    cost, seconds = (sum(numbers) for numbers in zip(*known)) if known else (0.0, 0.0)
    if not cost or not seconds:
        return None
    pace = seconds / cost
    to_do = {
        (cell, name): pace * cost
        for (cell, name), cost in costs.items()
        if cell in steps and name not in steps[cell]
    }
    # A cell that the last command was not asked for counts as the mean of the others.
    unknown = sum(cell not in seen.graph for cell in steps)
    left = sum(to_do.values()) + pace * unknown * sum(costs.values()) / len(seen.graph)
    left -= sum(min(work.seconds, to_do.get((work.cell, work.step), 0.0)) for work in seen.at_work)
    return max(0.0, left / max(1, len(seen.at_work)))


def duration(seconds: float) -> str:
    """Return seconds in the usual units: "40 s", "12 min", "3.5 h", "2.1 days"."""
    if seconds < 90:
        return f"{max(1, math.ceil(seconds))} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 129_600 else f"{seconds / 86_400:.1f} days"
