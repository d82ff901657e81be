"""The one channel of progress: each worker appends to a file of its own, everybody else reads.

`RUN/progress/<worker>.jsonl` has dated lines; it is for people and for `status`, not evidence. A
worker holds `RUN/locks/<worker>.lock` while it lives, so that its last line can be believed.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from palimpsest.run import disk
from palimpsest.run.graph import Step
from palimpsest.run.locks import holder

COMMAND = "command"
"""The name under which the command that schedules the steps writes."""


@dataclass(frozen=True, slots=True)
class AtWork:
    """What a live worker is at."""

    worker: str
    cell: str
    step: str
    since: float  # seconds since 1970


def note(run: Path, worker: str, event: str, /, **data: Any) -> None:
    """Append a dated line to a worker's file."""
    line = {"time": datetime.now(UTC).isoformat(), "pid": os.getpid(), "event": event}
    with contextlib.suppress(Exception):
        disk.make_folder(run / "progress")
        disk.append_log(run / "progress" / f"{worker}.jsonl", line | data)


def lines(run: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the legible lines of all files, each with its worker; the last may be incomplete."""
    for path in sorted((run / "progress").glob("*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                entry["seconds_since_1970"] = datetime.fromisoformat(entry["time"]).timestamp()
                yield path.stem, entry


def at_work(run: Path) -> tuple[AtWork, ...]:
    """Return the step each live worker is at."""
    begun: dict[str, AtWork] = {}
    for worker, entry in lines(run):
        if entry.get("event") == "begun":
            with contextlib.suppress(KeyError):
                since = float(entry["seconds_since_1970"])
                begun[worker] = AtWork(worker, str(entry["cell"]), str(entry["step"]), since)
        elif entry.get("event") in ("done", "failed", "halted", "ended"):
            begun.pop(worker, None)
    return tuple(work for worker, work in begun.items() if holder(worker_lock(run, worker)))


def worker_lock(run: Path, worker: str) -> Path:
    """Return the lock a worker holds while it lives."""
    return run / "locks" / f"{worker}.lock"


def write_graph(run: Path, cells: Mapping[str, Sequence[Step]]) -> None:
    """Write which steps the cells at work have, for the time left."""
    graph = {
        cell: [[step.name, step.words, step.cost] for step in steps]
        for cell, steps in cells.items()
    }
    with contextlib.suppress(Exception):
        disk.make_folder(run / "progress")
        disk.write_json(run / "progress" / "steps.json", graph)


def read_graph(run: Path) -> dict[str, list[tuple[str, str, float]]]:
    """Return the name, words and cost of each step of the cells last worked on."""
    with contextlib.suppress(Exception):
        graph = disk.read_json(run / "progress" / "steps.json")
        return {
            str(cell): [(str(name), str(words), float(cost)) for name, words, cost in steps]
            for cell, steps in graph.items()
        }
    return {}
