"""Progress: each worker appends to a file of its own, and ``status`` reads them all.

``RUN/progress/<worker>.jsonl`` has dated lines; it is for people, not evidence. A worker holds
``RUN/locks/<worker>.lock`` while it lives, so that its last line can be believed.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from palimpsest.run import disk
from palimpsest.run.locks import holder
from palimpsest.run.steps import Step

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
    spent: list[tuple[str, str, float]]
    """Cell, step and seconds of each step done."""


def note(run: Path, worker: str, event: str, /, **data: Any) -> None:
    """Append a dated line to a worker's file."""
    line = {"time": datetime.now(UTC).isoformat(), "pid": os.getpid(), "event": event}
    with contextlib.suppress(Exception):  # best effort: it is not evidence
        disk.make_folder(run / "progress")
        path = run / "progress" / f"{worker}.jsonl"
        disk.DISK.append(path, disk.canonical(line | data) + b"\n")


def lines(run: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the legible lines of all files, each with its worker; the last may be incomplete."""
    for path in sorted((run / "progress").glob("*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and "event" in entry:
                    yield path.stem, entry


def read(run: Path, now: float | None = None) -> Progress:
    """Return how far the work is; ``now`` is the clock's seconds since 1970."""
    now = time.time() if now is None else now
    graph: dict[str, dict[str, float]] = {}
    words: dict[tuple[str, str], str] = {}
    with contextlib.suppress(Exception):
        for cell, steps in json.loads((run / "progress" / "steps.json").read_bytes()).items():
            graph[cell] = {str(name): float(cost) for name, _, cost in steps}
            words |= {(cell, name): str(text) for name, text, _ in steps}
    started: dict[str, StepAtWork] = {}
    spent = []
    for worker, entry in lines(run):
        with contextlib.suppress(KeyError, ValueError, TypeError):
            if entry["event"] == "started":
                cell, step = str(entry["cell"]), str(entry["step"])
                seconds = max(0.0, now - datetime.fromisoformat(entry["time"]).timestamp())
                text = words.get((cell, step), step)
                started[worker] = StepAtWork(worker, cell, step, text, seconds)
            elif entry["event"] in ("done", "failed", "ended"):
                started.pop(worker, None)
                if entry["event"] == "done":
                    spent.append((entry["cell"], entry["step"], float(entry["seconds"])))
    live = (work for work in started.values() if holder(worker_lock(run, work.worker)))
    return Progress(graph, tuple(live), spent)


def worker_lock(run: Path, worker: str) -> Path:
    """Return the lock a worker holds while it lives."""
    return run / "locks" / f"{worker}.lock"


def write_graph(run: Path, cells: Mapping[str, Sequence[Step]]) -> None:
    """Write which steps the cells at work have, for the time left."""
    graph = {c: [[step.name, step.words, step.cost] for step in cells[c]] for c in cells}
    with contextlib.suppress(Exception):
        disk.make_folder(run / "progress")
        disk.write_json(run / "progress" / "steps.json", graph)
