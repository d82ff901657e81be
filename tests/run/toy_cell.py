"""A toy cell done by hand: terms, rows and the work that the tests of the run folder share."""

from typing import Any

import numpy as np

from palimpsest.run.store import Cell

TERMS: tuple[dict[str, Any], ...] = (
    {"seeds": [0, 1], "steps": {"inject": 150}},
    {"alpha": 0.05, "retain": 0.5},
    {"code": {"version": "1"}, "inputs": {"base": "sha256:b"}, "machine": "any"},
    {"commitment": "sha256:c"},
)
STEPS = ("injected", "ga-w3", "panel")
NEEDS = {"injected": (), "ga-w3": ("injected",), "panel": ("injected",)}


def rows(step: str) -> dict[str, Any]:
    return {"model": [step] * 3, "fact": ["f1", "f2", "é"], "nll_sum": np.arange(3) / len(step)}


def work(cell: Cell, steps: tuple[str, ...] = STEPS, *, finish: bool = True) -> list[str]:
    """Do what is left of a toy cell; return the steps that had to be computed."""
    computed: list[str] = []
    cell.for_work(NEEDS)
    cell.sweep()
    cell.prepare()
    if cell.ended():
        return computed
    for step in steps:
        if cell.done(step):
            continue
        computed.append(step)
        cell.begin(step)
        if step == "injected":
            cell.put_file(step, "weights.safetensors", b"\x00weights" * 9)
        if step == "panel":
            cell.open_seal(step, "sha256:c", {"injected": "sha256:1"})
        cell.put(step, {"items": rows(step)}, {"loss": 1.5})
    if finish:
        kept = {"injected.safetensors": ("injected", "weights.safetensors")}
        cell.finish({"seed": 0}, steps, keep=kept)
    return computed
