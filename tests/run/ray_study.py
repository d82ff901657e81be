"""Drives the Ray executor from a process of its own, as a study does; prints one JSON document.

ray_study.py cluster FOLDER    two nodes, one of which is killed in the middle
ray_study.py signal FOLDER     a cluster of its own, stopped by SIGTERM in the middle
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toy_job import toy_job, toy_run

from palimpsest.run import progress
from palimpsest.run.executor import Event, Interrupted, Outcome
from palimpsest.run.ray import RayExecutor


def as_json(outcome: Outcome) -> dict[str, Any]:
    failed = {cell: [failure.kind, failure.reason] for cell, failure in outcome.failed.items()}
    return {"done": list(outcome.done), "failed": failed, "skipped": list(outcome.skipped)}


def until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.05)


def cluster(folder: Path) -> dict[str, Any]:
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_worker_niceness", "0")
    quiet = {"include_dashboard": False, "object_store_memory": 100 * 1024 * 1024}
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **quiet})
    second = nodes.add_node(num_cpus=1, object_store_memory=100 * 1024 * 1024)
    held = ["held-1", "held-2"]
    events: list[Event] = []
    killed: list[str] = []

    def watch(event: Event) -> None:
        events.append(event)
        begun = {e.cell for e in events if (e.kind, e.step) == ("step", "part-1")}
        if len(begun) == 2 and not killed:
            killed.append(event.cell)
            threading.Thread(target=lose_a_node).start()

    def lose_a_node() -> None:
        # Both workers wait in the middle of a cell.
        until(lambda: {work.step for work in progress.read(run.path).at_work} == {"part-1"})
        until(lambda: len(progress.read(run.path).at_work) == 2)
        nodes.remove_node(second, allow_graceful=False)
        # A worker outlives its node for a moment, in which it must not finish.
        until(lambda: any(event.kind == "again" for event in events))
        (folder / "go").touch()

    ray = RayExecutor(nodes.address)
    calm = ["a", "b", "fails-1", "dies-1"]
    run = toy_run(folder / "ray", [*calm, *held])
    # More workers than the cluster has room for: those that start do the work.
    first = ray.execute(toy_job(run), run.path, calm, workers=3)
    then = ray.execute(toy_job(run), run.path, run.cells, workers=2, on_event=watch)
    nodes.shutdown()
    return {
        "first": as_json(first),
        "then": as_json(then),
        "again": sorted(event.step for event in events if event.kind == "again"),
        "killed": len(killed),
    }


def stopped(folder: Path) -> dict[str, Any]:
    run = toy_run(folder / "ray", ["held-1", "held-2", "held-3"])
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    begun: set[str] = set()

    def watch(event: Event) -> None:
        if event.step == "part-1":
            begun.add(event.cell)
            if len(begun) == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    try:
        job = toy_job(run)
        RayExecutor().execute(job, run.path, run.cells, workers=2, on_event=watch)
    except Interrupted as error:
        return {
            "message": str(error),
            "exit": error.exit_code,
            "steps": {cell: run.cell(cell).steps() for cell in run.cells},
            "at work": len(progress.read(run.path).at_work),
            "handlers": handlers == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)],
        }
    return {"message": "was not stopped"}


MODES: dict[str, Callable[[Path], dict[str, Any]]] = {"cluster": cluster, "signal": stopped}

if __name__ == "__main__":
    try:
        print(json.dumps(MODES[sys.argv[1]](Path(sys.argv[2]))))
    except Exception as error:
        # Ray's own limit of 30 seconds for its processes, on a machine that is too busy for it.
        if "timed out during startup" not in str(error):
            raise
        sys.exit(os.EX_TEMPFAIL)
