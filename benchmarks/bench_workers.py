"""One cell with 20 references on one worker, on two, and on Ray.

Two workers cannot do better than the machine: what two processes of pure matrix products gain over
one, measured beside the cell, is the measure; the bar is 0.85 of it. Ray is compared with two local
workers on a cluster that is already running; the bar is 5 % more time. Both from the first step
begun to the cell finished: starting the workers and the cluster is paid once per study and reported
on its own. All ways must give the same bytes.
"""

import argparse
import contextlib
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measuring
import pocket

from palimpsest.cell.launch import RunOptions, launch
from palimpsest.cell.study import StudyTask
from palimpsest.config.plan import Plan
from palimpsest.run.executor import Event
from palimpsest.run.files import file_digest

GAIN_BAR = 0.85
RAY_BAR = 0.05


def execute(plan: Plan, name: str, workers: int) -> dict[str, Any]:
    """Return the seconds of a run, before its first step and from there on, and its digests."""
    folder = pocket.run_folder("workers")
    begun: list[float] = []
    try:

        def note(event: Event) -> None:
            begun.append(time.perf_counter())

        first = time.perf_counter()
        run = launch(StudyTask(plan, folder / "run"), RunOptions(name, workers, note))
        last = time.perf_counter()
        digests = {
            f"{cell}/{table}": file_digest(Path(run.path) / "cells" / cell / f"{table}.parquet")
            for cell in run.cells
            for table in ("items", "curves")
        }
        return {"steps": last - begun[0], "before": begun[0] - first, "digests": digests}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def cluster() -> Iterator[float]:
    """Run a Ray cluster of two cores; yields the seconds it took to start."""
    import ray

    # As palimpsest itself starts one: no telemetry, workers at the priority of everything else.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
    begun = time.perf_counter()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        yield time.perf_counter() - begun
    finally:
        ray.shutdown()


def products(seconds: float) -> int:
    """Return how many matrix products this process does in so many seconds."""
    import torch

    torch.set_num_threads(1)
    matrix = torch.randn(256, 256)
    done, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(50):
            matrix @ matrix
        done += 50
    return done


def product_gain(seconds: float = 4.0) -> float:
    """Return how many times more products two processes do than one."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(products, [0.2, 0.2], chunksize=1)
        alone = pool.apply(products, (seconds,))
        both = sum(pool.map(products, [seconds, seconds], chunksize=1))
    return both / alone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--references", type=int, default=20)
    parser.add_argument("--tiny", action="store_true", help="check only that the ways agree")
    options = parser.parse_args()
    if options.tiny:
        plan = pocket.cell_plan(draws=2, tiny=True).plan
        one, two = execute(plan, "local", 1), execute(plan, "local", 2)
        if one["digests"] != two["digests"]:
            raise measuring.Disagreement("one and two workers give different bytes")
        print("one and two workers give the same bytes")
        return
    plan = pocket.cell_plan(draws=options.references).plan
    ways = {"one": ("local", 1), "two": ("local", 2), "ray": ("ray", 2)}
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    gains = []
    with cluster() as seconds_to_start:
        for turn in range(options.repeats):
            gains.append(product_gain())
            for way in ways if turn % 2 == 0 else reversed(ways):
                runs[way].append(execute(plan, *ways[way]))
                print(f"{way}: {runs[way][-1]['steps']:.1f} s", flush=True)
    if len({str(sorted(run["digests"].items())) for way in runs.values() for run in way}) != 1:
        raise measuring.Disagreement("one worker, two workers and Ray give different bytes")

    def seconds(way: str, part: str = "steps") -> list[float]:
        return [run[part] for run in runs[way]]

    speedup = measuring.ratios(seconds("one"), seconds("two"))
    reached = measuring.spread(
        [one / two / gain for one, two, gain in zip(seconds("one"), seconds("two"), gains)]
    )
    overhead = measuring.spread(
        [ray / local - 1 for ray, local in zip(seconds("ray"), seconds("two"))]
    )
    measuring.say("two workers over one, times faster", speedup)
    measuring.say("share of what pure products gain", reached, "")
    measuring.say("Ray's overhead, share of the cell", overhead, "")
    measuring.write(
        "workers",
        {
            "references": options.references,
            "seconds": {way: measuring.spread(seconds(way)) for way in ways},
            "seconds_before_first_step": {
                way: measuring.spread(seconds(way, "before")) for way in ways
            },
            "seconds_to_start_a_cluster": seconds_to_start,
            "speedup": speedup,
            "product_gain": measuring.spread(gains),
            "share_of_product_gain": reached,
            "gain_bar": GAIN_BAR,
            "gain_outcome": measuring.verdict_on(GAIN_BAR, reached["median"], at_least=True),
            "ray_overhead": overhead,
            "ray_bar": RAY_BAR,
            "ray_outcome": measuring.verdict_on(RAY_BAR, overhead["median"], at_least=False),
        },
    )


if __name__ == "__main__":
    main()
