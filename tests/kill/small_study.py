"""A small real study, and everything that is done to it.

A server: it loads every library once, runs the study undisturbed, and then answers each request (a
line "MODE ARGUMENT" on stdin) with a line of JSON. Every attempt is a forked child that runs the
command `palimpsest study`, all but its report, on tiny cells of pocket/qwen2-s.

    kills N         SIGKILL to a study of one cell or its worker at N random instants, then resume
    crowds N        the same with two cells and two workers
    late N          the same in late steps: candidates, known-label models and finish in turn
    operations N    SIGKILL at N disk operations of a cell, up to the last, then resume
    signals N       SIGTERM and SIGINT in turn, at random instants, then resume
    same LIST       other numbers of workers and executors, such as local-2,local-4,ray-2
    filled LIST     a file system that becomes full in the middle of a step, then has room again;
                    steps with the bytes left to them, such as train-reference=400000
    far _           a network file system, with two workers and a second command

Where no step says when to strike, the study's CPU time does and not the clock, so that a busy
machine spreads the instants as evenly as an idle one.
"""

import contextlib
import ctypes
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from far import mounted
from toy import Countdown, digests

import palimpsest
from palimpsest import cli
from palimpsest.certificate import certify
from palimpsest.config.load import as_dict
from palimpsest.config.plan import Plan
from palimpsest.config.presets import preset
from palimpsest.config.sections import Facts, MethodGrid
from palimpsest.report import page
from palimpsest.run import local
from palimpsest.run.executor import Worker
from palimpsest.run.files import file_digest
from palimpsest.run.locks import holder
from palimpsest.run.status import progress_lines, read_progress
from palimpsest.run.steps import Task
from palimpsest.run.store import Run

SEED = os.environ.get("PALIMPSEST_SEED", "7")
USUAL = local.START


def small_plan(cells: int = 2) -> Plan:
    plan = preset("demo")
    return replace(
        plan,
        name="small",
        seeds=tuple(range(cells)),
        facts=Facts(forget=2, retain=1, probes=8, phrasings=1),
        injection=replace(plan.injection, steps=1, fact_items=2, general_items=1),
        unlearning=replace(plan.unlearning, steps=1, forget_items=1, retain_items=1),
        reacquisition=replace(plan.reacquisition, steps=1, chunks=1, items=2),
        general=replace(plan.general, train_pieces=4, scored_pieces=1, piece_tokens=8),
        methods=(MethodGrid("kl_reversion", (("weight", (3.0,)),)), MethodGrid("task_vector")),
        known_label=("suppression", "router", "embedding"),
        replication=replace(plan.replication, draws=2),
    )


# -- one attempt -----------------------------------------------------------------------------------


def study(folder: Path, *options: str, plan: Path | None = None) -> None:
    """Run or resume the study as the command does; ends the process with the exit code."""
    plan = plan or folder.parent / "plan.yaml"
    sys.argv = ["palimpsest", "study", str(plan), "--out", str(folder), *options]
    cli.main()


def strike_in(step: str, mark: Path, strike: Callable[[], Callable[[], None]]) -> None:
    """Have `strike` called by the first worker of this process that starts a step, and what it
    returns when the step has ended, but not yet been reported."""
    do = Worker._do

    def struck(worker: Worker, task: Task) -> None:
        if task.step != step or mark.exists():
            return do(worker, task)
        mark.touch()
        after = strike()
        do(worker, task)
        after()

    Worker._do = struck  # type: ignore[method-assign]


