"""``palimpsest report`` on a run folder, from command to page; the bar is 9 s of the processor.

The run folder is the pocket matrix in results/, 45 cells, unpacked, unless another is named, which
is copied. Every repeat must write the same page.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import measuring
import pocket

from palimpsest.run.files import file_digest
from palimpsest.run.store import Run

BAR = 9.0
ROOT = Path(__file__).parents[1]
POCKET = ROOT / "results" / "third-edition" / "pocket.tar.xz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    folder = pocket.run_folder("report")
    try:
        if options.run is None:
            unpack = [sys.executable, "-m", "palimpsest_trials.archive", "unpack"]
            subprocess.run([*unpack, str(POCKET), str(folder)], check=True, cwd=ROOT)
            run = folder / "pocket"
        else:
            run = Path(shutil.copytree(options.run, folder / "run"))
        cells = sum(Run.open(run).cell(cell).ended() for cell in Run.open(run).cells)
        seconds, pages = [], set()
        for _ in range(options.repeats):
            shutil.rmtree(run / "report", ignore_errors=True)
            command = [sys.executable, "-m", "palimpsest", "report", str(run)]
            seconds.append(measuring.spent(command))
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
            "processor_seconds": found,
            "bar": BAR,
            "outcome": measuring.verdict_on(BAR, found["median"], at_least=False),
        },
    )


if __name__ == "__main__":
    main()
