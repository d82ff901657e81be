"""A study small enough to be killed at every one of its disk operations.

Run as a program, it loads every library once and then forks one real child per attempt, so that
hundreds of kills take seconds. It prints one JSON document with what was observed.

    toy_study.py every FOLDER STRIDE       kill at operation 1, 1 + STRIDE, ... then resume
    toy_study.py twice FOLDER COUNT        kill, kill the resume too, then resume
    toy_study.py repaired FOLDER STRIDE    damage a finished cell, kill its repair, then resume
    toy_study.py grown FOLDER STRIDE       kill while a candidate is added, then resume
    toy_study.py workers FOLDER CELLS      16 workers do CELLS cells, every fourth one is killed
    toy_study.py unruly FOLDER CELLS       16 processes do the same steps at once, 4 are killed
    toy_study.py slow FOLDER MOUNTS        two commands at once on 1 or 2 mounts of a network file
                                           system; 0: on a local one whose operations are slow
"""

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from far import DELAY, mounted
from toy import CANDIDATES, STEPS, Countdown, HookedDisk, ToyJob, damage, digests, toy_run, work

from palimpsest.errors import StoreError
from palimpsest.run import files, local
from palimpsest.run.executor import Worker, execute
from palimpsest.run.status import progress_lines
from palimpsest.run.steps import FINISH, Task
from palimpsest.run.store import Run

CELLS = ("pocket-0", "pocket-1")


def study(folder: Path, computed: Path, candidates: tuple[str, ...] = CANDIDATES) -> None:
    """Run the toy study in `folder`; note in `computed` each step that is really computed."""
    run = toy_run(folder, *CELLS)
    with run.lock("toy study", wait=10):
        if failed := work(run, ToyJob(folder.parent, candidates, log=computed)).failed:
            raise RuntimeError(failed)


def start(do: Callable[[], object]) -> int:
    """Do something in a forked child; return its pid."""
    child = os.fork()
    if child == 0:
        try:
            do()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    return child


def in_child(do: Callable[[], object]) -> int:
    """Do something in a forked child; return its wait status."""
    return os.waitpid(start(do), 0)[1]


def attempt(folder: Path, computed: Path, fatal: int | None = None) -> int:
    """Run the study in a forked child; return its wait status."""

    def counted() -> None:
        countdown = Countdown(fatal)
        study(folder, computed)
        (folder.parent / "operations").write_text(str(countdown.operations))

    return in_child(counted)


def recorded(folder: Path) -> set[str]:
    """Return the steps a killed run has recorded as done."""
    if not (folder / "terms.json").exists() or not (folder / "rosters.json").exists():
        return set()
    run = Run.open(folder)
    return {f"{cell} {step}" for cell in CELLS for step in run.cell(cell).step_names()}


def lines(path: Path) -> list[str]:
    return path.read_text().split("\n")[:-1] if path.exists() else []


def prepared(mode: str, whole: Path, folder: Path, computed: Path) -> set[str]:
    """Make the folder an attempt starts from; return the steps it may repeat."""
    for path in (folder, computed):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if mode == "repaired":
        shutil.copytree(whole, folder)
        for name in ("items.parquet", "steps/part-1/values.json"):
            damage(folder / "cells" / CELLS[0] / name, "truncate")
        return {f"{CELLS[0]} {step}" for step in ("part-1", "train")}
    if mode == "grown":
        study(folder, computed, CANDIDATES[:2])
        return {f"{cell} train" for cell in CELLS}  # its weights were not kept
    return set()


def kill(mode: str, base: Path, count: int) -> dict[str, Any]:
    """Kill the study as the mode says, resume it, and compare every byte."""
    whole, computed, folder = base / "whole", base / "computed", base / "killed"
    assert attempt(whole, computed) == 0
    expected = digests(whole)
    prepared(mode, whole, folder, computed)
    assert attempt(folder, computed) == 0
    operations = int((base / "operations").read_text())
    draw = random.Random(7)
    if mode == "twice":
        plans = [[draw.randint(1, operations), draw.randint(1, 60)] for _ in range(count)]
    else:
        # The last operations too: a strided walk from the end.
        plans = [[n] for n in range(operations, 0, -count)]
    result: dict[str, Any] = {"operations": operations, "kills": 0, "attempts": 0}
    result |= {"different": [], "repeated": []}
    for plan in plans:
        allowed = prepared(mode, whole, folder, computed)
        for n in (*plan, None):
            before = recorded(folder)
            computed.unlink(missing_ok=True)
            state = attempt(folder, computed, n)
            result["kills"] += os.WIFSIGNALED(state) and os.WTERMSIG(state) == signal.SIGKILL
            result["repeated"] += sorted((before & set(lines(computed))) - allowed)
        result["attempts"] += 1
        found = digests(folder)
        if state != 0 or found != expected or Run.open(folder).verify():
            names = sorted(name for name, _ in found.items() ^ expected.items())
            result["different"].append([plan, state, names])
    return result


