"""Where a run stands, read without checking digests or disturbing the processes that work on it."""

from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path

from palimpsest.run import progress
from palimpsest.run.graph import Failure
from palimpsest.run.store import Run


@dataclass(frozen=True, slots=True)
class StepAtWork:
    """What a live worker is at."""

    worker: str
    cell: str
    step: str
    words: str
    seconds: float  # since it was begun


@dataclass(frozen=True, slots=True)
class Status:
    """Cell ids by state, the steps at work, and an estimate of the time left."""

    planned: tuple[str, ...]
    done: tuple[str, ...]
    running: tuple[str, ...]
    failed: dict[str, Failure]
    halted: dict[str, str]  # cell id to reason
    waiting: tuple[str, ...]  # not begun, or interrupted
    steps: dict[str, tuple[str, ...]]  # steps done so far in unfinished cells
    totals: dict[str, int]  # how many steps these have in all; cells never begun are absent
    now: tuple[StepAtWork, ...]
    working: bool  # whether a command is at work on the run
    seconds_left: float | None


def status(run: Run | Path | str, now: float | None = None) -> Status:
    """Return where the run stands; `now` is the clock's seconds since 1970."""
    run = run if isinstance(run, Run) else Run.open(run)
    now = datetime.now(UTC).timestamp() if now is None else now
    graph = progress.read_graph(run.path)
    words = {(cell, name): text for cell, steps in graph.items() for name, text, _ in steps}
    at_work = tuple(
        StepAtWork(worker, cell, step, words.get((cell, step), step), max(0.0, now - since))
        for worker, cell, step, since in map(astuple, progress.at_work(run.path))
    )
    busy = {work.cell for work in at_work}
    done, running, waiting = [], [], []
    failed: dict[str, Failure] = {}
    halted: dict[str, str] = {}
    steps: dict[str, tuple[str, ...]] = {}
    for cell_id in run.cells:
        cell = run.cell(cell_id)
        if cell.ended():
            done.append(cell_id)
            continue
        reason = cell.halted()
        if reason is not None:
            halted[cell_id] = reason
            continue
        steps[cell_id] = cell.steps()
        failure = cell.failure()
        if cell_id in busy:
            running.append(cell_id)
        elif failure is not None:
            failed[cell_id] = failure
        else:
            waiting.append(cell_id)
    return Status(
        run.cells,
        tuple(done),
        tuple(running),
        failed,
        halted,
        tuple(waiting),
        steps,
        {cell: len(graph[cell]) for cell in steps if cell in graph},
        at_work,
        run.held() or bool(running),
        _seconds_left(run, steps, graph, at_work),
    )


def _seconds_left(
    run: Run,
    steps: dict[str, tuple[str, ...]],
    graph: dict[str, list[tuple[str, str, float]]],
    at_work: tuple[StepAtWork, ...],
) -> float | None:
    """Return the seconds left: the cost of the steps to do, at the pace of those done so far."""
    costs = {(cell, name): cost for cell, found in graph.items() for name, _, cost in found}
    seconds = cost = 0.0
    for _, entry in progress.lines(run.path):
        key = (entry.get("cell"), entry.get("step"))
        if entry.get("event") == "done" and key in costs:
            seconds += float(entry.get("seconds", 0.0))
            cost += costs[key]
    if not cost or not seconds:
        return None
    pace = seconds / cost
    to_do = {
        (cell, name): pace * found
        for (cell, name), found in costs.items()
        if cell in steps and name not in steps[cell]
    }
    # A cell that the last command was not asked for counts as the mean of the others.
    unknown = sum(cell not in graph for cell in steps)
    left = sum(to_do.values()) + pace * unknown * sum(costs.values()) / len(graph)
    left -= sum(min(work.seconds, to_do.get((work.cell, work.step), 0.0)) for work in at_work)
    return max(0.0, left / max(1, len(at_work)))
