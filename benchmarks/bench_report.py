"""``palimpsest report`` on a run folder, from command to page; the bar is 20 s for 45 cells.

Give the run folder as argument or in PALIMPSEST_BENCH_RUN. The folder is copied first, so that a
measured run is not touched. Every repeat must write the same page.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import measuring
import pocket

from palimpsest.run.store import Run, file_digest

BAR = 20.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", type=Path, default=os.environ.get("PALIMPSEST_BENCH_RUN"))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.run is None:
        print("no run folder given; name one, or set PALIMPSEST_BENCH_RUN: nothing measured")
        return
    folder = pocket.run_folder("report")
    try:
        run = Path(shutil.copytree(options.run, folder / "run"))
        cells = sum(Run.open(run).cell(cell).finished() for cell in Run.open(run).cells)
        seconds, pages = [], set()
        for _ in range(options.repeats):
            shutil.rmtree(run / "report", ignore_errors=True)
            begun = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "palimpsest.cli", "report", str(run)],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            seconds.append(time.perf_counter() - begun)
            pages.add(file_digest(run / "report" / "index.html"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if len(pages) != 1:
        raise measuring.Disagreement("the same run gave different pages")
    found = measuring.spread(seconds)
    measuring.say(f"report on {cells} cells", found, " s")
    measuring.write(
        "report",
        {
            "cells": cells,
            "seconds": found,
            "bar": BAR,
            "outcome": measuring.verdict_on(BAR, found["median"], at_least=False),
        },
    )


if __name__ == "__main__":
    main()
