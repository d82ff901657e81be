"""Where a run stands, read without checking digests or disturbing the processes that work on it.

Each worker appends dated lines to a file of its own, ``RUN/progress/<worker>.jsonl``; they are for
people, not evidence. A worker holds ``RUN/locks/<worker>.lock`` while it lives, so that its last
line can be believed.
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from palimpsest.errors import DamagedArtifact
from palimpsest.run.cell import CellStore
from palimpsest.run.files import DISK, canonical, make_folder, read_stored, write_json
from palimpsest.run.locks import holder
from palimpsest.run.steps import Failure, Step
from palimpsest.run.store import Run

RECENT = 8
"""Steps whose pace is taken for those of a kind of which none is done yet."""
COMMAND = "command"
"""The name under which the command that schedules the steps writes."""


@dataclass(frozen=True, slots=True)
class StepAtWork:
    """What a live worker is at."""

    worker: str
    cell: str
    step: str
    words: str
    seconds: float
    """Since it was started."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What the files of progress say, each read once."""

    graph: dict[str, dict[str, float]]
    """Cost of each step of the cells last worked on."""
    at_work: tuple[StepAtWork, ...]
    workers: int
    """Live workers, those included that wait for a step."""
    spent: list[tuple[str, str, float]]
    """Cell, step and seconds of each step done, in the order of time."""


def note(run: Path, worker: str, event: str, /, **data: Any) -> None:
    """Append a dated line to a worker's file."""
    line = {"time": datetime.now(UTC).isoformat(), "pid": os.getpid(), "event": event}
    with contextlib.suppress(Exception):  # best effort: it is not evidence
        make_folder(run / "progress")
        path = run / "progress" / f"{worker}.jsonl"
        DISK.append(path, canonical(line | data) + b"\n")


