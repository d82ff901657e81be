"""Two ways of doing one thing, timed in turn in one run, with the spread of their ratio.

Every benchmark first checks that both sides give the same numbers, then alternates between them, so
that a machine that slows down slows both. The ratio of a pair is that of neighbouring runs; what is
reported is the median, the smallest and the largest of these ratios.
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


class Disagreement(AssertionError):
    """The two sides of a benchmark do not compute the same thing."""


def spread(values: Sequence[float]) -> dict[str, float]:
    """Give the median, the smallest and the largest of the values."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def interleaved(
    sides: Mapping[str, Callable[[], Any]], repeats: int, warm: int = 1
) -> dict[str, list[float]]:
    """Give each side's seconds, one per repeat; the sides take turns, each first every other time.

    warm: turns that are not counted, for caches and allocators.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for turn in range(-warm, repeats):
        for name in names if turn % 2 == 0 else reversed(names):
            begun = time.perf_counter()
            sides[name]()
            spent = time.perf_counter() - begun
            if turn >= 0:
                seconds[name].append(spent)
    return seconds


def ratios(slow: Sequence[float], fast: Sequence[float]) -> dict[str, float]:
    """Give the spread of how many times faster ``fast`` is, repeat by repeat."""
    return spread([one / other for one, other in zip(slow, fast, strict=True)])


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


def say(name: str, found: Mapping[str, float], unit: str = "x") -> None:
    """Print one measured line."""
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
