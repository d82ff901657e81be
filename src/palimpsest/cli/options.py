"""The options that several commands take, their defaults, and errors that name them."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from palimpsest.cli.output import say
from palimpsest.errors import InputError

if TYPE_CHECKING:
    from palimpsest.plan import Plan

Text = str | None
Whole = int | None
Real = float | None
Several = list[str] | None

_DEFAULT_WORKERS = "Worker processes. Default: as many as cores and memory allow."
AsJson = Annotated[bool, Option("--json", help="Print one JSON document on stdout.")]
Out = Annotated[Path | None, Option("--out", help="Run folder. An existing one is resumed.")]
Methods = Annotated[
    Several, Option("--method", help="Add a method, by name or package.module:Class. Repeatable.")
]
Track = Annotated[Text, Option("--track", help="Report to tensorboard, wandb, mlflow or trackio.")]
Fork = Annotated[bool, Option("--fork", help="Start a new run beside one that has other terms.")]
DryRun = Annotated[bool, Option("--dry-run", "--preview", help="Show what would be done and exit.")]
RoundTrip = Annotated[
    Text,
    Option(help="Candidates that go through the round trip: survivors of the screen, or all."),
]
Device = Annotated[Text, Option(help="cpu, cuda or cuda:N.")]
Dtype = Annotated[Text, Option(help="Of the weights: float32 or bfloat16.")]
BatchTokens = Annotated[Whole, Option(help="Tokens per scoring batch.")]
Checkpointing = Annotated[
    bool | None, Option("--checkpointing", help="Compute activations twice to save memory.")
]
Accumulate = Annotated[Whole, Option(help="Parts a training step is computed in.")]
Optimizer = Annotated[Text, Option(help="AdamW's state: device, host (off the GPU) or 8bit.")]
Lora = Annotated[Whole, Option(help="Train LoRA adapters of this rank, merged, not all weights.")]
Executor = Annotated[str, Option("--executor", help="Where steps run: local processes, or ray.")]
Workers = Annotated[Whole, Option("--workers", min=1, help=_DEFAULT_WORKERS)]
Address = Annotated[Text, Option("--address", help="Address of a running Ray cluster.")]
Alpha = Annotated[Real, Option("--alpha", help="Error rate of the screen and the comparison.")]
DetectionLimit = Annotated[
    Real, Option(help="Largest share of injected weights that a certifying audit may miss.")
]
Margin = Annotated[
    Real, Option(help="Certify equivalence within this share of what was at stake. 0 is off.")
]

_SINGLE = {"candidates": "candidate", "references": "reference"}
"""Flags that are given once per model, by their keys in a file."""


def rule_flags(alpha: Real, detection_limit: Real, margin: Real) -> dict[str, Any]:
    """Return the rules that were given as flags."""
    flags = {"alpha": alpha, "detection_limit": detection_limit, "margin": margin}
    return {name: value for name, value in flags.items() if value is not None}


def with_engine(plan: "Plan", **flags: Any) -> "Plan":
    """Return the plan with the engine's settings that were given as flags."""
    from dataclasses import replace

    from palimpsest.plan import check

    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return check(replace(plan, engine=replace(plan.engine, **given)))
    except InputError as error:
        raise type(error)(str(error).removeprefix("engine.")) from error


def runner(executor: str, address: Text) -> dict[str, Any]:
    """Return the options of an executor; only Ray has an address."""
    return {"executor": executor} | ({"address": address} if executor == "ray" else {})


def workers_for(plan: "Plan", workers: Whole) -> int:
    """Return the number of workers: as given, or as many as cores, memory or GPUs allow."""
    from palimpsest.run.local import gpus

    if workers is not None:
        if plan.engine.device == "cuda" and workers > len(gpus()) > 0:
            say(f"note: {workers} workers share {len(gpus())} GPUs; memory is shared too")
        return workers
    from palimpsest.study.preview import preview

    if plan.engine.device.startswith("cuda"):
        return max(1, len(gpus())) if plan.engine.device == "cuda" else 1
    return 1 if plan.engine.device != "cpu" else fitting_workers(preview(plan).memory)


def fitting_workers(memory: float) -> int:
    """Return how many workers that take so many bytes each there are cores and memory for."""
    allowed = getattr(os, "sched_getaffinity", None)
    cores = len(allowed(0)) if allowed is not None else os.cpu_count() or 1
    from palimpsest.models.device import free_memory

    return max(1, min(cores, int(free_memory() // max(1.0, memory))))


@contextmanager
def flags_named(flags: Mapping[str, Any]) -> Iterator[None]:
    """Let errors name what came from these flags by the flag, and not by the key of a file."""
    try:
        yield
    except InputError as error:
        message = str(error)
        known = {**flags, **(flags.get("rules") or {})}
        found = re.match(r"((?:rules\.)?\w+)(?:\[\d+\])?(?: and (\w+))?(?=:| is )", message)
        keys = [key.removeprefix("rules.") for key in found.groups() if key] if found else []
        if found is None or not all(key in known for key in keys):
            raise
        named = " and ".join(f"--{_SINGLE.get(key, key).replace('_', '-')}" for key in keys)
        raise type(error)(named + message[found.end() :]) from error