def progress_lines(run: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the legible lines of all files, each with its worker; the last may be incomplete."""
    for path in sorted((run / "progress").glob("*.jsonl")):
        with contextlib.suppress(DamagedArtifact):
            lines = read_stored(path).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    entry = json.loads(line)
                    if isinstance(entry, dict) and "event" in entry:
                        yield path.stem, entry


def read_progress(run: Path, now: float | None = None) -> Progress:
    """Return how far the work is; ``now`` is the clock's seconds since 1970."""
    now = time.time() if now is None else now
    graph: dict[str, dict[str, float]] = {}
    words: dict[tuple[str, str], str] = {}
    with contextlib.suppress(Exception):
        for cell, steps in json.loads(read_stored(run / "progress" / "steps.json")).items():
            graph[cell] = {str(name): float(cost) for name, _, cost in steps}
            words |= {(cell, name): str(text) for name, text, _ in steps}
    last: dict[str, StepAtWork | None] = {}
    spent = []
    for worker, entry in progress_lines(run):
        with contextlib.suppress(KeyError, ValueError, TypeError):
            if entry["event"] == "started":
                cell, step = str(entry["cell"]), str(entry["step"])
                seconds = max(0.0, now - datetime.fromisoformat(entry["time"]).timestamp())
                text = words.get((cell, step), step)
                last[worker] = StepAtWork(worker, cell, step, text, seconds)
            elif entry["event"] in ("done", "failed"):
                last[worker] = None
                if entry["event"] == "done":
                    done = (entry["cell"], entry["step"], float(entry["seconds"]))
                    spent.append((str(entry["time"]), done))
            elif entry["event"] == "ended":
                last.pop(worker, None)
    live = [work for worker, work in last.items() if holder(worker_lock(run, worker))]
    at_work = tuple(work for work in live if work is not None)
    return Progress(graph, at_work, len(live), [done for _, done in sorted(spent)])


def worker_lock(run: Path, worker: str) -> Path:
    """Return the lock a worker holds while it lives."""
    return run / "locks" / f"{worker}.lock"


def write_graph(run: Path, cells: Mapping[str, Sequence[Step]]) -> None:
    """Write which steps the cells at work have, for the time left."""
    graph = {c: [[step.name, step.words, step.cost] for step in cells[c]] for c in cells}
    with contextlib.suppress(Exception):
        make_folder(run / "progress")
        write_json(run / "progress" / "steps.json", graph)


@dataclass(frozen=True, slots=True)
class Status:
    """Cell ids by state, the steps at work, and an estimate of the time left."""

    planned: tuple[str, ...]
    done: tuple[str, ...]
    running: tuple[str, ...]
    failed: dict[str, Failure]
    failed_candidates: dict[str, dict[str, str]]
    """Of done cells: why a candidate could not be made or measured, by its name."""
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
    seen = read_progress(run.path, now)
    busy = {work.cell for work in seen.at_work}
    left = unfinished(run, busy)
    failed = {cell: failure for cell, failure in left.items() if failure is not None}
    steps = {cell: run.cell(cell).step_names() for cell in left}
    done = tuple(cell for cell in run.cells if cell not in left)
    running = tuple(cell for cell in steps if cell in busy)
    return Status(
        planned=run.cells,
        done=done,
        running=running,
        failed=failed,
        failed_candidates={cell: names for cell in done if (names := _failures(run.cell(cell)))},
        waiting=tuple(cell for cell in steps if cell not in busy and cell not in failed),
        steps=steps,
        totals={cell: len(seen.graph[cell]) for cell in steps if cell in seen.graph},
        now=seen.at_work,
        working=run.held() or bool(running),
        seconds_left=_seconds_left(steps, seen),
    )


def unfinished(run: Run, busy: Collection[str]) -> dict[str, Failure | None]:
    """Return the cells that are not done, each with why its last attempt failed; ``busy`` are those
    that a worker is at."""
    found: dict[str, Failure | None] = {}
    for store in map(run.cell, run.cells):
        failure = None if store.id in busy else store.failure()
        if store.id in busy or failure is not None or not store.ended():
            found[store.id] = failure
    return found


def _failures(store: CellStore) -> dict[str, str]:
    """Return the candidates of a finished cell that failed, each with the reason."""
    with contextlib.suppress(Exception):  # damage is for others to name
        failed = {model["name"]: model for model in store.summary()["models"] if "failure" in model}
        return {
            name: str(model["failure"]["reason"])
            for name, model in failed.items()
            if model["role"] == "candidate" and model["failure"]["kind"] != "not_applicable"
        }
    return {}


def _seconds_left(steps: dict[str, tuple[str, ...]], seen: Progress) -> float | None:
    """Return the seconds left: the cost of the steps to do, at the pace of those of their kind or
    else of the last ones done, shared by the workers; a step is not shared."""
    costs = {(cell, name): cost for cell in seen.graph for name, cost in seen.graph[cell].items()}
    kinds: dict[str, list[tuple[float, float]]] = {}
    for cell, name, seconds in seen.spent:
        if cost := costs.get((cell, name)):
            for kind in (_kind(name), ""):
                kinds.setdefault(kind, []).append((cost, seconds))
    if not kinds:
        return None
    recent = _pace(kinds.pop("")[-RECENT:])
    paces = {kind: _pace(done) for kind, done in kinds.items()}
    to_do = {
        (cell, name): paces.get(_kind(name), recent) * cost
        for (cell, name), cost in costs.items()
        if cell in steps and name not in steps[cell]
    }
    for work in seen.at_work:
        if (key := (work.cell, work.step)) in to_do:
            to_do[key] = max(0.0, to_do[key] - work.seconds)
    # A cell that the last command was not asked for counts as the mean of the others.
    unknown = sum(cell not in seen.graph for cell in steps)
    left = sum(to_do.values()) + recent * unknown * sum(costs.values()) / len(seen.graph)
    workers = seen.workers if unknown else min(seen.workers, len(to_do))
    return max(left / max(1, workers), *to_do.values(), 0.0)


def _pace(done: Sequence[tuple[float, float]]) -> float:
    """Return the seconds that a unit of cost took, of costs and seconds."""
    return sum(seconds for _, seconds in done) / sum(cost for cost, _ in done)


def _kind(step: str) -> str:
    return step.partition("-")[0]


def duration(seconds: float) -> str:
    """Return seconds in the usual units: "40 s", "12 min", "3.5 h", "2.1 days"."""
    if seconds < 90:
        return f"{max(1, math.ceil(seconds))} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 129_600 else f"{seconds / 86_400:.1f} days"
