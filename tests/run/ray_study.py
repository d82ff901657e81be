"""Drives the Ray executor from a process of its own, as a study does; prints one JSON document.

ray_study.py cluster FOLDER    two nodes, one of which is killed in the middle
ray_study.py signal FOLDER     a cluster of its own, stopped by SIGTERM in the middle
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toy_cells import go, toy_run

from palimpsest.run.executor import Event, Interrupted, Outcome
from palimpsest.run.ray import RayExecutor

TOY = "toy_cells:toy_cell"


def as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "done": list(outcome.done),
        "failed": outcome.failed,
        "skipped": list(outcome.skipped),
    }


def cluster(folder: Path) -> dict[str, Any]:
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_worker_niceness", "0")
    quiet = {"include_dashboard": False, "object_store_memory": 100 * 1024 * 1024}
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **quiet})
    second = nodes.add_node(num_cpus=1, object_store_memory=100 * 1024 * 1024)
    held = ["held-1", "held-2"]
    events: list[Event] = []
    running: set[str] = set()
    killed: list[str] = []

    def watch(event: Event) -> None:
        events.append(event)
        if event.done == 1 and event.cell in held:
            running.add(event.cell)
        # Both nodes have a cell between its first and its last step.
        if len(running) == 2 and not killed:
            killed.append(event.cell)
            nodes.remove_node(second, allow_graceful=False)
            # A worker outlives its node for a moment, in which it must not finish.
            while all(run.cell(cell).running() for cell in held):
                time.sleep(0.05)
            go(run.path).touch()

    ray = RayExecutor(nodes.address, function=TOY)
    calm = ["a", "b", "fails-1", "dies-1"]
    run = toy_run(folder / "ray", [*calm, *held])
    first = ray.execute(run.path, calm, workers=2)
    then = ray.execute(run.path, run.cells, workers=2, on_event=watch)
    nodes.shutdown()
    return {
        "first": as_json(first),
        "then": as_json(then),
        "again": sorted(event.cell for event in events if event.kind == "again"),
        "labels": [event.label for event in events if event.cell == "held-1"],
        "killed": len(killed),
    }


def stopped(folder: Path) -> dict[str, Any]:
    run = toy_run(folder / "ray", ["held-1", "held-2", "held-3"])
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    running: set[str] = set()

    def watch(event: Event) -> None:
        if event.done == 2:
            running.add(event.cell)
            if len(running) == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    try:
        RayExecutor(function=TOY).execute(run.path, run.cells, workers=2, on_event=watch)
    except Interrupted as error:
        return {
            "message": str(error),
            "exit": error.exit_code,
            "steps": {cell: run.cell(cell).steps() for cell in run.cells},
            "leases": [path.name for path in (run.path / ".leases").iterdir()],
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