def launch(folder: Path, work: Callable[..., None], *arguments: Any) -> int:
    """Start some work in a forked child with a process group of its own; return its pid."""
    child = os.fork()
    if child:
        return child
    try:
        end_with_parent()
        os.setpgid(0, 0)
        # A test in the background of a shell is started with SIGINT ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        said = os.open(f"{folder}.said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(said, 1)
        os.dup2(said, 2)
        work(folder, *arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = 99
    # The command is over; what comes now finds a process that only has to end.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    Path(f"{folder}.over").write_text(repr(time.monotonic()))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def end_with_parent() -> None:
    """Have the kernel send SIGTERM when the parent dies, so that a test given up leaves nothing."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def over(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def children(pid: int) -> set[int]:
    try:
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return set()


def until_spent(child: int, seconds: float) -> tuple[bool, float]:
    """Wait until a child and its children have used this much CPU time, or are over.

    Return whether it still lives, and the CPU seconds seen.
    """
    used: dict[int, int] = {}
    while not over(child):
        for each in {child, *children(child)}:
            with contextlib.suppress(OSError, IndexError):
                used[each] = int(Path(f"/proc/{each}/schedstat").read_text().split()[0])
        if sum(used.values()) / 1e9 >= seconds:
            return True, sum(used.values()) / 1e9
        time.sleep(0.001)
    return False, sum(used.values()) / 1e9


# -- what is left afterwards -----------------------------------------------------------------------


def stored(folder: Path) -> list[str]:
    """Return the steps that were stored, as often as they were."""
    lines = [line for _, line in progress_lines(folder) if line["event"] == "done"]
    return [f"{line['cell']} {line['step']}" for line in lines]


def said(folder: Path) -> str:
    return Path(f"{folder}.said").read_text()


def over_at(folder: Path) -> float:
    """Return when the last command on a folder was over; infinite if it never came to its end."""
    path = Path(f"{folder}.over")
    return float(path.read_text()) if path.exists() else math.inf


def evidence(folder: Path) -> dict[str, str]:
    """Return the digest of every file of a run but the tables and pages that show it."""
    shown = ("summary.json", "scores.parquet")
    return {name: found for name, found in digests(folder).items() if name not in shown}


def differing(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    return sorted({name for name, _ in expected.items() ^ found.items()})


def written(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return which file each stored step's manifest is, and when that was written."""
    found = {path: path.stat() for path in sorted(folder.glob("cells/*/steps/*/manifest.json"))}
    return {path.parent: (stat.st_ino, stat.st_mtime_ns) for path, stat in found.items()}


@contextlib.contextmanager
def own_file_system(place: Path, size: str) -> Iterator[Path | None]:
    """Mount a file system of some size, for this process and its children; None where it cannot."""
    place.mkdir()
    # Mounts of this process alone (CLONE_NEWNS), where it may have any.
    apart = ctypes.CDLL(None).unshare(0x00020000) == 0
    if not apart or subprocess.call(["mount", "--make-rprivate", "/"]) != 0:
        yield None
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def held(folder: Path) -> list[str]:
    """Return the locks of a run that a live process holds."""
    return sorted(path.name for path in (folder / "locks").glob("*.lock") if holder(path))


class Study:
    """An undisturbed study, and what is done to others like it."""

    def __init__(self, base: Path, cells: int) -> None:
        self.base = base
        self.plan = small_plan(cells)
        self.workers = ("--workers", str(cells))
        base.mkdir()
        (base / "plan.yaml").write_text(json.dumps(as_dict(self.plan)))
        whole = base / "whole"
        # Here, in this process, which so loads all that children need.
        self.cells = palimpsest.study(self.plan, whole).planned
        self.expected = evidence(whole)
        self.certificate = file_digest(certify(whole, base / "whole.zip"))
        local.START = "fork"
        child = launch(base / "timed", study, *self.workers)
        _, self.seconds = until_spent(child, 3600.0)
        assert ended(child) == 0, said(base / "timed")
        assert evidence(base / "timed") == self.expected
        self.draw = random.Random(SEED)

    def compared(self, folder: Path, what: str, *, resume: bool = True) -> dict[str, Any]:
        """Return what differs from the undisturbed study, after one more command if asked."""
        code = ended(launch(folder, study)) if resume else 0
        different = differing(self.expected, evidence(folder))
        # Equal files give an equal certificate; a few are made, which takes longer than the study.
        same = different or not resume or file_digest(certify(folder, self.base / "other.zip"))
        steps = stored(folder)
        result = {
            "what": what,
            "exit": code,
            "different": different,
            "certificate": same in (True, self.certificate),
            "repeated": sorted(step for step in set(steps) if steps.count(step) > 1),
            "locks": held(folder),
            "said": said(folder),
        }
        shutil.rmtree(folder)
        return result

    # -- ends ----------------------------------------------------------------------------------

    def kills(self, count: str) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        landed = number = 0
        while landed < int(count) and number < 2 * int(count) + 8:
            folder = self.base / f"killed-{number}"
            # One instant in each of `count` equal parts of the study, whose end is uncertain.
            share = 0.95 * (landed + self.draw.random()) / int(count)
            child = launch(folder, study, *self.workers)
            living, _ = until_spent(child, share * self.seconds)
            started = {line["pid"] for _, line in progress_lines(folder) if "cell" in line}
            workers = sorted(started & children(child))
            target = workers[0] if workers and number % 2 else child
            if living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(target, signal.SIGKILL)
            left = {"share": round(share, 4), "killed": ended(child), "message": said(folder)}
            hit = living and (left["killed"] == -9 or target != child)
            result = self.compared(folder, "study" if target == child else "worker")
            results.append(result | left | {"landed": hit})
            landed, number = landed + hit, number + 1
        return results

    crowds = kills

    def late(self, count: str) -> list[dict[str, Any]]:
        timed = self.base / "timed"
        seconds = {step: spent for _, step, spent in read_progress(timed).spent}
        steps = [step for step in seconds if not step.startswith(("train-", "measure-"))]

        def killed(folder: Path, step: str, after: float, worker: bool) -> None:
            def kill() -> Callable[[], None]:
                # In the worker, which was forked from the study.
                target = os.getpid() if worker else os.getppid()
                timer = threading.Timer(after, os.kill, (target, signal.SIGKILL))
                timer.start()
                return timer.join

            strike_in(step, Path(f"{folder}.struck"), kill)
            study(folder, *self.workers)

        results = []
        for number in range(int(count)):
            folder, step = self.base / f"late-{number}", steps[number % len(steps)]
            worker = (number + number // len(steps)) % 2 == 0
            after = self.draw.random() * seconds[step]
            Path(f"{folder}.struck").unlink(missing_ok=True)  # of an earlier request
            code = ended(launch(folder, killed, step, after, worker))
            left = {"killed": code, "step": step, "struck": Path(f"{folder}.struck").exists()}
            results.append(self.compared(folder, "worker" if worker else "study") | left)
        return results

    def operations(self, count: str) -> list[dict[str, Any]]:
        def inline(folder: Path, fatal: int) -> None:
            counted = Countdown(fatal or None)
            palimpsest.study(self.plan, folder)
            (self.base / "operations").write_text(str(counted.operations))

        shutil.rmtree(self.base / "counted", ignore_errors=True)  # of an earlier request
        assert ended(launch(self.base / "counted", inline, 0)) == 0, said(self.base / "counted")
        total = int((self.base / "operations").read_text())
        results = []
        for number in sorted({round(total * n / int(count)) for n in range(1, int(count) + 1)}):
            folder = self.base / f"operation-{number}"
            code = ended(launch(folder, inline, number))
            again = ended(launch(folder, inline, 0))
            result = self.compared(folder, str(number), resume=False)
            results.append(result | {"of": total, "killed": code, "exit": again})
        return results

    def signals(self, count: str) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        landed = 0
        while landed < int(count):
            folder = self.base / f"stopped-{len(results)}"
            signum = (signal.SIGTERM, signal.SIGINT)[landed % 2]
            child = launch(folder, study, *self.workers)
            share = 0.9 * (landed + self.draw.random()) / int(count)
            living, _ = until_spent(child, share * self.seconds)
            if living:
                # Ctrl-C on a terminal reaches the workers, too.
                try:
                    (os.killpg if signum == signal.SIGINT else os.kill)(child, signum)
                except ProcessLookupError:  # over, or not yet a group of its own
                    living = False
            sent = time.monotonic()
            code = ended(child)
            left = {"message": said(folder), "stop": code, "held": held(folder)}
            left["failed"] = [p.read_text() for p in folder.rglob("failed.json")]
            # A process takes its time to end: the command may be over while the process is not.
            after = over_at(folder) - sent
            hit = living and not (code == 0 and after < 0)
            left |= {"share": round(share, 4), "after": after, "landed": hit}
            results.append(self.compared(folder, signum.name) | left)
            landed += hit
        return results

    # -- other ways to run it ------------------------------------------------------------------

    def same(self, executors: str) -> list[dict[str, Any]]:
        results = []
        for name in executors.split(","):
            folder = self.base / name
            kind, workers = name.split("-")
            local.START = USUAL
            code = ended(launch(folder, study, "--executor", kind, "--workers", workers))
            local.START = "fork"
            results.append(self.compared(folder, name, resume=False) | {"exit": code})
        return results

    def filled(self, steps: str) -> list[dict[str, Any]]:
        """Make two attempts on a file system that is filled up in a step of the first."""
        return [self.filled_in(*step.split("=")) for step in steps.split(",")]

    def filled_in(self, step: str, room: str) -> dict[str, Any]:
        with own_file_system(self.base / f"filled-{step}", "64m") as place:
            if place is None:
                return {"skipped": "mounting a file system needs root"}
            ballast = place / "ballast"

            def fill() -> Callable[[], None]:
                with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
                    while True:
                        file.write(bytes(1 << 12))
                os.truncate(ballast, ballast.stat().st_size - int(room))
                return lambda: None

            folder, kept = place / "run", self.base / f"{step}-kept"

            def work(_: Path) -> None:
                strike_in(step, place / "struck", fill)
                study(folder, plan=self.base / "plan.yaml")

            code = ended(launch(kept, work))
            left = {"first": code, "message": said(kept), "torn": Run.open(folder).verify()}
            before = written(folder)
            ballast.unlink()
            again = ended(launch(kept, work))
            left["stored"] = [stored.name for stored in before]
            left["rewritten"] = [s.name for s in before if written(folder)[s] != before[s]]
            shutil.copytree(folder, kept)
            return self.compared(kept, step, resume=False) | left | {"exit": again}

    def far(self, _: str) -> list[dict[str, Any]]:
        """Let two workers share a run folder on a network file system; a second command comes."""
        near, kept = self.base / "near", self.base / "far-kept"
        with mounted(self.base / "far", near) as problem:
            if problem:
                return [{"skipped": problem}]
            folder, plan = near / "run", self.base / "plan.yaml"

            def work(_: Path) -> None:
                study(folder, "--workers", "2", plan=plan)

            child = launch(kept, work)
            while not stored(self.base / "far" / "run") and not over(child):
                time.sleep(0.01)
            second = ended(launch(self.base / "second", work))
            left = {"second": second, "message": said(self.base / "second")}
            code = ended(child)
            shutil.copytree(folder, kept)
            return [self.compared(kept, "far", resume=False) | left | {"exit": code}]


def main(base: Path) -> None:
    end_with_parent()
    # Whatever a library prints must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    page.write_report = lambda *given: base  # the report is no part of the study
    studies: dict[int, Study] = {}
    for line in sys.stdin:
        mode, argument = line.split()
        cells = 2 if mode == "crowds" else 1
        if cells not in studies:
            studies[cells] = Study(base / f"cells-{cells}", cells)
        done = getattr(studies[cells], mode)(argument)
        print(json.dumps(done), file=answers, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
