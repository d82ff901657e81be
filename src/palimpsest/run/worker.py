"""What a worker does with a step, in whatever process it lives: this one, a child, a Ray actor."""

import contextlib
import os
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from palimpsest.errors import PalimpsestError, StoreError
from palimpsest.run import progress
from palimpsest.run.cell import CellStore
from palimpsest.run.locks import lock
from palimpsest.run.schedule import Task
from palimpsest.run.steps import FINISH, CellWork, Failure, Job, check_steps
from palimpsest.run.stop import check_stop
from palimpsest.run.store import Run

ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
}
"""The environment in which numerical libraries use one thread when loaded: more than one can change
the last bits of a result."""
KEPT_CELLS = 2
"""How many cells' work a worker keeps, with its caches."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a step: done, or failed with its failure."""

    seconds: float
    failure: Failure | None = None


class Worker:
    """Does steps of a run's cells, one after another, within ``at_work``."""

    def __init__(self, job: Job, run_path: Path | str, name: str) -> None:
        self.job = job
        self.run = Run.open(run_path)
        self.name = name
        self._cells: OrderedDict[str, tuple[CellWork, CellStore]] = OrderedDict()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Hold the worker's name while it works, so that others see that it is alive."""
        with lock(progress.worker_lock(self.run.path, self.name), f"worker {self.name}", wait=5.0):
            try:
                yield
            finally:
                self._note("ended")

    def do(self, task: Task) -> Result:
        """Do one step; whatever goes wrong in it is in the result."""
        began = time.monotonic()
        step = {"cell": task.cell, "step": task.step}
        self._note("started", **step)
        failure = None
        try:
            self._do(task)
        except Exception as error:
            check_stop()
            if isinstance(error, PalimpsestError):
                failure = Failure(error.kind, str(error), task.step)
            else:
                failure = Failure("error", f"{type(error).__name__}: {error}", task.step)
                self._note("traceback", **step, traceback=traceback.format_exc())
            self._cells.pop(task.cell, None)
        result = Result(time.monotonic() - began, failure)
        self._note("failed" if failure else "done", **step, seconds=round(result.seconds, 6))
        return result

    def _do(self, task: Task) -> None:
        os.environ.update(ONE_THREAD)
        work, store = self._work(task.cell)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        if task.step == FINISH:
            store.finish(work.finish(store), work.steps, work.keep(store))
            self._cells.pop(task.cell)
            return
        step = next(step for step in work.steps if step.name == task.step)
        if not store.done(step):
            store.begin(step)
            work.do(step, store)
            if not store.done(step):
                raise StoreError(
                    f"cell {task.cell}: step {step.name!r} ended without storing anything; "
                    "expected one store.put(step, ...)"
                )

    def _work(self, cell_id: str) -> tuple[CellWork, CellStore]:
        """Return the work of a cell, made once for as long as it is among the last ones."""
        if cell_id not in self._cells:
            work = self.job.cell(cell_id)
            check_steps(work.steps, cell_id)
            self._cells[cell_id] = (work, self.run.cell(cell_id).for_work())
        self._cells.move_to_end(cell_id)
        while len(self._cells) > KEPT_CELLS:
            self._cells.popitem(last=False)
        return self._cells[cell_id]

    def _note(self, event: str, **data: object) -> None:
        progress.note(self.run.path, self.name, event, **data)
