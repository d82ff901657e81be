"""What a person waits for: help, the first training step, the report, verification, the demo.

A study of one pocket cell with one step of injection is started; *first step* is the command up to
the end of its first step, nearly all of it the start of Python and of its libraries in the command
and in the worker. ``report``, ``certify`` and ``verify`` then run on what it wrote. The demo runs
whole, on two workers.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import measuring
import pocket

BARS = {"help": 0.4, "first step": 4.0, "report": 3.0, "verify": 1.5, "demo": 60.0}
PALIMPSEST = str(Path(sys.executable).with_name("palimpsest"))
PLAN = """\
preset: demo
facts: {forget: 2, retain: 2, probes: 6}
injection: {steps: 1, fact_items: 2, general_items: 2}
unlearning: {steps: 2}
reacquisition: {steps: 5}
methods: [{name: task_vector, coefficient: [1]}]
replication: {draws: 5}
"""


def first_step(folder: Path) -> float:
    """Give the seconds until the first step is done, and let the study end."""
    begun = time.perf_counter()
    line = [PALIMPSEST, "study", str(folder / "plan.yaml"), "--out", str(folder / "run")]
    study = subprocess.Popen(
        [*line, "--workers", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not list((folder / "run").glob("cells/*/steps/train-*/manifest.json")):
        if study.poll() is not None:
            raise measuring.Disagreement(f"the study ended with {study.returncode}")
        time.sleep(0.01)
    seconds = time.perf_counter() - begun
    if study.wait() != 0:
        raise measuring.Disagreement(f"the study ended with {study.returncode}")
    return seconds


def seconds_of(*line: str) -> float:
    """Give the seconds of a command that must succeed."""
    begun = time.perf_counter()
    subprocess.run([PALIMPSEST, *line], check=True, capture_output=True)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="one turn without the demo, not stored")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in range(1 if options.tiny else options.repeats):
        folder = pocket.run_folder("start")
        run, bundle = str(folder / "run"), str(folder / "certificate.zip")
        try:
            (folder / "plan.yaml").write_text(PLAN)
            seconds["help"].append(seconds_of("--help"))
            seconds["first step"].append(first_step(folder))
            shutil.rmtree(folder / "run" / "report")
            seconds["report"].append(seconds_of("report", run))
            seconds_of("certify", run, "--out", bundle)
            seconds["verify"].append(seconds_of("verify", bundle))
            if not options.tiny:
                seconds["demo"].append(seconds_of("demo", "--out", str(folder / "demo")))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    found = {name: measuring.spread(values) for name, values in seconds.items()}
    for name, values in found.items():
        measuring.say(name, values, " s")
    if options.tiny:
        return
    outcomes = {
        name: measuring.verdict_on(BARS[name], values["median"], at_least=False)
        for name, values in found.items()
    }
    measuring.write("start", {"seconds": found, "bars": BARS, "outcomes": outcomes})


if __name__ == "__main__":
    main()
