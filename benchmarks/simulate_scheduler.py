"""The scheduler and the run folder under the load of a thousand workers, simulated.

Workers are events with a simulated clock, not processes; the scheduler, the events, the workers'
writes (step files, manifests, progress) are the real ones. A step does nothing but store one
number, so what is measured is what Palimpsest adds to the work itself:

- what the command does per step, alone and in one process: it bounds how many workers it can feed;
- what a worker does per step, in parallel with all others, on the storage that they share;
- what grows with the run: taking it up again, `status`, `verify`.

    python benchmarks/simulate_scheduler.py [--steps 100000] [--workers 1000] [--folder /dev/shm]

`--sample N` measures N steps on the disk of the temporary folder too, where every flush is real.
"""

import argparse
import heapq
import random
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measuring

from palimpsest.run.cell import CellStore
from palimpsest.run.executor import Result, Work, Worker, silent
from palimpsest.run.status import status
from palimpsest.run.steps import FINISH, Scheduler, Step
from palimpsest.run.store import Run, Terms

REFERENCES = 24
CANDIDATES = 20


def steps() -> tuple[Step, ...]:
    """Return the steps of a cell as an audit with many references has them: 50 of them."""
    references = tuple(f"train-reference-{n}" for n in range(REFERENCES))
    candidates = tuple(f"candidate-{n}" for n in range(CANDIDATES))
    return (
        _step("train-base", cost=3.0),
        _step("train-injected", "train-base", cost=3.0),
        *(_step(name, "train-base", cost=3.0) for name in references),
        *(_step(name, "train-injected") for name in candidates),
        _step("score-references", *references),
        _step("known-label", "train-injected"),
        _step("controls", "train-injected", *references),
        _step("score", *candidates),
    )


def _step(name: str, *needs: str, cost: float = 1.0) -> Step:
    return Step(name, "toy", f"key of {name}", name, needs, cost=cost)


STEPS = steps()


@dataclass(frozen=True)
class Toy:
    """The work of a cell, and the job: every step stores one number."""

    steps: tuple[Step, ...] = STEPS

    def cell(self, cell_id: str) -> "Toy":
        return self

    def do(self, step: Step, store: CellStore) -> None:
        store.put(step, values={"loss": 0.5})

    def finish(self, store: CellStore) -> Mapping[str, Any]:
        return {}

    def keep(self, store: CellStore) -> Mapping[str, tuple[Step, str]]:
        return {}


def simulate(work: Any, workers: int, seconds: Mapping[str, float], act: Any) -> dict[str, Any]:
    """Let simulated workers do all steps; return the clock, and what the command spent on it."""
    draw = random.Random(7)
    idle = [f"worker-{n}" for n in range(workers)]
    busy: list[tuple[float, str]] = []
    clock = command = total = 0.0
    done = 0
    while idle or busy:
        began = time.perf_counter()
        while idle and (task := work.next(idle[-1])) is not None:
            command += time.perf_counter() - began
            worker = idle.pop()
            act(worker, task)
            length = seconds[task.step] * draw.lognormvariate(0.0, 0.4)
            total += length
            heapq.heappush(busy, (clock + length, worker))
            began = time.perf_counter()
        command += time.perf_counter() - began
        if not busy:
            break
        clock, worker = heapq.heappop(busy)
        began = time.perf_counter()
        work.ended(worker, Result(0.0))
        command += time.perf_counter() - began
        idle.append(worker)
        done += 1
    return {
        "steps": done,
        "simulated hours": clock / 3600,
        "busy share of the workers": total / (clock * workers),
        "command seconds": command,
        "command microseconds per step": 1e6 * command / done,
        "steps per second the command can hand out": done / command,
    }


class Bare:
    """The scheduler alone, with the interface of the executors' `Work`."""

    def __init__(self, cells: Mapping[str, tuple[Step, ...]]) -> None:
        to_do = {cell: {step.name for step in steps} for cell, steps in cells.items()}
        self.scheduler = Scheduler(cells, to_do)
        self.next = self.scheduler.next

    def ended(self, worker: str, result: Result) -> None:
        self.scheduler.done(worker)


def on_folder(folder: Path, cells: list[str], workers: int, seconds: Mapping[str, float]) -> Any:
    """Run the simulation through a real run folder; return its measures."""
    seal = {"commitment": "none"}
    terms = Terms("study", {}, {}, seal, inputs={}, cells=tuple(cells))
    run = Run.create_or_resume(folder / "run", terms)
    job = Toy()
    made: dict[str, Worker] = {}
    spent: dict[str, float] = {"step": 0.0, FINISH: 0.0}

    def act(name: str, task: Any) -> None:
        worker = made.get(name) or made.setdefault(name, Worker(job, run.path, name))
        began = time.perf_counter()
        result = worker.do(task)
        spent[FINISH if task.step == FINISH else "step"] += time.perf_counter() - began
        assert result.failure is None, result

    timed: dict[str, float] = {}

    def clocked(name: str, call: Any) -> Any:
        began = time.perf_counter()
        result = call()
        timed[name] = time.perf_counter() - began
        return result

    with run.lock("simulation"):
        work = clocked("begin the work", lambda: Work(job, run, silent))
        result = simulate(work, workers, seconds, act)
    number = len(cells) * len(STEPS)
    clocked("status at the end", lambda: status(run))
    assert not clocked("verify", run.verify)
    with run.lock("simulation"):
        clocked("take it up again", lambda: Work(job, run, silent))
    return result | {
        "worker milliseconds per step": 1e3 * spent["step"] / number,
        "worker milliseconds per finish": 1e3 * spent[FINISH] / len(cells),
        "seconds": timed,
        "progress bytes": sum(p.stat().st_size for p in (run.path / "progress").iterdir()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--sample", type=int, default=1_000)
    arguments = parser.parse_args()
    cells = [f"cell-{n}" for n in range(max(1, arguments.steps // len(STEPS)))]
    seconds = {step.name: 60.0 * step.cost for step in STEPS} | {FINISH: 5.0}

    def measured(parent: Path | None, names: list[str], workers: int) -> dict[str, Any]:
        folder = Path(tempfile.mkdtemp(dir=parent))
        try:
            found: dict[str, Any] = on_folder(folder, names, workers, seconds)
            return found
        finally:
            shutil.rmtree(folder)

    bare = simulate(
        Bare(dict.fromkeys(cells, STEPS)), arguments.workers, seconds, lambda worker, task: None
    )
    print(f"scheduler alone: {bare['command microseconds per step']:.1f} us per step")
    whole = measured(arguments.folder, cells, arguments.workers)
    few = max(1, arguments.sample // len(STEPS))
    disk = measured(None, cells[:few], 20)
    for name, found in (("memory", whole), ("disk", disk)):
        print(
            f"{name}: command {found['command microseconds per step']:.0f} us, worker "
            f"{found['worker milliseconds per step']:.2f} ms per step, "
            f"{found['worker milliseconds per finish']:.1f} ms per finish; {found['seconds']}"
        )
    rate = whole["steps per second the command can hand out"]
    shortest = arguments.workers / rate
    print(
        f"one command feeds {arguments.workers} workers if a step takes {shortest:.2f} s or more "
        f"({rate:.0f} steps/s)"
    )
    results = {
        "cells": len(cells),
        "steps per cell": len(STEPS),
        "workers": arguments.workers,
        "scheduler alone": bare,
        "with the run folder in memory": whole,
        f"with the run folder on a disk, {few * len(STEPS)} steps": disk,
        "shortest step in seconds for which the command is not the bottleneck": shortest,
    }
    measuring.write("scheduler", results)


if __name__ == "__main__":
    main()
