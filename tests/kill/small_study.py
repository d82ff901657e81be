"""A small real study, and everything that is done to it.

A server: it loads every library once, runs the study undisturbed, and then answers each request (a
line "MODE ARGUMENT" on stdin) with a line of JSON. Every attempt is a forked child that runs the
command `palimpsest study`, all but its report, on tiny cells of pocket/qwen2-s.

    kills N         SIGKILL to a study of one cell or its worker at N random instants, then resume
    crowds N        the same with two cells and two workers
    spawned N       the same with workers that are started afresh, as outside of tests
    operations K    SIGKILL at every K-th store operation of a cell, then resume
    signals N       SIGTERM and SIGINT in turn, at random instants, then resume
    same LIST       other numbers of workers and executors, such as local-2,local-4,ray-2
    nodes _         two Ray nodes, one of which is killed, then a signal, then a resume
    full _          a file system without room, made larger for the second attempt
    readonly _      a file system that may only be read, then one that may be written
    deleted _       a cell's folder deleted under the worker, then a second attempt
    second _        a second command while the first one works, and after it was killed

The study's CPU time, not the clock, says when to strike, so that a busy machine spreads the
instants as evenly as an idle one.
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
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from countdown import Countdown
from palimpsest.engine.matrix import StudyJob, run_cell, start
from palimpsest.run.graph import CellWork
from palimpsest.run.locks import holder

from palimpsest import cli
from palimpsest.certificate import certify
from palimpsest.config.plan import Counts, MethodGrid, Plan
from palimpsest.config.presets import preset
from palimpsest.run import local, progress
from palimpsest.run.store import Cell, Run, digest, file_digest

SEED = os.environ.get("PALIMPSEST_SEED", "7")
USUAL = local.START


def small_plan(cells: int = 2) -> Plan:
    plan = preset("demo")
    return replace(
        plan,
        name="small",
        seeds=tuple(range(cells)),
        facts=Counts(forget=2, retain=1, probes=8, phrasings=1),
        injection=replace(plan.injection, steps=1, fact_items=2, general_items=1),
        unlearning=replace(plan.unlearning, steps=1, forget_items=1, retain_items=1),
        round_trip=replace(plan.round_trip, steps=1, chunks=1, items=2),
        general=replace(plan.general, train_pieces=4, scored_pieces=1, piece_tokens=8),
        methods=(MethodGrid("kl_reversion", (("weight", (3.0,)),)), MethodGrid("task_vector")),
        panel=replace(plan.panel, models=("suppression", "router", "embedding")),
        replication=replace(plan.replication, draws=2),
    )


# -- one attempt -----------------------------------------------------------------------------------


def study(folder: Path, *options: str) -> None:
    """Run or resume the study as the command does; ends the process with the exit code."""
    arguments = [str(folder.parent / "plan.yaml"), "--out", str(folder), *options]
    sys.argv = ["palimpsest", "study", *arguments]
    cli.studies._answer = lambda run, as_json: None  # the report is no part of the study
    cli.main()


def launch(folder: Path, work: Callable[..., None], *arguments: Any) -> int:
    """Begin some work in a forked child with a process group of its own; gives back its pid."""
    child = os.fork()
    if child:
        return child
    try:
        end_with_parent()
        os.setpgid(0, 0)
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
    """Wait until a child and its children have used so much CPU time, or are over.

    Gives whether it still lives, and the CPU seconds seen.
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


def log(folder: Path) -> list[dict[str, Any]]:
    """What the workers wrote about their steps."""
    return [line for _, line in progress.lines(folder)]


def stored(folder: Path) -> list[str]:
    """The steps that were stored, as often as they were."""
    lines = [line for line in log(folder) if line["event"] == "done"]
    return [f"{line['cell']} {line['step']}" for line in lines]


def said(folder: Path) -> str:
    return Path(f"{folder}.said").read_text()


def over_at(folder: Path) -> float:
    """When the last command on a folder was over; infinite if it never came to its end."""
    path = Path(f"{folder}.over")
    return float(path.read_text()) if path.exists() else math.inf


