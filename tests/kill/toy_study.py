"""A study small enough to be killed at every one of its store operations.

Run as a program, it imports the store once and then forks one real child per attempt, so that
hundreds of kills take seconds. It prints one JSON document with what was observed.

    toy_study.py every FOLDER STRIDE       kill at operation 1, 1 + STRIDE, ... then resume
    toy_study.py twice FOLDER COUNT          kill, kill the resume too, then resume
    toy_study.py mended FOLDER STRIDE        damage a finished cell, kill its repair, then resume
    toy_study.py workers FOLDER CELLS        16 processes share CELLS cells, 4 of them are killed
    toy_study.py instants FOLDER COUNT       kill from outside at random instants, then resume
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np

from palimpsest.errors import LeaseHeld
from palimpsest.run import disk
from palimpsest.run.store import Run, file_digest

CELLS = ("pocket-0", "pocket-1")
STEPS = ("injected", "ga-w3", "panel:all")
MODELS = {"injected": "sha256:1", "panel:router": "sha256:2"}


def study(folder: Path, computed: Path) -> None:
    """Run the toy study in `folder`, noting in `computed` each step that is really computed."""
    run = Run.create_or_resume(
        folder,
        {"seeds": [0, 1]},
        {"alpha": 0.05},
        {"code": {"version": "1"}},
        {"commitment": "sha256:c"},
        cells=CELLS,
    )
    with run.lease("toy study", wait=10):
        for cell_id in run.cells:
            cell = run.cell(cell_id)
            if cell.finished():
                continue
            with cell.claim():
                for step in STEPS:
                    if cell.done(step):
                        continue
                    if step.startswith("panel"):
                        cell.open_seal(step, "sha256:c", MODELS)
                    with open(computed, "a") as file:
                        file.write(f"{cell_id} {step}\n")
                    if step == "injected":
                        cell.put_file(step, "weights.safetensors", cell_id.encode() * 50)
                    numbers = np.random.default_rng(len(step)).normal(size=4)
                    rows = {"model": [step] * 4, "nll_sum": numbers}
                    cell.put(step, {"items": rows}, {"mean": float(numbers.mean())})
                kept = {"injected.safetensors": ("injected", "weights.safetensors")}
                cell.finish({"seed": cell_id}, STEPS, keep=kept)
        if run.chain().find("report") is None:
            run.record("report", {"cells": run.heads()})


def snapshot(folder: Path) -> dict[str, str]:
    """The digest of every file of a run but the log, leases included if any are left."""
    paths = (path for path in sorted(folder.rglob("*")) if path.name != "log.jsonl")
    return {str(p.relative_to(folder)): file_digest(p) if p.is_file() else "folder" for p in paths}


def attempt(folder: Path, computed: Path, fault: int | None = None, delay: float = -1.0) -> int:
    """Run the study in a forked child; gives back its wait status."""
    child = os.fork()
    if child == 0:
        try:
            disk.OPERATIONS = 0
            os.environ.pop("PALIMPSEST_FAULT", None)
            if fault is not None:
                os.environ["PALIMPSEST_FAULT"] = str(fault)
            study(folder, computed)
            (folder.parent / "operations").write_text(str(disk.OPERATIONS))
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    if delay >= 0:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def recorded(folder: Path) -> set[str]:
    """The steps a killed run has recorded as done."""
    if not (folder / "chain.jsonl").exists():
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
    if mode == "mended":
        operations = 100  # about as many as one cell needs
    began = time.monotonic()
    assert attempt(base / "timed", base / "timed-computed") == 0
    lasted = time.monotonic() - began
    if mode in ("every", "mended"):
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
        if mode == "mended":
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
        complete = mode == "mended" or len(lines(computed)) + len(before) == 6
        found = snapshot(folder)
        if mode == "mended":
            found.pop(f"cells/{CELLS[0]}/repairs.json")
        if state != 0 or found != expected or not complete:
            names = sorted(name for name, _ in found.items() ^ expected.items())
            result["different"].append([plan, state, names])
    print(json.dumps(result))


def work(folder: Path, computed: Path, seed: int) -> None:
    """Finish every cell nobody else is working on, until all are finished."""
    run = Run.open(folder)
    left = list(run.cells)
    random.Random(seed).shuffle(left)
    while left:
        for cell_id in list(left):
            cell = run.cell(cell_id)
            try:
                if not cell.finished():
                    with cell.claim(f"worker {seed}"):
                        if not cell.finished():
                            if not cell.done("injected"):
                                rows = {"fact": [cell_id], "nll_sum": np.array([float(seed)])}
                                cell.put("injected", {"items": rows})
                            # One write after the step: a line here is a step that was done.
                            descriptor = os.open(computed, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                            os.write(descriptor, f"{cell_id} {seed}\n".encode())
                            os.close(descriptor)
                            cell.finish({}, ["injected"])
                left.remove(cell_id)
            except LeaseHeld:
                continue


def share(base: Path, count: int) -> None:
    """Let 16 workers share the cells and have the first 4 of them killed on the way."""
    folder, computed = base / "shared", base / "computed"
    study(base / "warm", base / "warm-computed")
    names = [f"cell-{n}" for n in range(count)]
    Run.create(folder, {}, {}, {}, {"commitment": ""}, cells=names)
    children = []
    for seed in range(16):
        child = os.fork()
        if child == 0:
            try:
                if seed < 4:  # killed in the middle of its first cell, or of taking it
                    disk.OPERATIONS = 0
                    os.environ["PALIMPSEST_FAULT"] = str(1 + 4 * seed)
                work(folder, computed, seed)
                os._exit(0)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
        children.append(child)
    states = [os.waitpid(child, 0)[1] for child in children]
    run = Run.open(folder)
    with run.lease():
        pass
    began = {name: [] for name in names}
    for line in lines(computed):
        began[line.split()[0]].append(int(line.split()[1]))
    result = {
        "killed": sum(map(os.WIFSIGNALED, states[:4])),
        "failed": sum(state != 0 for state in states[4:]),
        "lost": [name for name in names if not run.cell(name).finished()],
        # Of a cell that was taken over, only the last of its workers may have been a survivor.
        "doubled": [name for name, seeds in began.items() if any(s >= 4 for s in seeds[:-1])],
        "rows": sorted(
            name for name in names if run.cell(name).table("items")["fact"].tolist() != [name]
        ),
        "problems": run.verify(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1] == "workers":
        share(Path(sys.argv[2]), int(sys.argv[3]))
        sys.exit()
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
