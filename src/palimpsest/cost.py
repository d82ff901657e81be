"""What a command takes: memory of a worker, arithmetic and time, from a model's size and a plan.

The one cost model of previews and documents; nothing is loaded. Memory is counted in bytes per
parameter, activations and logits; time in arithmetic and in what a layer takes however small a
step is. Expect memory within a fifth and time within a factor of two or three.
"""

import math
import os
from typing import Any, NamedTuple

from palimpsest.run.local import gpus

GB = 1e9
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a weight."""
ACTIVATIONS = 20
"""Values a layer keeps for the way back, per token and per unit of the model's width."""
LOGITS = 3
"""Copies of float32 logits in a step: themselves, log-probabilities, gradients."""
RUNTIME = {"cpu": 5e8, "cuda": 6e8}
"""Bytes that Python, torch and a tokenizer take before any model, on the device they are on."""


class Size(NamedTuple):
    """A model's size; ``stored`` is how many bytes of weights its files hold."""

    parameters: int
    layers: int
    width: int
    vocabulary: int
    stored: int = 0


def size_of(config: Any, parameters: int) -> Size:
    """Return the size of a model from its configuration, which is an object or a mapping."""

    def read(default: int, *names: str) -> int:
        values = config if isinstance(config, dict) else vars(config)
        return int(next((values[name] for name in names if values.get(name)), default))

    layers, width = read(12, "num_hidden_layers", "n_layer"), read(768, "hidden_size", "n_embd")
    return Size(parameters, layers, width, read(50_000, "vocab_size"))


class Speed(NamedTuple):
    """What a device does in a second, and what a step costs a layer however small it is."""

    flops: float
    layer_seconds: float
    read: float
    """Bytes of weights that are read, converted and digested in a second."""


# A data-centre GPU at these small batches; one core of a server CPU.
SPEEDS = {"cuda": Speed(4e13, 2e-3, 1e9), "cpu": Speed(3e10, 1.5e-3, 5e8)}


class Memory(NamedTuple):
    """Bytes a worker takes: on its device, and on the host beside it (0 where they are one)."""

    device: float
    host: float


class Step(NamedTuple):
    """A training step: padded tokens and scored positions computed at once."""

    tokens: float
    scored: float


def kind_of(device: str) -> str:
    """Return which of the known kinds a device is."""
    return "cpu" if device == "cpu" else "cuda"


def training(
    size: Size,
    step: Step,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    checkpointing: bool = False,
    optimizer: str = "device",
    nets: int = 1,
) -> Memory:
    """Return what training ``nets`` models at once takes.

    Weights and gradients have the model's dtype, AdamW's two moments are float32, and so are the
    master weights of a model that is not.
    """
    each, there = WIDTHS[dtype], optimizer == "device" or device == "cpu"
    masters = 4 if dtype != "float32" or not there else 0
    state = nets * size.parameters * (8 + masters)
    kept = ACTIVATIONS if not checkpointing else 2 + ACTIVATIONS / size.layers
    activations = step.tokens * size.layers * size.width * kept * each
    whole = nets * size.parameters * 2 * each + activations + logits(size, step.scored, dtype)
    base = RUNTIME[kind_of(device)]
    return Memory(whole + base + state, 0) if there else Memory(whole + base, state)


def scoring(size: Size, step: Step, *, device: str = "cpu", dtype: str = "float32") -> Memory:
    """Return what scoring one model on a page of questions takes."""
    each = WIDTHS[dtype]
    layer = step.tokens * size.width * ACTIVATIONS * each
    whole = size.parameters * each + layer + logits(size, step.scored, dtype)
    return Memory(whole + RUNTIME[kind_of(device)], 0)


def logits(size: Size, scored: float, dtype: str = "float32") -> float:
    """Return the bytes of float32 logits and, of other models, of the head in float32."""
    head = 0 if dtype == "float32" else 2 * size.vocabulary * size.width * 4
    return LOGITS * scored * size.vocabulary * 4 + head


def answers(size: Size, scored: float) -> float:
    """Return the bytes of a frozen model's log-probabilities, which the host keeps."""
    return scored * size.vocabulary * 4


def seconds(
    size: Size, tokens: float, *, device: str = "cpu", batches: float = 1, passes: int = 1
) -> float:
    """Return the time of forward passes (3 for a step of training) over so many tokens."""
    speed = SPEEDS[kind_of(device)]
    arithmetic = 2 * passes * size.parameters * tokens / speed.flops
    return max(arithmetic, batches * speed.layer_seconds * size.layers * passes / 3)


def loading(size: Size, *, device: str = "cpu", dtype: str = "float32") -> float:
    """Return the time of reading a model from disk."""
    return 0.5 + size.parameters * WIDTHS[dtype] / SPEEDS[kind_of(device)].read


def workers_for(memory: float, device: str = "cpu", most: int | None = None) -> int:
    """Return how many workers of so many bytes there are cores and memory for; one per GPU."""
    if device != "cpu":
        return max(1, len(gpus())) if device == "cuda" else 1
    allowed = getattr(os, "sched_getaffinity", None)
    cores = len(allowed(0)) if allowed is not None else os.cpu_count() or 1
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(cores, most or cores, int(free // max(1.0, memory))))


def total(memory: float, seconds: float, device: str, workers: int) -> str:
    """Return the last line of every preview."""
    return (
        f"memory: about {memory / GB:.1f} GB per worker; time: roughly {duration(seconds)} on "
        f"{device} with {workers} worker{'' if workers == 1 else 's'}"
    )


def duration(seconds: float) -> str:
    """Return seconds in the usual units: "40 s", "12 min", "3.5 h", "2.1 days"."""
    if seconds < 90:
        return f"{max(1, math.ceil(seconds))} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 129_600 else f"{seconds / 86_400:.1f} days"