def snapshot(folder: Path) -> dict[str, str]:
    """The digest of every file of a run but what its workers say and hold."""
    kept = {p: p.relative_to(folder) for p in sorted(folder.rglob("*")) if p.is_file()}
    passing = {"progress", "locks"}
    return {str(name): file_digest(p) for p, name in kept.items() if name.parts[0] not in passing}


def repeated(folder: Path) -> list[str]:
    """The steps that were stored more than once."""
    steps = stored(folder)
    return sorted(step for step in set(steps) if steps.count(step) > 1)


def differing(expected: dict[str, str], found: dict[str, str]) -> list[str]:
    return sorted(name for name in expected | found if expected.get(name) != found.get(name))


def held(folder: Path) -> list[str]:
    """The locks of a run that a live process holds."""
    return sorted(path.name for path in (folder / "locks").glob("*.lock") if holder(path))


class Study:
    """An undisturbed study of so many cells, and what is done to others like it."""

    def __init__(self, base: Path, cells: int) -> None:
        self.base = base
        self.plan = small_plan(cells)
        self.workers = ("--workers", str(cells))
        base.mkdir()
        (base / "plan.yaml").write_text(json.dumps(self.plan.as_dict()))
        whole = base / "whole"
        run = start(self.plan, whole)
        self.cells = run.cells
        for cell in self.cells:  # here, in this process, which so loads all that children need
            run_cell(whole, cell)
        self.expected = snapshot(whole)
        self.certificate = digest(certify(whole, base / "whole.zip").read_bytes())
        local.START = "fork"
        child = launch(base / "timed", study, *self.workers)
        _, self.seconds = until_spent(child, 3600.0)
        assert ended(child) == 0, said(base / "timed")
        assert snapshot(base / "timed") == self.expected
        self.draw = random.Random(SEED)

    def compared(self, folder: Path, what: str, *, resume: bool = True) -> dict[str, Any]:
        """What differs from the undisturbed study, after one more command if asked."""
        code = ended(launch(folder, study)) if resume else 0
        found = snapshot(folder)
        different = differing(self.expected, found)
        certificate = ""
        if not different:
            certificate = digest(certify(folder, self.base / "other.zip").read_bytes())
        result = {
            "what": what,
            "exit": code,
            "different": different,
            "verdict": certificate == self.certificate,
            "repeated": repeated(folder),
            "locks": held(folder),
            "said": said(folder),
        }
        shutil.rmtree(folder)
        return result

    # -- ends ----------------------------------------------------------------------------------

    def kills(self, count: str) -> list[dict[str, Any]]:
        results, landed, number = [], 0, 0
        while landed < int(count) and number < 2 * int(count) + 8:
            folder = self.base / f"killed-{number}"
            # One instant in each of `count` equal parts of the study, whose end is uncertain.
            share = 0.95 * (landed + self.draw.random()) / int(count)
            child = launch(folder, study, *self.workers)
            living, _ = until_spent(child, share * self.seconds)
            begun = {line["pid"] for line in log(folder) if "cell" in line}
            workers = sorted(begun & children(child))
            target = workers[0] if workers and number % 2 else child
            if living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(target, signal.SIGKILL)
            code = ended(child)
            hit = living and (code == -9 or target != child)
            result = self.compared(folder, "study" if target == child else "worker")
            results.append(result | {"share": round(share, 4), "killed": code, "landed": hit})
            with open(self.base / "progress.jsonl", "a") as file:  # for whoever waits
                file.write(json.dumps(results[-1]) + "\n")
            landed, number = landed + hit, number + 1
        return results

    def crowds(self, count: str) -> list[dict[str, Any]]:
        return self.kills(count)

    def spawned(self, count: str) -> list[dict[str, Any]]:
        forked, local.START = self.seconds, USUAL
        try:
            # A worker that is started afresh loads torch first.
            self.seconds = forked + 8.0
            return self.kills(count)
        finally:
            self.seconds, local.START = forked, "fork"

    def operations(self, stride: str) -> list[dict[str, Any]]:
        def one_cell(folder: Path, fault: int) -> None:
            counted = Countdown(fault or None)
            run_cell(folder, self.cells[0])
            (self.base / "operations").write_text(str(counted.operations))

        def begun(folder: Path) -> Path:
            start(self.plan, folder)
            return folder

        first = begun(self.base / "counted")
        assert ended(launch(first, one_cell, 0)) == 0, said(first)
        total = int((self.base / "operations").read_text())
        results = []
        for number in range(1, total + 1, int(stride)):
            folder = begun(self.base / f"operation-{number}")
            code = ended(launch(folder, one_cell, number))
            again = ended(launch(folder, one_cell, 0))
            one = f"cells/{self.cells[0]}/"
            expected = {n: d for n, d in self.expected.items() if n.startswith(one)}
            found = {n: d for n, d in snapshot(folder).items() if n.startswith(one)}
            results.append(
                {
                    "what": number,
                    "of": total,
                    "killed": code,
                    "exit": again,
                    "different": differing(expected, found),
                    "repeated": repeated(folder),
                    "said": said(folder),
                }
            )
            shutil.rmtree(folder)
        return results

    def signals(self, count: str) -> list[dict[str, Any]]:
        results, landed = [], 0
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
            late = living and code == 0 and after < 0
            hit = living and not late
            left |= {"share": round(share, 4), "after": after, "late": late, "landed": hit}
            results.append(self.compared(folder, signum.name) | left)
            with open(self.base / "progress.jsonl", "a") as file:
                file.write(json.dumps(results[-1]) + "\n")
            landed += hit
        return results

    # -- other ways to run it ------------------------------------------------------------------

    def same(self, executors: str) -> list[dict[str, Any]]:
        results = []
        for name in executors.split(","):
            folder = self.base / name
            kind, workers = name.split("-")
            local.START = USUAL
            options = ("--executor", kind, "--workers", workers)
            code = ended(launch(folder, study, *options))
            local.START = "fork"
            results.append(self.compared(folder, name, resume=False) | {"exit": code})
        return results

    def nodes(self, _: str) -> list[dict[str, Any]]:
        folder = self.base / "nodes"
        for _ in range(3):
            code = ended(launch(folder, two_nodes))
            if code == 0 or "timed out during startup" not in said(folder):
                break
        else:
            return [{"skipped": "Ray itself did not start within its 30 seconds, three times"}]
        answer = json.loads((self.base / "nodes.json").read_text()) if code == 0 else {}
        return [self.compared(folder, "nodes", resume=False) | answer | {"exit": code}]

    # -- a disk that will not ------------------------------------------------------------------

    def full(self, _: str) -> list[dict[str, Any]]:
        return self.mounted("full", "size=1500k", "remount,size=64m")

    def readonly(self, _: str) -> list[dict[str, Any]]:
        return self.mounted("readonly", "ro,size=64m", "remount,rw")

    def mounted(self, name: str, first: str, then: str) -> list[dict[str, Any]]:
        """Two attempts on a file system of their own, the first of which it makes impossible."""
        place = self.base / name
        place.mkdir()
        # Mounts of this process alone (CLONE_NEWNS), where it may have any.
        apart = ctypes.CDLL(None).unshare(0x00020000) == 0
        if not apart or subprocess.call(["mount", "--make-rprivate", "/"]) != 0:
            return [{"skipped": "mounting a file system needs root"}]
        subprocess.run(["mount", "-t", "tmpfs", "-o", first, "none", place], check=True)
        try:
            (self.base / f"{name}.yaml").write_text((self.base / "plan.yaml").read_text())
            folder = place / "run"

            def work(_: Path) -> None:
                sys.argv = ["palimpsest", "study", str(self.base / f"{name}.yaml")]
                sys.argv += ["--out", str(folder)]
                cli.studies._answer = lambda run, as_json: None
                cli.main()

            told = self.base / f"{name}-attempt"
            code = ended(launch(told, work))
            left = {"first": code, "message": said(told)}
            left["torn"] = Run.open(folder).verify() if (folder / "terms.json").exists() else ()
            subprocess.run(["mount", "-o", then, place], check=True)
            again = ended(launch(told, work))
            shutil.copytree(folder, self.base / f"{name}-kept")
            Path(f"{self.base / name}-kept.said").write_text(said(told))
            result = self.compared(self.base / f"{name}-kept", name, resume=False)
            return [result | left | {"exit": again}]
        finally:
            subprocess.run(["umount", place], check=True)

    def deleted(self, _: str) -> list[dict[str, Any]]:
        folder = self.base / "deleted"
        child = launch(folder, study)
        # After the first step of the first cell, so that something is lost.
        while not over(child) and not stored(folder):
            time.sleep(0.001)
        shutil.rmtree(folder / "cells" / self.cells[0], ignore_errors=True)
        code = ended(child)
        # What was stored before is made again; so is what was made from it.
        first = {"first": code, "message": said(folder), "lost": stored(folder)}
        first["sound"] = Run.open(folder).cell(self.cells[1]).finished()
        return [self.compared(folder, "deleted") | first]

    def second(self, _: str) -> list[dict[str, Any]]:
        folder, other = self.base / "shared", self.base / "second"
        child = launch(folder, study)
        while not over(child) and not held(folder):
            time.sleep(0.001)

        def beside(_: Path) -> None:
            study(folder)

        code = ended(launch(other, beside))
        told = {"second": code, "message": said(other), "first": child}
        told["alive"] = not over(child)
        os.kill(child, signal.SIGKILL)
        ended(child)
        return [self.compared(folder, "second") | told]