def share(mode: str, base: Path, count: int) -> dict[str, Any]:
    """Let 16 workers of one command share the cells; every fourth of them is killed."""
    folder, computed = base / "shared" / "run", base / "computed"
    run = toy_run(folder, *(f"cell-{n}" for n in range(count)))
    local.START = "fork"
    begin = local._work

    def faulty(pipe: Any, name: str, *arguments: Any) -> None:
        number = int(name.removeprefix("worker-"))
        if number % 4 == 0 and number < 16:
            Countdown(8 + 4 * number)
        begin(pipe, name, *arguments)

    local._work = faulty
    events: list[Any] = []
    job = ToyJob(folder.parent, log=computed)
    outcome = execute(job, run, executor="local", workers=16, on_event=events.append)
    if outcome.failed:  # two of the killed may have met in one step, which the next command does
        local._work = begin
        outcome = execute(job, run, executor="local", workers=16, on_event=events.append)
    began = Counter(lines(computed))
    lost = {f"{event.cell} {event.step}" for event in events if event.kind in ("again", "failed")}
    noted = [entry for _, entry in progress_lines(folder) if entry["event"] == "worker lost"]
    return {
        "killed": len({entry["worker"] for entry in noted}),
        "failed": len(outcome.failed),
        "lost": sorted(set(run.cells) - set(outcome.done) - set(outcome.skipped)),
        # Only a step whose worker was killed in it may have been started twice.
        "doubled": sorted(step for step, times in began.items() if times > 1 and step not in lost),
        "problems": run.verify(),
    }


def unruly(mode: str, base: Path, count: int) -> dict[str, Any]:
    """Let 16 processes that do not know of each other do the same steps; 4 of them are killed.

    So do workers on a node that is lost to the command but lives on.
    """
    names = tuple(f"cell-{n}" for n in range(count))
    whole, run = toy_run(base / "whole", *names), toy_run(base / "unruly", *names)
    work(whole)

    def do_steps(seed: int) -> None:
        if seed < 4:
            Countdown(12 * (1 + seed))
        cells = list(names)
        random.Random(seed).shuffle(cells)
        worker = Worker(ToyJob(base), run.path, f"worker-{seed}")
        for cell in cells:
            for step in (*STEPS, FINISH):
                # Whatever fails, failed because another was faster.
                if not run.cell(cell).ended():
                    worker.do(Task(cell, step))

    children = [start(partial(do_steps, seed)) for seed in range(16)]
    states = [os.waitpid(child, 0)[1] for child in children]
    work(run)
    different = digests(run.path).items() ^ digests(whole.path).items()
    return {
        "killed": sum(map(os.WIFSIGNALED, states[:4])),
        "failed": sum(state != 0 for state in states[4:]),
        "different": sorted(name for name, _ in different),
        "problems": run.verify(),
    }


def slow(mode: str, base: Path, mounts: int) -> dict[str, Any]:
    """Let two commands do the same study at once where every operation takes its time."""
    whole, near = base / "whole", [base / f"near-{n}" for n in range(mounts)]
    study(whole, base / "computed")

    def command(place: Path) -> None:
        if not mounts:
            draw = random.Random(os.getpid())
            files.DISK = HookedDisk(lambda *operation: time.sleep(draw.uniform(0, 2 * DELAY)))
        run = toy_run(place / "run", *CELLS)
        with run.lock("toy study", wait=300):
            if failed := work(run, ToyJob(base)).failed:
                raise StoreError(str(failed))

    def stoppable(place: Path) -> None:
        with contextlib.suppress(StoreError if mounts == 2 else ()):
            return command(place)
        os._exit(3)

    with mounted(base / "far", *near) as problem:
        if problem:
            return {"skipped": problem}
        places = near or [base / "far"]
        children = [start(partial(stoppable, place)) for place in (places[0], places[-1])]
        states = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        again = in_child(partial(command, places[0]))
    different = digests(base / "far" / "run").items() ^ digests(whole).items()
    return {
        "ends": sorted(states),
        "again": again,
        "different": sorted(name for name, _ in different),
        "problems": Run.open(base / "far" / "run").verify(),
    }


MODES = {"workers": share, "unruly": unruly, "slow": slow}


def main(mode: str, base: Path, count: int) -> None:
    study(base / "warm", base / "warm-computed")  # loads every library once, before the forks
    print(json.dumps(MODES.get(mode, kill)(mode, base, count)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
