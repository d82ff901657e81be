"""How fast devices are, and how long that takes in words; for previews, which load nothing."""

import math
from typing import NamedTuple

GB = 1e9


class Speed(NamedTuple):
    """What a device does in a second, and what a step costs a layer however small it is."""

    flops: float
    layer_seconds: float


# A data-centre GPU at these small batches; one core of a server CPU.
SPEEDS = {"cuda": Speed(4e13, 2e-3), "cpu": Speed(3e10, 1.5e-3)}


def duration(seconds: float) -> str:
    """Return seconds in the usual units: "40 s", "12 min", "3.5 h", "2.1 days"."""
    if seconds < 90:
        return f"{max(1, math.ceil(seconds))} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 129_600 else f"{seconds / 86_400:.1f} days"
