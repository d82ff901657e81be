"""From a command to its first training step, and the report after a study of one cell.

A study of one pocket cell with one step of injection is started; what is timed is the command up to
the end of its first step, nearly all of it the start of Python and of its libraries in the command
and in the worker. Then ``palimpsest report`` is timed on the finished run. The bars are half of
what was measured before the start was made shorter: 8.5 s and 7.7 s.
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

BARS = {"first step": 4.25, "report": 3.85}
PLAN = """\
preset: demo
facts: {forget: 2, retain: 2, probes: 6}
injection: {steps: 1, fact_items: 2, general_items: 2}
unlearning: {steps: 2}
round_trip: {steps: 5}
methods: [{name: task_vector, coefficient: [1]}]
replication: {draws: 3}
"""


def first_step(folder: Path) -> float:
    """Give the seconds until the first step is done, and let the study end."""
    begun = time.perf_counter()
    line = [sys.executable, "-m", "palimpsest", "study", str(folder / "plan.yaml")]
    line += ["--out", str(folder / "run"), "--workers", "1"]
    study = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list((folder / "run").glob("cells/*/steps/train-*/manifest.json")):
        if study.poll() is not None:
            raise measuring.Disagreement(f"the study ended with {study.returncode}")
        time.sleep(0.01)
    seconds = time.perf_counter() - begun
    if study.wait() != 0:
        raise measuring.Disagreement(f"the study ended with {study.returncode}")
    return seconds


def report(folder: Path) -> float:
    """Give the seconds of ``palimpsest report`` on the finished run."""
    shutil.rmtree(folder / "run" / "report", ignore_errors=True)
    begun = time.perf_counter()
    line = [sys.executable, "-m", "palimpsest", "report", str(folder / "run")]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    seconds: dict[str, list[float]] = {"first step": [], "report": []}
    for _ in range(options.repeats):
        folder = pocket.run_folder("start")
        try:
            (folder / "plan.yaml").write_text(PLAN)
            seconds["first step"].append(first_step(folder))
            seconds["report"].append(report(folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    found = {name: measuring.spread(values) for name, values in seconds.items()}
    for name, values in found.items():
        measuring.say(name, values, " s")
    outcomes = {
        name: measuring.verdict_on(BARS[name], values["median"], at_least=False)
        for name, values in found.items()
    }
    measuring.write("start", {"seconds": found, "bars": BARS, "outcomes": outcomes})


if __name__ == "__main__":
    main()
