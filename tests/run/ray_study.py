"""Drives the Ray executor from a process of its own, as a command does; prints one JSON document.

ray_study.py plain FOLDER      a cluster of its own
ray_study.py cluster FOLDER    two nodes, one of which is killed in the middle
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from toy import ToyJob, toy_terms

from palimpsest.run.executor import Event, Outcome, execute
from palimpsest.run.status import read_progress
from palimpsest.run.store import Run
from palimpsest.run.versions import code_version, package_versions


def real_run(folder: Path, *cells: str) -> Run:
    """Return a run of toy cells that was made by the code of this machine, as nodes check."""
    terms = replace(toy_terms(cells), code=code_version(), packages=package_versions())
    return Run.create_or_resume(folder, terms)


def as_json(outcome: Outcome) -> dict[str, Any]:
    failed = {cell: [failure.kind, failure.reason] for cell, failure in outcome.failed.items()}
    return {"done": list(outcome.done), "failed": failed, "skipped": list(outcome.skipped)}


def until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.05)


def plain(folder: Path) -> dict[str, Any]:
    run = real_run(folder / "ray", "a", "fails-1", "dies-1")
    return as_json(execute(ToyJob(folder), run, executor="ray", workers=2))


def cluster(folder: Path) -> dict[str, Any]:
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_worker_niceness", "0")
    quiet = {"include_dashboard": False, "object_store_memory": 100 * 1024 * 1024}
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **quiet})
    second = nodes.add_node(num_cpus=1, object_store_memory=100 * 1024 * 1024)
    events: list[Event] = []
    killed: list[str] = []

    def watch(event: Event) -> None:
        events.append(event)
        started = {e.cell for e in events if (e.kind, e.step) == ("step", "part-1")}
        if len(started) == 2 and not killed:
            killed.append(event.cell)
            threading.Thread(target=lose_a_node).start()

    def lose_a_node() -> None:
        # Both workers wait in the middle of a cell.
        until(lambda: [w.step for w in read_progress(run.path).at_work] == ["part-1"] * 2)
        nodes.remove_node(second, allow_graceful=False)
        # A worker outlives its node for a moment, in which it must not finish.
        until(lambda: any(event.kind == "again" for event in events))
        (folder / "go").touch()

    run = real_run(folder / "ray", "held-1", "held-2")
    # More workers than the cluster has room for: those that start do the work.
    where = {"executor": "ray", "address": nodes.address}
    outcome = execute(ToyJob(folder), run, workers=3, on_event=watch, **where)
    nodes.shutdown()
    again = sorted(event.step for event in events if event.kind == "again")
    return as_json(outcome) | {"again": again, "killed": len(killed)}


if __name__ == "__main__":
    try:
        print(json.dumps({"plain": plain, "cluster": cluster}[sys.argv[1]](Path(sys.argv[2]))))
    except Exception as error:
        # Ray's own limit of 30 seconds for its processes, on a machine that is too busy for it.
        if "timed out during startup" not in str(error):
            raise
        sys.exit(os.EX_TEMPFAIL)
