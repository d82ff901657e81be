"""What does the steps of a run: this process, worker processes or a Ray cluster.

Everything that lasts is written through the cell's folder by the worker that does a step; where and
when that is has no influence on it. That is why one worker or many, local, Ray or this process,
stopped or not, give the same bytes.
"""

import contextlib
import itertools
import os
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from palimpsest.errors import (
    InputError,
    MachineError,
    PalimpsestError,
    StoreError,
    show_traceback,
)
from palimpsest.run.cell import CellStore
from palimpsest.run.locks import lock
from palimpsest.run.signals import Stopped, StopSignal, check_stop, stop_signals
from palimpsest.run.status import COMMAND, note, worker_lock, write_graph
from palimpsest.run.steps import (
    ATTEMPTS,
    FINISH,
    CellWork,
    Failure,
    Job,
    Scheduler,
    Step,
    Task,
)
from palimpsest.run.store import Run

ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
}
"""The environment in which numerical libraries use one thread when loaded: more than one can change
the last bits of a result."""
KEPT_CELLS = 2
"""How many cells' work a worker keeps, with its caches."""

Kind = Literal["run", "step", "done", "again", "finished", "failed"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a run ("run": work on it starts) or to one of its cells.

    "step": a step was started; "done": it is stored, after ``seconds``; "again": its worker was
    lost and it is started again; "finished", "failed": the cell ended. ``words`` says what the step
    is, or the reason. ``done`` of ``total`` steps of the cell, or cells of the run, are stored.
    """

    cell: str
    kind: Kind
    step: str = ""
    words: str = ""
    done: int = 0
    total: int = 0
    seconds: float = 0.0
    worker: str = ""
    phase: str = ""
    """The kind of the step."""


OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the cells: finished now, failed, finished before."""

    done: tuple[str, ...]
    failed: dict[str, Failure]
    skipped: tuple[str, ...]
    computed: int
    """Steps that were computed, not found or taken over."""


def silent(event: Event) -> None:
    """Report nothing."""


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
        with lock(worker_lock(self.run.path, self.name), f"worker {self.name}", wait=5.0):
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
            show_traceback(error)
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
            self._cells[cell_id] = (self.job.cell(cell_id), self.run.cell(cell_id))
        self._cells.move_to_end(cell_id)
        while len(self._cells) > KEPT_CELLS:
            self._cells.popitem(last=False)
        return self._cells[cell_id]

    def _note(self, event: str, **data: object) -> None:
        note(self.run.path, self.name, event, **data)


class Work:
    """The cells to do: the scheduler, the run folder, and the events told about it."""

    def __init__(self, job: Job, run: Run, on_event: OnEvent, reuse: Run | None = None) -> None:
        self.job = job
        self.run = run
        self.on_event = on_event
        self.computed = 0
        self.skipped: list[str] = []
        self.failed: dict[str, Failure] = {}
        self._reuse = reuse
        steps: dict[str, tuple[Step, ...]] = {}
        to_do: dict[str, set[str]] = {}
        for cell_id in run.cells:
            store = run.cell(cell_id)
            for why in store.prepare().values():
                note(run.path, COMMAND, "damaged", cell=cell_id, why=why)
            try:
                planned = job.cell(cell_id).steps
            except PalimpsestError as error:
                self.failed[cell_id] = Failure(error.kind, str(error), "")
                store.fail(self.failed[cell_id])
                on_event(Event(cell_id, "failed", words=str(error)))
                continue
            for step in planned:
                self._take_over(step, store)
            to_do[cell_id] = store.steps_left(planned)
            if not to_do[cell_id] and store.finished(planned):
                store.drop_transient(planned)  # the last command may have been killed before
                self.skipped.append(cell_id)
            else:
                steps[cell_id] = planned
        self.planned = steps
        self.scheduler = Scheduler(steps, to_do)
        write_graph(run.path, steps)

    def begin(self) -> None:
        """Tell what is to be done, and how many cells are done."""
        done, total, run = len(self.skipped), len(self.run.cells), self.run
        words = f"{total - done} of {total} cells to do"
        if total == 1:
            stored, steps = self.scheduler.progress(run.cells[0]) if self.planned else (0, 0)
            words = f"{steps - stored} of {steps} steps to do" if steps else "nothing left to do"
        commitment = run.terms.seal["commitment"]
        if commitment != "none":  # nothing is judged in a run without one
            hashes = f"{run.terms.rules_hash[7:19]}, {commitment[7:19]}"
            words += f"\nRules and test questions locked (hashes {hashes})"
        self.on_event(Event("", "run", "", f"{run.path}: {words}", done, total))

    def next(self, worker: str) -> Task | None:
        """Return the next step for a worker, which starts it now."""
        if (task := self.scheduler.next(worker)) is not None:
            self._tell("step", task, self.scheduler.step(task).words, worker=worker)
        return task

    def ended(self, worker: str, result: Result) -> None:
        """Record what became of a worker's step."""
        if result.failure is not None:
            if result.failure.kind == MachineError.kind:
                raise MachineError(result.failure.reason)
            self._failed(self.scheduler.failed(worker, result.failure), result.failure)
            return
        task = self.scheduler.done(worker)
        words = self.scheduler.step(task).words
        self._tell("done", task, words, seconds=result.seconds, worker=worker)
        self.computed += task.step != FINISH
        if task.step == FINISH:
            self._tell("finished", task, "")

    def lost(self, worker: str, why: str) -> None:
        """Record that a worker is gone; its step is started again, once."""
        task = self.scheduler.running[worker]
        step, store = self.scheduler.step(task), self.run.cell(task.cell)
        # It may have been lost after its last write.
        planned = self.planned[task.cell]
        if store.finished(planned) if task.step == FINISH else store.done(step):
            return self.ended(worker, Result(0.0))
        task, failure = self.scheduler.lost(worker, why)
        where = {"worker": worker, "cell": task.cell, "step": task.step}
        note(self.run.path, COMMAND, "worker lost", **where, why=why)
        if failure is None:
            self._tell("again", task, f"{why}; the step is started again")
        else:
            self._failed(task, failure)

    def outcome(self) -> Outcome:
        """Return what became of the cells so far."""
        done = tuple(sorted(self.scheduler.finished, key=self.run.cells.index))
        failed = self.failed | self.scheduler.failures
        return Outcome(done, failed, tuple(self.skipped), self.computed)

    def _take_over(self, step: Step, store: CellStore) -> None:
        """Take over a step that is not stored from where one of its key is."""
        if not store.recorded(step) and step.key in self._elsewhere:
            store.take(step, *self._elsewhere[step.key])

    @cached_property
    def _elsewhere(self) -> dict[str, tuple[CellStore, str]]:
        """Steps by key: of another run, and of this one, where they may have other names by now."""
        return stored_steps(self._reuse, self.run)

    def _failed(self, task: Task, failure: Failure) -> None:
        self.run.cell(task.cell).fail(self.scheduler.failures[task.cell])
        self._tell("failed", task, failure.reason)

    def _tell(
        self, kind: Kind, task: Task, words: str, *, seconds: float = 0.0, worker: str = ""
    ) -> None:
        done, total = self.scheduler.progress(task.cell)
        phase = str(self.scheduler.step(task).kind)
        self.on_event(Event(task.cell, kind, task.step, words, done, total, seconds, worker, phase))


def stored_steps(*runs: Run | None) -> dict[str, tuple[CellStore, str]]:
    """Return where the steps of these runs are stored, and under which name, by their keys."""
    found: dict[str, tuple[CellStore, str]] = {}
    for run in filter(None, runs):
        for store in map(run.cell, run.cells):
            for name in store.step_names():
                with contextlib.suppress(PalimpsestError, KeyError):
                    found[store.manifest(name)["key"]] = (store, name)
    return found


def execute(
    job: Job,
    run: Run,
    *,
    executor: str = "inline",
    workers: int = 1,
    on_event: OnEvent = silent,
    reuse: Run | None = None,
    **resources: Any,
) -> Outcome:
    """Do what is left of a run and return what became of its cells; one that fails does not stop
    the others. Stopped when SIGINT or SIGTERM ended the work.

    executor: inline (this process, in plan order), local (worker processes) or ray.
    reuse: another run whose stored steps are taken over where their keys are asked for.
    resources: what each worker asks Ray for; see ``ray.pool``.
    """
    if workers < 1:
        raise InputError(f"workers: {workers} found; expected at least 1")
    with contextlib.nullcontext() if run.locked_here() else run.lock():
        work = Work(job, run, on_event, reuse)
        work.begin()
        if executor == "inline":
            worker = Worker(job, run.path, executor)
            with worker.at_work():
                while (task := work.next(worker.name)) is not None:
                    work.ended(worker.name, worker.do(task))
        else:
            from palimpsest.run import local, ray

            made = local.pool(work) if executor == "local" else ray.pool(work, workers, **resources)
            with made as pool:
                run_on(pool, work, workers)
    return work.outcome()


# -- many workers ----------------------------------------------------------------------------------

Message = Result | str | None
"""What a worker reports: the result of its step; None, it is ready; text, how it was lost."""


class Pool(Protocol):
    """Workers in other processes, by name. One that is lost is forgotten."""

    def start(self, name: str) -> None:
        """Start a worker, which reports when it is ready."""

    def send(self, name: str, task: Task) -> None:
        """Give a worker that is ready a step."""

    def messages(self, wake: int) -> Iterator[tuple[str, Message]]:
        """Wait for reports, or until the descriptor ``wake`` can be read; return them."""

    def stop(self, *, at_once: bool) -> None:
        """End all workers: those with a step only if ``at_once``."""


def run_on(pool: Pool, work: Work, workers: int) -> None:
    """Do the steps on a pool's workers."""
    with stop_signals() as stop:
        try:
            _hand_out(work, pool, workers, stop)
        except BaseException:
            pool.stop(at_once=True)
            raise
        pool.stop(at_once=stop.signum is not None)
        # Not before: a file that a lost worker left cannot be told from one that is being written.
        work.run.sweep()
        if stop.signum is not None:
            finished = sum(work.run.cell(cell).ended() for cell in work.run.cells)
            raise Stopped(
                stop.signum,
                f"{finished} of {len(work.run.cells)} cells are finished, and the finished steps "
                "of the others are kept",
            )


def _hand_out(work: Work, pool: Pool, workers: int, stop: StopSignal) -> None:
    """Give ready steps to ready workers, until no step can be done or a signal asks to stop."""
    numbers = itertools.count()
    starting: set[str] = set()
    free: list[str] = []
    lost_starting = 0
    while stop.signum is None and not work.scheduler.over:
        while free and stop.signum is None and (task := work.next(free[0])) is not None:
            pool.send(free.pop(0), task)
        alive = len(starting) + len(free) + len(work.scheduler.running)
        # More than are ready: a worker that has started by then takes the next step at once.
        for _ in range(min(workers, work.scheduler.left) - alive):
            name = f"worker-{next(numbers)}"
            starting.add(name)
            pool.start(name)
        for name, message in pool.messages(stop.reader):
            if stop.signum is not None:
                return
            if isinstance(message, Result):
                work.ended(name, message)
                free.append(name)
            elif message is None:
                starting.discard(name)
                free.append(name)
                lost_starting = 0
            elif name in starting:
                starting.discard(name)
                lost_starting += 1
                note(work.run.path, COMMAND, "worker lost", worker=name, why=message)
                if lost_starting > ATTEMPTS:
                    raise PalimpsestError(
                        f"no worker can start ({message}); expected {workers}; correct what it "
                        'says above (in a script, call palimpsest below `if __name__ == "__main__":'
                        "`), then run the same command again"
                    )
            elif name in free:
                free.remove(name)
            elif name in work.scheduler.running:
                work.lost(name, message)