@dataclass
class HeldWork:
    """The work of a cell that waits before a worker's second step until a file `go` is there."""

    work: CellWork
    go: Path
    begun: int = 0

    def __post_init__(self) -> None:
        self.steps = self.work.steps

    def do(self, step: str, cell: Cell) -> None:
        self.begun += 1
        while self.begun == 2 and not self.go.exists():
            time.sleep(0.02)
        self.work.do(step, cell)

    def finish(self, cell: Cell) -> Any:
        return self.work.finish(cell)


@dataclass(frozen=True)
class HeldJob:
    """A real study, held until the file beside its run folder is there."""

    run_path: Path

    def cell(self, cell_id: str) -> HeldWork:
        return HeldWork(StudyJob(self.run_path).cell(cell_id), self.run_path.parent / "go")


def two_nodes(folder: Path) -> None:
    """The study on two Ray nodes, of which the second is killed while both are at work."""
    from ray.cluster_utils import Cluster
    from small_study import HeldJob  # by the name under which the nodes find it

    from palimpsest.run.executor import Event
    from palimpsest.run.ray import RayExecutor

    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ["PYTHONPATH"] += f":{Path(__file__).parent}"
    memory = {"object_store_memory": 100 * 1024 * 1024}
    head = {"num_cpus": 1, "include_dashboard": False, **memory}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    doomed = nodes.add_node(num_cpus=1, **memory)
    run = start(small_plan(), folder)
    begun: list[str] = []
    killed: list[str] = []
    events: list[Event] = []

    def watch(event: Event) -> None:
        events.append(event)
        if event.kind != "step" or killed:
            return
        begun.append(event.worker)
        if sorted(begun.count(worker) for worker in {*begun}) == [2, 2]:
            # Both workers have stored a step and are held at their second one.
            killed.append(event.step)
            nodes.remove_node(doomed, allow_graceful=False)
            # A worker outlives its node for a moment, in which it must not go on.
            while len(progress.read(run.path).at_work) > 1:
                time.sleep(0.05)
            (folder.parent / "go").touch()

    try:
        with run.lock("palimpsest study"):
            ray = RayExecutor(nodes.address)
            job = HeldJob(run.path)
            outcome = ray.execute(job, run.path, run.cells, workers=2, on_event=watch)
    finally:
        nodes.shutdown()
    answer = {
        "done": list(outcome.done),
        "failed": {cell: failure.reason for cell, failure in outcome.failed.items()},
        "killed": killed,
        "again": sorted(event.step for event in events if event.kind == "again"),
    }
    (folder.parent / "nodes.json").write_text(json.dumps(answer))


def main(base: Path) -> None:
    end_with_parent()
    # Whatever a library prints must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    studies: dict[int, Study] = {}
    for line in sys.stdin:
        mode, argument = line.split()
        cells = 1 if mode in ("kills", "operations") else 2
        if cells not in studies:
            studies[cells] = Study(base / f"cells-{cells}", cells)
        done = getattr(studies[cells], mode)(argument)
        print(json.dumps(done), file=answers, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
