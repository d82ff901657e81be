"""Two ways of doing one thing, timed in turn in one run, with the spread of their ratio.

Every benchmark first checks that both sides give the same numbers, then alternates between them, so
that a machine that slows down slows both. The ratio of a pair is that of neighbouring runs; what is
reported is the median, the smallest and the largest of these ratios.
"""

import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


class Disagreement(AssertionError):
    """The two sides of a benchmark do not compute the same thing."""


@dataclass(frozen=True)
class Turns:
    """Seconds of each side, one per repeat: by the wall clock, and of the processor's time.

    A process of one thread that has a core to itself takes as much of one as of the other. Where
    others share the machine the wall clock counts their turns too, and the processor's time is the
    steadier of the two.
    """

    seconds: dict[str, list[float]]
    processor: dict[str, list[float]]

    def ratio(self, slow: str, fast: str) -> dict[str, dict[str, float]]:
        """Give the spread of how many times faster one side is, by either clock."""
        return {
            "wall": ratios(self.seconds[slow], self.seconds[fast]),
            "processor": ratios(self.processor[slow], self.processor[fast]),
        }

    def spreads(self) -> dict[str, dict[str, dict[str, float]]]:
        """Give the spread of each side's seconds, by either clock."""
        clocks = {"wall": self.seconds, "processor": self.processor}
        return {
            clock: {name: spread(values) for name, values in found.items()}
            for clock, found in clocks.items()
        }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Give the median, the smallest and the largest of the values."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


class Apart:
    """A side in a process of its own, so that it inherits neither heap nor settings of another.

    make: called there with the arguments; gives the function that each turn calls.
    """

    def __init__(self, make: Callable[..., Callable[[], Any]], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self.spent = (0.0, 0.0)
        """Seconds of the last turn by the wall clock and of the processor, measured there."""

    def __call__(self) -> Any:
        self._pipe.send(True)
        value, *spent = self._pipe.recv()
        self.spent = (spent[0], spent[1])
        return value

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join()


def _serve(pipe: Any, make: Callable[..., Callable[[], Any]], arguments: Sequence[Any]) -> None:
    call = make(*arguments)
    try:
        while pipe.recv():
            begun, busy = time.perf_counter(), time.process_time()
            value = call()
            pipe.send((value, time.perf_counter() - begun, time.process_time() - busy))
    except EOFError:
        pass


def interleaved(sides: Mapping[str, Callable[[], Any]], repeats: int, warm: int = 1) -> Turns:
    """Give what each side took, one value per repeat; the sides take turns at going first.

    warm: turns that are not counted, for caches and allocators.
    """
    turns = Turns({name: [] for name in sides}, {name: [] for name in sides})
    names = list(sides)
    for turn in range(-warm, repeats):
        for name in names if turn % 2 == 0 else reversed(names):
            begun, busy = time.perf_counter(), time.process_time()
            sides[name]()
            spent = (time.perf_counter() - begun, time.process_time() - busy)
            if turn >= 0:
                wall, processor = getattr(sides[name], "spent", spent)
                turns.seconds[name].append(wall)
                turns.processor[name].append(processor)
    return turns


def ratios(slow: Sequence[float], fast: Sequence[float]) -> dict[str, float]:
    """Give the spread of how many times faster ``fast`` is, repeat by repeat."""
    return spread([one / other for one, other in zip(slow, fast, strict=True)])


def spent(command: Sequence[str], answers: Sequence[int] = (0,)) -> float:
    """Give the processor seconds of a command, which ends with one of these exit codes."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in answers:
        raise Disagreement(f"{' '.join(command[:4])} ended with {child.returncode}")
    return usage.ru_utime + usage.ru_stime


def agree(what: str, ours: Any, theirs: Any, tolerance: float) -> float:
    """Give the largest difference between two arrays; raise if it is above the tolerance."""
    import numpy as np

    one, other = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if one.shape != other.shape or (np.isnan(one) != np.isnan(other)).any():
        raise Disagreement(f"{what}: shapes or gaps differ, {one.shape} and {other.shape}")
    apart = float(np.nanmax(np.abs(one - other), initial=0.0))
    if not apart <= tolerance:
        raise Disagreement(f"{what}: the sides are {apart:.3g} apart; at most {tolerance:g} is let")
    return apart


def verdict_on(bar: float, found: float, *, at_least: bool = True) -> str:
    """Give "reached" or "missed" for a measured median against its bar."""
    return "reached" if (found >= bar if at_least else found <= bar) else "missed"


def say(name: str, found: Mapping[str, Any], unit: str = "x") -> None:
    """Print one measured line, or one for each clock."""
    if "wall" in found:
        for clock in found:
            say(f"{name}, {clock}", found[clock], unit)
        return
    low, high = found["min"], found["max"]
    print(f"{name}: {found['median']:.3g}{unit} (from {low:.3g} to {high:.3g})", flush=True)


def write(name: str, results: Mapping[str, Any]) -> Path:
    """Write the results of one benchmark with the machine they were measured on."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {"benchmark": name, "machine": machine(), **results}
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(f"written to {path}")
    return path


def machine() -> dict[str, Any]:
    """Give what the numbers depend on: processor, cores, load, threads and versions."""
    import torch
    import transformers

    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        model = next((ln.split(":")[1].strip() for ln in lines if ln.startswith("model name")), "")
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
    }
