"""A study small enough to be killed at every one of its store operations.

Run as a program, it imports the store once and then forks one real child per attempt, so that
hundreds of kills take seconds. It prints one JSON document with what was observed.

    toy_study.py every FOLDER STRIDE       kill at operation 1, 1 + STRIDE, ... then resume
    toy_study.py twice FOLDER COUNT        kill, kill the resume too, then resume
    toy_study.py repaired FOLDER STRIDE    damage a finished cell, kill its repair, then resume
    toy_study.py instants FOLDER COUNT     kill from outside at random instants, then resume
    toy_study.py workers FOLDER CELLS      16 workers do CELLS cells, every fourth one is killed
    toy_study.py unruly FOLDER CELLS       16 processes do the same steps at once, 4 are killed
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from countdown import Countdown

from palimpsest.run import local, progress
from palimpsest.run.executor import InlineExecutor
from palimpsest.run.graph import FINISH, Step
from palimpsest.run.schedule import Task
from palimpsest.run.store import Cell, Run, file_digest
from palimpsest.run.worker import Worker

CELLS = ("pocket-0", "pocket-1")
STEPS = (
    Step("injected", "training"),
    Step("ga-w3", "unlearning", ("injected",)),
    Step("panel", "scoring the panel", ("injected",)),
)
MODELS = {"injected": "sha256:1", "panel:router": "sha256:2"}


@dataclass
class ToyCell:
    """Notes in `computed` each step that is really computed."""

    cell_id: str
    computed: Path
    steps: tuple[Step, ...] = STEPS

    def do(self, step: str, cell: Cell) -> None:
        if step == "panel":
            cell.open_seal(step, "sha256:c", MODELS)
        line = f"{self.cell_id} {step}\n".encode()
        descriptor = os.open(self.computed, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line)
        os.close(descriptor)
        if step == "injected":
            cell.put_file(step, "weights.safetensors", self.cell_id.encode() * 50)
        numbers = np.random.default_rng(len(step)).normal(size=4)
        rows = {"model": [step] * 4, "nll_sum": numbers}
        cell.put(step, {"items": rows}, {"mean": float(numbers.mean())})

    def finish(self, cell: Cell) -> Mapping[str, Any]:
        return {"seed": self.cell_id}

    def keep(self) -> Mapping[str, tuple[str, str]]:
        return {"injected.safetensors": ("injected", "weights.safetensors")}


@dataclass(frozen=True)
class ToyJob:
    computed: Path

    def cell(self, cell_id: str) -> ToyCell:
        return ToyCell(cell_id, self.computed)


def toy_run(folder: Path, cells: tuple[str, ...] = CELLS) -> Run:
    terms = ({"seeds": [0, 1]}, {"alpha": 0.05}, {"code": {"version": "1"}})
    return Run.create_or_resume(folder, *terms, {"commitment": "sha256:c"}, cells=cells)


def study(folder: Path, computed: Path) -> None:
    """Run the toy study in `folder`."""
    run = toy_run(folder)
    with run.lock("toy study", wait=10):
        outcome = InlineExecutor().execute(ToyJob(computed), folder, run.cells)
        if outcome.failed:
            raise RuntimeError(outcome.failed)


def snapshot(folder: Path) -> dict[str, str]:
    """Return the digest of every file of a run but progress and locks."""
    names = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*"))}
    return {
        name: file_digest(path) if path.is_file() else "folder"
        for name, path in names.items()
        if name.split("/")[0] not in ("progress", "locks")
    }


def attempt(folder: Path, computed: Path, fault: int | None = None, delay: float = -1.0) -> int:
    """Run the study in a forked child; return its wait status."""
    child = os.fork()
    if child == 0:
        try:
            counted = Countdown(fault)
            study(folder, computed)
            (folder.parent / "operations").write_text(str(counted.operations))
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    if delay >= 0:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def recorded(folder: Path) -> set[str]:
    """Return the steps a killed run has recorded as done."""
    if not (folder / "terms.json").exists():
        return set()
    run = Run.open(folder)
    return {f"{cell_id} {step}" for cell_id in CELLS for step in run.cell(cell_id).steps()}


def lines(path: Path) -> list[str]:
    return path.read_text().split("\n")[:-1] if path.exists() else []


def main(mode: str, base: Path, count: int) -> None:
    whole, computed = base / "whole", base / "computed"
    study(base / "warm", base / "warm-computed")  # loads every library once, before the forks
    assert attempt(whole, computed) == 0
    expected = snapshot(whole)
    operations = int((base / "operations").read_text())
    draw = random.Random(7)
    if mode == "repaired":
        operations = 100  # about as many as one cell needs
    began = time.monotonic()
    assert attempt(base / "timed", base / "timed-computed") == 0
    lasted = time.monotonic() - began
    if mode in ("every", "repaired"):
        plans = [[n] for n in range(1, operations + 1, count)]
    elif mode == "twice":
        plans = [[draw.randint(1, operations), draw.randint(1, 60)] for _ in range(count)]
    else:
        plans = [[-1] for _ in range(count)]
    result = {"operations": operations, "kills": 0, "attempts": 0, "different": [], "repeated": []}
    for plan in plans:
        folder = base / "killed"
        for path in (folder, computed):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if mode == "repaired":
            shutil.copytree(whole, folder)
            damaged = folder / "cells" / CELLS[0] / "items.parquet"
            damaged.write_bytes(damaged.read_bytes()[:-1])
        for n in plan:
            before = recorded(folder)
            computed.unlink(missing_ok=True)
            delay = draw.uniform(0, lasted) if n < 0 else -1.0
            state = attempt(folder, computed, None if n < 0 else n, delay)
            result["kills"] += os.WIFSIGNALED(state) and os.WTERMSIG(state) == signal.SIGKILL
            result["repeated"] += sorted(before & set(lines(computed)))
        before = recorded(folder)
        computed.unlink(missing_ok=True)
        state = attempt(folder, computed)
        result["attempts"] += 1
        result["repeated"] += sorted(before & set(lines(computed)))
        complete = mode == "repaired" or len(lines(computed)) + len(before) == 6
        found = snapshot(folder)
        if state != 0 or found != expected or not complete:
            names = sorted(name for name, _ in found.items() ^ expected.items())
            result["different"].append([plan, state, names])
    print(json.dumps(result))


def share(base: Path, count: int) -> None:
    """Let 16 workers of one command share the cells; every fourth of them is killed."""
    folder, computed = base / "shared" / "run", base / "computed"
    study(base / "warm", base / "warm-computed")
    names = tuple(f"cell-{n}" for n in range(count))
    run = toy_run(folder, names)
    local.START = "fork"
    begin = local._work

    def faulty(pipe: Any, name: str, *arguments: Any) -> None:
        number = int(name.removeprefix("worker-"))
        if number % 4 == 0 and number < 16:
            Countdown(8 + 4 * number)
        begin(pipe, name, *arguments)

    local._work = faulty
    events = []
    job = ToyJob(computed)
    outcome = local.LocalExecutor().execute(job, folder, names, workers=16, on_event=events.append)
    if outcome.failed:  # two of the killed may have met in one step, which the next command does
        local._work = begin
        names_left = tuple(outcome.failed)
        outcome = local.LocalExecutor().execute(
            job, folder, names, workers=16, on_event=events.append
        )
        assert set(names_left) <= set(outcome.done)
    began = Counter(lines(computed))
    lost = {f"{event.cell} {event.step}" for event in events if event.kind in ("again", "failed")}
    result = {
        "killed": len(
            {
                entry["worker"]
                for _, entry in progress.lines(folder)
                if entry["event"] == "worker lost"
            }
        ),
        "failed": len(outcome.failed),
        "lost": sorted(set(names) - set(outcome.done) - set(outcome.skipped)),
        # Only a step whose worker was killed in it may have been begun twice.
        "doubled": sorted(step for step, times in began.items() if times > 1 and step not in lost),
        "problems": run.verify(),
    }
    print(json.dumps(result))


def unruly(base: Path, count: int) -> None:
    """Let 16 processes that do not know of each other do the same steps; 4 of them are killed.

    So do workers on a node that is lost to the command but lives on.
    """
    folder, whole = base / "unruly", base / "whole"
    study(base / "warm", base / "warm-computed")
    names = tuple(f"cell-{n}" for n in range(count))
    InlineExecutor().execute(ToyJob(base / "computed-whole"), toy_run(whole, names).path, names)
    run = toy_run(folder, names)
    children = []
    for seed in range(16):
        child = os.fork()
        if child == 0:
            try:
                if seed < 4:
                    Countdown(12 * (1 + seed))
                cells = list(names)
                random.Random(seed).shuffle(cells)
                worker = Worker(ToyJob(base / "computed"), folder, f"worker-{seed}")
                for cell in cells:
                    for step in ("injected", "ga-w3", "panel", FINISH):
                        # Whatever fails, failed because another was faster.
                        if not run.cell(cell).ended():
                            worker.do(Task(cell, step))
                os._exit(0)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
        children.append(child)
    states = [os.waitpid(child, 0)[1] for child in children]
    InlineExecutor().execute(ToyJob(base / "computed"), folder, names)
    result = {
        "killed": sum(map(os.WIFSIGNALED, states[:4])),
        "failed": sum(state != 0 for state in states[4:]),
        "different": sorted(name for name, _ in snapshot(folder).items() ^ snapshot(whole).items()),
        "problems": run.verify(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    MODES = {"workers": share, "unruly": unruly}
    if sys.argv[1] in MODES:
        MODES[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
