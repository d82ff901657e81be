"""What runs the cells of a study, behind one small protocol, and what its implementations share.

A cell is one call of a function named by its import path ("module:function"), so that another
process or another machine can find it. Everything that lasts is written by that function through
the store; an executor only decides where and when it is called. That is why one worker or many,
local or Ray, stopped or not, give the same bytes.
"""

import contextlib
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from palimpsest.errors import InputError, LeaseHeld, PalimpsestError, StoreError
from palimpsest.run.stop import heed
from palimpsest.run.store import Run

RUN_CELL = "palimpsest.study.matrix:run_cell"

PATIENCE = 30.0
"""Seconds to wait for a cell whose last owner was killed and is not quite dead yet."""
GRACE = 30.0
"""Seconds a worker has to put its pen down before it is killed."""

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a cell: `label` is the step begun, or the reason."""

    cell: str
    kind: Literal["step", "again", "finished", "failed"]
    label: str = ""
    done: int = 0
    total: int = 0


OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the cells: finished now, failed with their reason, finished before."""

    done: tuple[str, ...]
    failed: dict[str, str]
    skipped: tuple[str, ...]


class Executor(Protocol):
    """Runs cells of a run folder; a cell that fails does not stop the others."""

    def execute(
        self,
        run_path: Path | str,
        cell_ids: Sequence[str],
        *,
        workers: int,
        pool_file: Path | str | None = None,
        on_event: OnEvent,
    ) -> Outcome:
        """Give what became of the cells; Interrupted when SIGINT or SIGTERM ended the work."""
        ...


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM stopped the work, in good order; nothing that was stored is lost."""

    def __init__(self, signum: int, finished: int, planned: int) -> None:
        name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
        super().__init__(
            f"stopped by {name}: {finished} of {planned} cells are finished, and the steps done in "
            "the others are kept; run the same command again to go on"
        )
        self.signum = signum
        self.exit_code = 128 + signum


def executor(name: str, **options: Any) -> Executor:
    """Give the executor of that name, `local` or `ray`, with its own options."""
    if name == "local":
        from palimpsest.run.local import LocalExecutor

        return LocalExecutor(**options)
    if name == "ray":
        from palimpsest.run.ray import RayExecutor

        return RayExecutor(**options)
    raise InputError(f"executor {name!r} is unknown; expected local or ray")


def silent(event: Event) -> None:
    """Tell nobody."""


# -- around the work -------------------------------------------------------------------------------


def split(run: Run, cell_ids: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Give the cells still to do and those that are finished and intact, each in order."""
    unique = list(dict.fromkeys(cell_ids))
    finished = tuple(cell for cell in unique if run.cell(cell).finished())
    return [cell for cell in unique if cell not in finished], finished


def check_workers(workers: int) -> int:
    """Give the number of workers back if there can be so many."""
    if workers < 1:
        raise InputError(f"workers: {workers} found; expected at least 1")
    return workers


def keep_reason(run: Run, cell_id: str, reason: str) -> None:
    """Store why a cell failed when its worker could not."""
    cell = run.cell(cell_id)
    with contextlib.suppress(StoreError), cell.claim("noting a failure", wait=1.0):
        if not cell.finished():
            cell.fail(reason)


def interrupted(run: Run, signum: int) -> Interrupted:
    """Give the error that says how far the run has come."""
    return Interrupted(signum, sum(run.cell(cell).ended() for cell in run.cells), len(run.cells))


# -- in the worker ---------------------------------------------------------------------------------


def thread_settings(threads: int) -> dict[str, str]:
    """Give the environment in which numerical libraries, when first loaded, use so many threads."""
    return {name: str(threads) for name in _THREADS} | {"TOKENIZERS_PARALLELISM": "false"}


@contextlib.contextmanager
def environment_of_children(settings: Mapping[str, str]) -> Iterator[None]:
    """Let processes started meanwhile have these variables from their first instruction on."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def do_cell(
    function: str,
    run_path: Path | str,
    cell_id: str,
    pool_file: Path | str | None,
    progress: Callable[[str, int, int], None],
    *,
    threads: int = 1,
) -> str | None:
    """Do one cell in this process; give None, or the reason why it failed."""
    os.environ.update(thread_settings(threads))
    try:
        call = imported(function)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                call(run_path, cell_id, pool_file=pool_file, progress=progress)
                return None
            except LeaseHeld:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.25)
    except Exception as error:
        heed()
        if not isinstance(error, PalimpsestError):
            _keep_traceback(run_path, cell_id)
        return f"{type(error).__name__}: {error}"


def imported(function: str) -> Callable[..., None]:
    """Give the function at an import path such as "palimpsest.study.matrix:run_cell"."""
    module, _, name = function.partition(":")
    found: Callable[..., None] = getattr(importlib.import_module(module), name)
    return found


def _keep_traceback(run_path: Path | str, cell_id: str) -> None:
    with contextlib.suppress(PalimpsestError, OSError):
        Run.open(run_path).note("traceback", cell=cell_id, traceback=traceback.format_exc())
