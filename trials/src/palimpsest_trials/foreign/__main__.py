"""``python -m palimpsest_trials.foreign``: make foreign cells, audit them, count."""

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from palimpsest_trials.foreign.audits import audit_named, summary, write_rows
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
    parser.add_argument("--runs", type=Path, help="where audits are written (OUT.audits)")
    parser.add_argument("--csv", type=Path, default=Path("foreign.csv"), help="of the table")
    given = parser.parse_args()
    first, last = map(int, given.cells.split(":"))
    folders = [(given.out / f"cell-{n:03d}", n, given.base) for n in range(first, last)]
    runs = given.runs or given.out.with_name(f"{given.out.name}.audits")
    made = [folder for folder, _, _ in folders if (folder / "cell.json").exists()]
    pairs = [(folder, runs / folder.name) for folder in made]
    if given.action == "table":
        write_rows(made, [run for _, run in pairs], given.csv)
        print(summary(given.csv), end="")
        return
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        if given.action == "make":
            found = zip((folder for folder, _, _ in folders), pool.map(make_named, folders))
        else:
            found = zip(made, pool.map(audit_named, pairs))
        for folder, done in found:
            print(f"{folder}: {done}", flush=True)


if __name__ == "__main__":
    main()
