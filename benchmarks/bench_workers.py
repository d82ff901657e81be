"""One worker, two workers, and Ray, on the same eight cells.

Two workers cannot do better than the machine: what two processes of pure matrix products reach,
alternating with the cells, is the measure. Ray is compared with two local workers on a cluster that
is already running, from the first cell begun to the last one finished: what a cell itself takes,
and what passes between a cell that is finished and the next that is begun in its place. The bar is
that both together cost at most 5 % of a cell more than with local workers. Starting the cluster,
and its workers before the first cell, is paid once a study and reported on its own. Cells are short
(8 candidates instead of 20), which is unkind to Ray. All ways must give the same bytes.
"""

import argparse
import contextlib
import multiprocessing
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import measuring
import pocket

from palimpsest.plan import MethodGrid, Plan
from palimpsest.run.executor import Event, executor
from palimpsest.run.store import file_digest
from palimpsest.study.matrix import StudyJob, start

RAY_BAR = 0.05


def study(cells: int, *, tiny: bool) -> Plan:
    """Give a plan of so many short cells of one model."""
    plan = pocket.cell_plan(draws=1, tiny=tiny).plan
    few = tuple(
        MethodGrid(grid.name, grid.grid)
        for grid in plan.methods
        if grid.name in ("kl_reversion", "task_vector")
    )
    return replace(plan, seeds=tuple(range(cells)), methods=few)


def execute(plan: Plan, name: str, workers: int) -> dict[str, Any]:
    """Give the seconds of a run as a whole, of a cell, between cells, and its tables' digests."""
    folder = pocket.run_folder("workers")
    begun: dict[str, float] = {}
    ended: dict[str, float] = {}
    try:
        run = start(plan, folder / "run")
        cells = [cell.id for cell in plan.cells()]

        def note(event: Event) -> None:
            begun.setdefault(event.cell, time.perf_counter())
            if event.kind == "finished":
                ended[event.cell] = time.perf_counter()

        first = time.perf_counter()
        outcome = executor(name).execute(
            StudyJob(run.path), run.path, cells, workers=workers, on_event=note
        )
        last = time.perf_counter()
        if outcome.failed:
            raise RuntimeError(f"cells failed: {outcome.failed}")
        digests = {
            f"{cell}/{table}": file_digest(Path(run.path) / "cells" / cell / f"{table}.parquet")
            for cell in cells
            for table in ("items", "curves")
        }
        # A cell follows the one whose end made room for it.
        free = sorted(ended.values())[: len(cells) - workers]
        gaps = [one - other for one, other in zip(sorted(begun.values())[workers:], free)]
        return {
            "whole": last - first,
            "before": min(begun.values()) - first,
            "cell": statistics.median(ended[cell] - begun[cell] for cell in cells),
            "between": statistics.median(gaps) if gaps else 0.0,
            "digests": digests,
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def cluster() -> Iterator[float]:
    """Be beside a running Ray cluster of two cores; gives the seconds it took to start."""
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
    """Give how many matrix products this process does in so many seconds."""
    import torch

    torch.set_num_threads(1)
    one = torch.randn(256, 256)
    done, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(50):
            one @ one
        done += 50
    return done


def product_efficiency(seconds: float = 3.0) -> float:
    """Give what two processes of pure products reach, over twice one process."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(products, [0.2, 0.2], chunksize=1)
        alone = pool.apply(products, (seconds,))
        both = sum(pool.map(products, [seconds, seconds], chunksize=1))
    return both / (2 * alone)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--cells", type=int, default=8)
    parser.add_argument("--tiny", action="store_true", help="check only that the ways agree")
    options = parser.parse_args()
    if options.tiny:
        plan = study(2, tiny=True)
        one, two = execute(plan, "local", 1), execute(plan, "local", 2)
        if one["digests"] != two["digests"]:
            raise measuring.Disagreement("one and two workers give different bytes")
        print("one and two workers give the same bytes")
        return
    plan = study(options.cells, tiny=False)
    ways = {"one": ("local", 1), "two": ("local", 2), "ray": ("ray", 2)}
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    limits = []
    with cluster() as seconds_to_start:
        for turn in range(options.repeats):
            limits.append(product_efficiency())
            for way in ways if turn % 2 == 0 else reversed(ways):
                found[way].append(execute(plan, *ways[way]))
                print(f"{way}: {found[way][-1]['whole']:.1f} s", flush=True)
    if len({str(sorted(one["digests"].items())) for way in found.values() for one in way}) != 1:
        raise measuring.Disagreement("one worker, two workers and Ray give different bytes")

    def seconds(way: str, what: str) -> list[float]:
        return [one[what] for one in found[way]]

    speedup = measuring.ratios(seconds("one", "whole"), seconds("two", "whole"))
    reached = [
        one / two / 2 / limit
        for one, two, limit in zip(seconds("one", "whole"), seconds("two", "whole"), limits)
    ]
    pairs = list(zip(found["ray"], found["two"]))
    parts = {
        part: [(ray[part] - local[part]) / local["cell"] for ray, local in pairs]
        for part in ("cell", "between")
    }
    overhead = measuring.spread([sum(both) for both in zip(*parts.values())])
    measuring.say("two workers over one, times faster", speedup)
    measuring.say("efficiency relative to pure products", measuring.spread(reached), "")
    measuring.say("Ray's overhead, share of a cell", overhead, "")
    measuring.say("of it between cells", measuring.spread(parts["between"]), "")
    measuring.write(
        "workers",
        {
            "cells": options.cells,
            "seconds": {way: measuring.spread(seconds(way, "whole")) for way in ways},
            "seconds_before_first_cell": {
                way: measuring.spread(seconds(way, "before")) for way in ways
            },
            "seconds_of_a_cell": {way: measuring.spread(seconds(way, "cell")) for way in ways},
            "seconds_between_cells": {
                way: measuring.spread(seconds(way, "between")) for way in ways
            },
            "seconds_to_start_a_cluster": seconds_to_start,
            "speedup": speedup,
            "product_efficiency": measuring.spread(limits),
            "efficiency_relative_to_products": measuring.spread(reached),
            "ray_share_of_cell": overhead,
            "ray_share_of_cell_between": measuring.spread(parts["between"]),
            "ray_share_of_cell_within": measuring.spread(parts["cell"]),
            "ray_bar": RAY_BAR,
            "ray_outcome": measuring.verdict_on(RAY_BAR, overhead["median"], at_least=False),
        },
    )


if __name__ == "__main__":
    main()
