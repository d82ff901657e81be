"""What a cell costs with 5, 10, 20 and 40 candidates: time should be linear, memory flat.

Each size is a process of its own, so that its peak memory is its own. Time is that of the steps
that make, score and re-acquire candidates, by the processor's clock; the wall clock's is reported
too. Memory is what the process owns, looked at every 20 ms: pages of libraries come and go with
what else the machine does. A straight line is fitted; linear means that no size is more than 15 %
off it, flat that no peak is more than 10 % above the smallest.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import measuring
import numpy as np
import pocket

SIZES = (5, 10, 20, 40)
LINE_BAR, MEMORY_BAR = 0.15, 0.10


class Peak(threading.Thread):
    """Looks, every 20 ms, how much memory this process owns; libraries and files do not count."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.done = 0.0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self.done.wait(0.02):
            lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
            owned = next(line for line in lines if line.startswith("RssAnon"))
            self.most = max(self.most, int(owned.split()[1]) / 1024)

    def stop(self) -> float:
        """Give the most, in MiB."""
        self.done.set()
        self.join()
        return self.most


def cost(count: int, *, tiny: bool = False) -> dict[str, Any]:
    """Give the candidates' seconds by either clock and the peak memory of this process in MiB."""
    import torch

    from palimpsest.cell.launch import RunOptions, launch
    from palimpsest.cell.study import StudyTask
    from palimpsest.report.results import read_run
    from palimpsest.run.executor import Event

    torch.set_num_threads(1)
    peak = Peak()
    cell = pocket.with_candidates(pocket.cell_plan(draws=1, tiny=tiny), count)
    folder = pocket.run_folder("candidates")
    begun: dict[str, tuple[float, float]] = {}

    def note(event: Event) -> None:
        if event.kind == "step":
            begun[event.step] = (time.process_time(), time.perf_counter())

    try:
        run = launch(StudyTask(cell.plan, folder / "run"), RunOptions(on_event=note))
        made = len(read_run(run.path).cells[0].candidates)
    finally:
        shutil.rmtree(folder)
    first = next(moment for label, moment in begun.items() if label.startswith("unlearn-"))
    if made != count:
        raise measuring.Disagreement(f"{made} candidates were made; {count} were asked for")
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    processor, wall = (end - start for end, start in zip(begun["finish"], first))
    return {
        "seconds": processor,
        "wall_seconds": wall,
        "peak_mib": peak.stop(),
        "resident_mib": resident,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="check only that all candidates come")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tiny:
        print(cost(5, tiny=True))
        return
    if options.one:
        print(json.dumps(cost(options.one)))
        return
    seconds: dict[int, list[float]] = {size: [] for size in SIZES}
    walls: dict[int, list[float]] = {size: [] for size in SIZES}
    peaks: dict[int, list[float]] = {size: [] for size in SIZES}
    resident: dict[int, list[float]] = {size: [] for size in SIZES}
    for turn in range(options.repeats):
        for size in SIZES if turn % 2 == 0 else reversed(SIZES):
            child = subprocess.run(
                [sys.executable, __file__, "--one", str(size)],
                check=True,
                capture_output=True,
                text=True,
            )
            found = json.loads(child.stdout.splitlines()[-1])
            seconds[size].append(found["seconds"])
            walls[size].append(found["wall_seconds"])
            peaks[size].append(found["peak_mib"])
            resident[size].append(found["resident_mib"])
            print(f"{size} candidates: {found}", flush=True)
    times = np.array([np.median(seconds[size]) for size in SIZES])
    slope, start = np.polyfit(SIZES, times, 1)
    off = float(np.max(np.abs(times / (start + slope * np.array(SIZES)) - 1)))
    memory = {size: float(np.median(peaks[size])) for size in SIZES}
    growth = max(memory.values()) / min(memory.values()) - 1
    print(f"{slope:.3f} s a candidate, {start:.2f} s besides; at most {off:.1%} off the line")
    print(f"peak memory grows by {growth:.1%}")
    measuring.write(
        "candidates",
        {
            "seconds": {str(size): measuring.spread(seconds[size]) for size in SIZES},
            "wall_seconds": {str(size): measuring.spread(walls[size]) for size in SIZES},
            "peak_mib": {str(size): measuring.spread(peaks[size]) for size in SIZES},
            "resident_mib": {str(size): measuring.spread(resident[size]) for size in SIZES},
            "seconds_per_candidate": float(slope),
            "seconds_besides": float(start),
            "off_the_line": off,
            "memory_growth": growth,
            "outcome": measuring.verdict_on(LINE_BAR, off, at_least=False),
            "memory_outcome": measuring.verdict_on(MEMORY_BAR, growth, at_least=False),
        },
    )


if __name__ == "__main__":
    main()
