"""``python -m palimpsest_trials.foreign``: make foreign cells, audit them, count."""

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from palimpsest_trials.foreign.cells import make_named


def main() -> None:
    parser = argparse.ArgumentParser(prog="palimpsest_trials.foreign", description=__doc__)
    parser.add_argument("action", choices=("make", "audit", "table"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--cells", default="0:60", help="FIRST:LAST, the last not included")
    parser.add_argument(
        "--base", default="", help="checkpoint folder in the place of pocket models"
    )
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    first, last = map(int, given.cells.split(":"))
    folders = [(given.out / f"cell-{n:03d}", n, given.base) for n in range(first, last)]
    if given.action == "make":
        with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
            for (folder, _, _), done in zip(folders, pool.map(make_named, folders)):
                print(f"{folder}: {done}", flush=True)


if __name__ == "__main__":
    main()
