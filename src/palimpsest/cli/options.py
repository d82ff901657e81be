"""The options that several commands take, and their defaults."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from palimpsest.plan import Plan

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Out = Annotated[Path | None, typer.Option("--out", help="Run folder. An existing one is resumed.")]
Methods = Annotated[
    list[str] | None,
    typer.Option("--method", help="Add a method, by name or as package.module:Class. Repeatable."),
]
Track = Annotated[
    str | None,
    typer.Option("--track", help="Report to tensorboard, wandb, mlflow or trackio."),
]
Fork = Annotated[
    bool, typer.Option("--fork", help="Start a new run beside one that has other terms.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", "--preview", help="Show what would be done and exit.")
]
RoundTrip = Annotated[
    str | None,
    typer.Option(help="Candidates sent through the round trip: survivors (of the screen) or all."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")]
Executor = Annotated[
    str, typer.Option("--executor", help="Where steps run: local processes, or ray.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", min=1, help="Worker processes. Default: as many as cores and memory allow."
    ),
]
Address = Annotated[str | None, typer.Option("--address", help="Address of a running Ray cluster.")]
Alpha = Annotated[
    float | None, typer.Option("--alpha", help="Error rate of the screen and the comparison.")
]
DetectionLimit = Annotated[
    float | None,
    typer.Option(help="Largest share of injected weights that a certifying audit may miss."),
]
Margin = Annotated[
    float | None,
    typer.Option(help="Certify equivalence within this share of what was at stake; 0 is off."),
]


def rule_flags(
    alpha: float | None, detection_limit: float | None, margin: float | None
) -> dict[str, Any]:
    """Return the rules that were given as flags."""
    flags = {"alpha": alpha, "detection_limit": detection_limit, "margin": margin}
    return {name: value for name, value in flags.items() if value is not None}


def runner(executor: str, address: str | None) -> dict[str, Any]:
    """Return the options of an executor; only Ray has an address."""
    return {"executor": executor} | ({"address": address} if executor == "ray" else {})


def workers_for(plan: "Plan", workers: int | None) -> int:
    """Return the number of workers: as given, or as many as cores and memory allow."""
    if workers is not None:
        return workers
    if plan.engine.device != "cpu":
        return 1
    from palimpsest.study.preview import preview

    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(cores(), free // max(1, preview(plan).memory)))


def cores() -> int:
    """Return the number of cores this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1
