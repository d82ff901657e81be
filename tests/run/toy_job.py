"""A job that writes through the real store but trains nothing, for tests of what runs it.

A cell is a diamond of steps: train, then three parts side by side, then panel, then score. What a
cell does wrong is in its name: `fails...` raises in "part-1", `diverges...` raises an error of
Palimpsest there, `halts...` ends there on purpose, `dies...` is killed there the first time,
`doomed...` every time, `silent...` stores nothing there, `held...` waits there until a file `go`
lies beside the run.
"""

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from palimpsest.errors import TrainingDiverged
from palimpsest.run.graph import Halt, Step
from palimpsest.run.store import Cell, Run, environment, file_digest

PARTS = ("part-0", "part-1", "part-2")
STEPS = (
    Step("train", "training the toy", cost=2.0),
    *(Step(name, f"doing {name}", ("train",)) for name in PARTS),
    Step("panel", "scoring the panel", PARTS),
    Step("score", "scoring the models", ("train",)),
)


@dataclass
class ToyCell:
    cell_id: str
    base: Path
    steps: tuple[Step, ...] = STEPS
    seen: list[str] = field(default_factory=list)

    def do(self, step: str, cell: Cell) -> None:
        self.seen.append(step)
        if step == "part-1" and self._misbehave():
            return
        numbers = np.random.default_rng(sum(self.cell_id.encode()) + len(step)).normal(size=20)
        if step == "train":
            cell.put_file(step, "weights.safetensors", lambda path: path.write_bytes(numbers))
        else:
            assert cell.file("train", "weights.safetensors").stat().st_size == 160
        if step == "panel":
            assert [cell.get(part)[1]["step"] for part in PARTS] == list(PARTS)
            cell.open_seal(step, "sha256:toy", {"injected": "sha256:1"})
        cell.put(step, {"items": {"model": [step] * 20, "nll_sum": numbers}}, {"step": step})

    def finish(self, cell: Cell) -> Mapping[str, Any]:
        return {"threads": os.environ.get("OMP_NUM_THREADS"), "mean": cell.get("score")[1]["step"]}

    def keep(self) -> Mapping[str, tuple[str, str]]:
        return {"injected.safetensors": ("train", "weights.safetensors")}

    def _misbehave(self) -> bool:
        kind = self.cell_id.split("-")[0]
        if kind == "fails":
            raise ValueError(f"{self.cell_id} was made to fail")
        if kind == "diverges":
            raise TrainingDiverged(7, "loss is nan")
        if kind == "halts":
            raise Halt("not identifiable")
        mark = self.base / f"{self.cell_id}-died"
        if kind == "doomed" or (kind == "dies" and not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        while kind == "held" and not (self.base / "go").exists():
            time.sleep(0.02)
        return kind == "silent"


@dataclass(frozen=True)
class ToyJob:
    base: Path

    def cell(self, cell_id: str) -> ToyCell:
        return ToyCell(cell_id, self.base)


def toy_run(folder: Path, cells: list[str]) -> Run:
    """Return a run folder of toy cells."""
    seal = {"commitment": "sha256:toy"}
    terms = ({"seeds": [0]}, {"alpha": 0.05}, environment(), seal)
    return Run.create_or_resume(folder, *terms, cells=cells)


def toy_job(run: Run) -> ToyJob:
    return ToyJob(run.path.parent)


def artifacts(folder: Path) -> dict[str, str]:
    """Return the digest of every file of the run that is evidence."""
    paths = [*folder.glob("*.json*"), *(folder / "cells").rglob("*")]
    return {str(p.relative_to(folder)): file_digest(p) for p in sorted(paths) if p.is_file()}
