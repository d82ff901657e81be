"""Cells that write through the real store but train nothing, for tests of what runs them.

What a cell does is in its name: `fails...` raises, `dies...` is killed the first time, `doomed...`
every time, `held...` waits before its third step until a file `go` lies beside the run.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from palimpsest.run.store import Run, environment, file_digest

STEPS = ("train-injected", "models", "candidates-00", "panel")


def toy_run(folder: Path, cells: list[str]) -> Run:
    """A run folder of toy cells."""
    seal = {"commitment": "sha256:toy"}
    terms = ({"seeds": [0]}, {"alpha": 0.05}, environment(), seal)
    return Run.create_or_resume(folder, *terms, cells=cells)


def toy_cell(
    run_path: Path | str,
    cell_id: str,
    *,
    pool_file: Path | str | None = None,
    progress: Callable[[str, int, int], None],
) -> None:
    """Do what is left of one toy cell."""
    run = Run.open(run_path)
    with run.cell(cell_id).claim() as cell:
        if cell.finished():
            return
        try:
            for number, step in enumerate(STEPS):
                progress(step, number, len(STEPS))
                if cell.done(step):
                    continue
                if number == 2:
                    _mischief(run.path, cell_id)
                while cell_id.startswith("held") and number == 2 and not go(run.path).exists():
                    time.sleep(0.02)
                draw = np.random.default_rng(sum(cell_id.encode()) + number)
                table = {"model": [step] * 20, "nll_sum": draw.normal(size=20)}
                cell.put(step, {"items": table})
            progress("finish", len(STEPS), len(STEPS))
            pool = pool_file and Path(pool_file).name
            cell.finish({"pool": pool, "threads": os.environ["OMP_NUM_THREADS"]}, STEPS)
        except Exception as error:
            cell.fail(f"{type(error).__name__}: {error}")
            raise


def go(run: Path) -> Path:
    """The file that held cells wait for."""
    return run.parent / "go"


def artifacts(folder: Path) -> dict[str, str]:
    """The digest of every file of every cell."""
    found = sorted(path for path in (folder / "cells").rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): file_digest(path) for path in found}


def _mischief(folder: Path, cell_id: str) -> None:
    if cell_id.startswith("fails"):
        raise ValueError(f"{cell_id} was made to fail")
    mark = folder.parent / f"{cell_id}-died"
    if cell_id.startswith("doomed") or (cell_id.startswith("dies") and not mark.exists()):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
