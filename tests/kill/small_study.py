"""A small real study, and what is done to it; prints one JSON document.

    small_study.py kills FOLDER COUNT      SIGKILL to the study or one of its workers, then resume
    small_study.py signals FOLDER COUNT    SIGTERM and SIGINT in turn, then resume
    small_study.py same FOLDER EXECUTORS   other numbers of workers, other executors: local-2,ray-2

The study is two cells of pocket/qwen2-s (four with PALIMPSEST_FULL=1) trained for a few steps.
Each attempt is a forked child, which has torch loaded already; its workers are real spawned ones.
It is begun with two of them and resumed with one. FOLDER/whole is the study nobody disturbed.
"""

import contextlib
import ctypes
import json
import os
import random
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from palimpsest.plan import MethodGrid, Plan
from palimpsest.presets import preset
from palimpsest.run.executor import Interrupted, executor, silent
from palimpsest.run.store import file_digest
from palimpsest.study.matrix import start


def small_plan() -> Plan:
    plan = preset("demo")
    return replace(
        plan,
        name="small",
        seeds=(0, 1, 2, 3) if os.environ.get("PALIMPSEST_FULL") == "1" else (0, 1),
        injection=replace(plan.injection, steps=6),
        unlearning=replace(plan.unlearning, steps=4),
        round_trip=replace(plan.round_trip, steps=5),
        general=replace(plan.general, train_pieces=80, scored_pieces=4),
        methods=(MethodGrid("kl_reversion", (("weight", (3.0, 12.0)),)), MethodGrid("task_vector")),
        panel=replace(plan.panel, interpolations=(0.5,)),
        replication=replace(plan.replication, draws=1),
    )


def study(folder: Path, name: str, workers: int) -> int:
    """Run or resume the study as a command does; gives back the exit code."""
    run = start(small_plan(), folder)
    try:
        with run.lease("small study", wait=30.0):
            run_cells = executor(name).execute
            outcome = run_cells(run.path, run.cells, workers=workers, on_event=silent)
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        return stopped.exit_code
    for cell, reason in outcome.failed.items():
        print(f"{cell}: {reason}", file=sys.stderr)
    return 1 if outcome.failed else 0


def launch(folder: Path, name: str = "local", workers: int = 2) -> int:
    """Begin the study in a forked child with a process group of its own; gives back its pid."""
    child = os.fork()
    if child:
        return child
    try:
        end_with_parent()
        os.setpgid(0, 0)
        said = os.open(f"{folder}.said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(said, 1)
        os.dup2(said, 2)
        code = study(folder, name, workers)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = 99
    sys.stderr.flush()
    os._exit(code)


def end_with_parent() -> None:
    """Have the kernel send SIGTERM when the parent dies, so that a test given up leaves nothing."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def children(pid: int) -> set[int]:
    try:
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return set()


def log(folder: Path) -> list[dict[str, Any]]:
    path = folder / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def said(folder: Path) -> str:
    return Path(f"{folder}.said").read_text()


def snapshot(folder: Path) -> dict[str, str]:
    """The digest of every file of a run but its log and its leases."""
    kept = [p for p in sorted(folder.rglob("*")) if p.name != "log.jsonl" and p.is_file()]
    return {str(p.relative_to(folder)): file_digest(p) for p in kept if ".leases" not in p.parts}


def repeated(folder: Path) -> list[str]:
    """The steps that were finished more than once."""
    steps = [f"{line['cell']} {line['step']}" for line in log(folder) if line["event"] == "step"]
    return sorted(step for step in set(steps) if steps.count(step) > 1)


def whole(base: Path) -> tuple[dict[str, str], float]:
    """The undisturbed study: its files, and how long it took."""
    folder, timed = base / "whole", base / "seconds"
    if not timed.exists():
        began = time.monotonic()
        code = ended(launch(folder, workers=1))
        assert code == 0, said(folder)
        timed.write_text(str(time.monotonic() - began))
    return snapshot(folder), float(timed.read_text())


def verdict(folder: Path, expected: dict[str, str], what: str) -> dict[str, Any]:
    """Resume and compare; the folder goes when all is well."""
    resumed = ended(launch(folder, workers=1))
    found = snapshot(folder)
    result = {
        "what": what,
        "exit": resumed,
        "different": sorted(n for n in expected | found if expected.get(n) != found.get(n)),
        "repeated": repeated(folder),
        "said": said(folder),
    }
    shutil.rmtree(folder)
    return result


def kills(base: Path, count: int) -> list[dict[str, Any]]:
    expected, seconds = whole(base)
    draw = random.Random(os.environ.get("PALIMPSEST_SEED", "7"))
    results = []
    for number in range(count):
        folder = base / f"killed-{number}"
        # One instant in each of `count` equal parts of the study, the worker's start included.
        instant = seconds * (number + draw.random()) / count
        child = launch(folder)
        time.sleep(instant)
        # Of the study's children only those that have begun a cell are workers.
        begun = {line["pid"] for line in log(folder) if "cell" in line}
        workers = sorted(begun & children(child))
        target = workers[0] if workers and number % 2 else child
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, signal.SIGKILL)
        code = ended(child)
        results.append(
            verdict(folder, expected, "study" if target == child else "worker")
            | {"instant": round(instant, 3), "killed": code}
        )
    return results


def signals(base: Path, count: int) -> list[dict[str, Any]]:
    expected, _ = whole(base)
    draw = random.Random(11)
    results = []
    for number in range(count):
        folder = base / f"stopped-{number}"
        signum = (signal.SIGTERM, signal.SIGINT)[number % 2]
        child = launch(folder)
        # After one to eight of fourteen steps or more, so that it is surely in the middle.
        steps = draw.randint(1, 8)
        while sum(line["event"] == "step" for line in log(folder)) < steps:
            time.sleep(0.01)
        time.sleep(draw.random() / 10)
        # Ctrl-C on a terminal reaches the workers, too.
        (os.killpg if signum == signal.SIGINT else os.kill)(child, signum)
        began = time.monotonic()
        code = ended(child)
        lasted = time.monotonic() - began
        stopped = {
            "message": said(folder),
            "leases": [path.name for path in (folder / ".leases").iterdir()],
            "stop": code - 128,
            "seconds": round(lasted, 3),
        }
        results.append(verdict(folder, expected, signum.name) | stopped)
    return results


def same(base: Path, executors: str) -> list[dict[str, Any]]:
    expected, _ = whole(base)
    results = []
    for name in executors.split(","):
        folder = base / name
        kind, workers = name.split("-")
        began = time.monotonic()
        code = ended(launch(folder, kind, int(workers)))
        lasted = time.monotonic() - began
        found = snapshot(folder)
        results.append(
            {
                "what": name,
                "exit": code,
                "different": sorted(n for n in expected | found if expected.get(n) != found.get(n)),
                "repeated": repeated(folder),
                "said": said(folder),
                "seconds": round(lasted, 3),
            }
        )
    return results


if __name__ == "__main__":
    end_with_parent()
    mode, folder, rest = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    if mode == "same":
        print(json.dumps(same(folder, rest)))
    else:
        print(json.dumps({"kills": kills, "signals": signals}[mode](folder, int(rest))))
