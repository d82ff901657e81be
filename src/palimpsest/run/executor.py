"""What does the steps of a run, behind one small protocol, and what its implementations share.

Everything that lasts is written through the cell's folder by whoever does a step; an executor only
decides where and when. That is why one worker or many, local, Ray or this process, stopped or not,
give the same bytes.
"""

import contextlib
import itertools
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from palimpsest.errors import InputError, MachineError, PalimpsestError
from palimpsest.run import progress
from palimpsest.run.graph import FINISH, Failure, Job
from palimpsest.run.schedule import ATTEMPTS, Scheduler, Task
from palimpsest.run.stop import StopRequest, stop_requests
from palimpsest.run.store import Run
from palimpsest.run.worker import Result, Worker

Kind = Literal["run", "step", "done", "again", "finished", "failed", "halted"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a run ("run": work on it begins) or to one of its cells.

    "step": a step was begun; "done": it is stored, after `seconds`; "again": its worker was lost
    and it is begun again; "finished", "failed", "halted": the cell ended. `words` says what the
    step is, or the reason. `done` of `total` steps of the cell, or cells of the run, are stored.
    """

    cell: str
    kind: Kind
    step: str = ""
    words: str = ""
    done: int = 0
    total: int = 0
    seconds: float = 0.0
    worker: str = ""


OnEvent = Callable[[Event], None]
OnRun = Callable[[Path], OnEvent]
"""Called with the run folder before the first step; returns what receives every event."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the cells: finished now, failed, ended on purpose, ended before."""

    done: tuple[str, ...]
    failed: dict[str, Failure]
    halted: dict[str, str]
    skipped: tuple[str, ...]


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM stopped the work, in good order; nothing that was stored is lost."""

    def __init__(self, signum: int, run: Run) -> None:
        name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
        finished = sum(run.cell(cell).ended() for cell in run.cells)
        super().__init__(
            f"stopped by {name}: {finished} of {len(run.cells)} cells are finished, and the steps "
            "done in the others are kept; run the same command again to resume"
        )
        self.signum = signum
        self.exit_code = 128 + signum


def silent(event: Event) -> None:
    """Report nothing."""


class Work:
    """The cells on their way: the scheduler, the run folder, and the events told about it."""

    def __init__(self, job: Job, run: Run, cell_ids: Sequence[str], on_event: OnEvent) -> None:
        self.job = job
        self.run = run
        self.on_event = on_event
        self.cells = list(dict.fromkeys(cell_ids))
        self.skipped: list[str] = []
        self.halted: dict[str, str] = {}
        self.failed: dict[str, Failure] = {}
        steps, done = {}, {}
        for cell_id in self.cells:
            cell = run.cell(cell_id).for_work({})
            for damage in cell.prepare():
                run.note("damaged", cell=cell_id, step=damage.step, why=damage.why)
            if (reason := cell.halted()) is not None:
                self.halted[cell_id] = reason
            if cell.ended() or reason is not None:
                self.skipped.append(cell_id)
                continue
            try:
                steps[cell_id] = job.cell(cell_id).steps
            except PalimpsestError as error:
                self.failed[cell_id] = Failure(error.kind, str(error), "")
                cell.fail(self.failed[cell_id])
                on_event(Event(cell_id, "failed", words=str(error)))
                continue
            done[cell_id] = {step for step in cell.steps() if cell.done(step)}
        self.scheduler = Scheduler(steps, done)
        progress.write_graph(run.path, steps)

    def begin(self) -> None:
        """Tell what is to be done, and how many of how many cells are done."""
        done, total, run = len(self.skipped), len(self.cells), self.run
        words = f"{run.path}: {total - done} of {total} cells to do"
        commitment = run.seal["commitment"]
        if commitment != "none":  # nothing is judged in a run without one
            words += f", rules {run.rules_hash[7:19]}, seal {commitment[7:19]}"
        self.on_event(Event("", "run", "", words, done, total))

    def next(self, worker: str) -> Task | None:
        """Return the next step for a worker, which begins it now."""
        task = self.scheduler.next(worker)
        if task is not None:
            self._tell("step", task, self.scheduler.step(task).words, worker=worker)
        return task

    def ended(self, worker: str, result: Result) -> None:
        """Record what became of a worker's step."""
        scheduler = self.scheduler
        if result.failure is not None:
            if result.failure.kind == MachineError.kind:
                raise MachineError(result.failure.reason)
            task = scheduler.failed(worker, result.failure)
            self._failed(task, result.failure)
        elif result.kind == "halted":
            task = scheduler.halted(worker, result.reason)
            self._tell("halted", task, result.reason)
        else:
            task = scheduler.done(worker)
            words = scheduler.step(task).words
            self._tell("done", task, words, seconds=result.seconds, worker=worker)
            if task.step == FINISH:
                self._tell("finished", task, "")
        self._clear_halted(task.cell)

    def lost(self, worker: str, why: str) -> None:
        """Record that a worker is gone; its step is begun again, once."""
        task = self.scheduler.running[worker]
        cell = self.run.cell(task.cell)
        # It may have been lost after its last write.
        if cell.ended() if task.step == FINISH else cell.done(task.step):
            cell.sweep()
            return self.ended(worker, Result("done", 0.0))
        if (reason := cell.halted()) is not None:
            return self.ended(worker, Result("halted", 0.0, reason=reason))
        task, failure = self.scheduler.lost(worker, why)
        self.run.note("worker lost", worker=worker, cell=task.cell, step=task.step, why=why)
        if failure is None:
            self._tell("again", task, f"{why}; the step is started again")
        else:
            self._failed(task, failure)
        self._clear_halted(task.cell)

    def outcome(self) -> Outcome:
        """Return what became of the cells so far."""
        scheduler = self.scheduler
        done = tuple(sorted(scheduler.finished, key=self.cells.index))
        failed, halted = self.failed | scheduler.failures, self.halted | scheduler.halts
        return Outcome(done, failed, halted, tuple(self.skipped))

    def _failed(self, task: Task, failure: Failure) -> None:
        state = self.scheduler.cells[task.cell]
        if state.halted is None:
            self.run.cell(task.cell).fail(state.failure)
            self._tell("failed", task, failure.reason)

    def _clear_halted(self, cell_id: str) -> None:
        # Workers at other steps of a halted cell still write to it; the last of them clears it.
        state = self.scheduler.cells[cell_id]
        if state.halted is not None and not state.running:
            self.run.cell(cell_id).sweep()

    def _tell(
        self, kind: Kind, task: Task, words: str, *, seconds: float = 0.0, worker: str = ""
    ) -> None:
        done, total = self.scheduler.progress(task.cell)
        self.on_event(Event(task.cell, kind, task.step, words, done, total, seconds, worker))


class Executor(ABC):
    """Does the cells of a run folder; a cell that fails does not stop the others."""

    def execute(
        self,
        job: Job,
        run_path: Path | str,
        cell_ids: Sequence[str],
        *,
        workers: int = 1,
        on_event: OnEvent = silent,
        command: str = "palimpsest",
    ) -> Outcome:
        """Return what became of the cells; Interrupted when SIGINT or SIGTERM ended the work."""
        if workers < 1:
            raise InputError(f"workers: {workers} found; expected at least 1")
        run = Run.open(Path(run_path).resolve())
        with contextlib.nullcontext() if run.locked_here() else run.lock(command):
            work = Work(job, run, cell_ids, on_event)
            work.begin()
            self._do(work, workers)
            run.record()
        return work.outcome()

    @abstractmethod
    def _do(self, work: Work, workers: int) -> None:
        """Do the steps until none is left that can be done."""


class InlineExecutor(Executor):
    """Does all steps in this process, in plan order; for Python callers and tests."""

    def _do(self, work: Work, workers: int) -> None:
        worker = Worker(work.job, work.run.path, "inline")
        with worker.at_work():
            while (task := work.next(worker.name)) is not None:
                work.ended(worker.name, worker.do(task))


def executor(name: str, **options: Any) -> Executor:
    """Return the executor of that name, `local`, `ray` or `inline`, with its own options."""
    from palimpsest.run.local import LocalExecutor
    from palimpsest.run.ray import RayExecutor

    kinds: dict[str, Callable[..., Executor]] = {"local": LocalExecutor, "ray": RayExecutor}
    kinds["inline"] = InlineExecutor
    if name not in kinds:
        raise InputError(f"executor {name!r} is unknown; expected local, ray or inline")
    return kinds[name](**options)


_named = executor


def carry_out(
    job: Job,
    run: Run,
    command: str,
    *,
    executor: str = "inline",
    workers: int = 1,
    on_event: OnEvent = silent,
    on_run: OnRun | None = None,
    **options: Any,
) -> Outcome:
    """Do what is left of a run, as every command does; `options` are the executor's own."""
    tracker = silent if on_run is None else on_run(run.path)

    def tell(event: Event) -> None:
        on_event(event)
        tracker(event)

    return _named(executor, **options).execute(
        job, run.path, run.cells, workers=workers, on_event=tell, command=command
    )


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
        """Wait for reports, or until the descriptor `wake` can be read; return them."""

    def stop(self, *, at_once: bool) -> None:
        """End all workers: those with a step only if `at_once`."""


def run_on(pool: Pool, work: Work, workers: int) -> None:
    """Do the steps on a pool's workers."""
    with stop_requests() as stop:
        try:
            _hand_out(work, pool, workers, stop)
        except BaseException:
            pool.stop(at_once=True)
            raise
        pool.stop(at_once=stop.signum is not None)
        if stop.signum is not None:
            work.run.sweep()
            raise Interrupted(stop.signum, work.run)


def _hand_out(work: Work, pool: Pool, workers: int, stop: StopRequest) -> None:
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
                work.run.note("worker lost", worker=name, why=message)
                if lost_starting > ATTEMPTS:
                    raise PalimpsestError(
                        f"no worker can start ({message}); expected {workers}; correct what it "
                        "says, then run the same command again"
                    )
            elif name in free:
                free.remove(name)
            elif name in work.scheduler.running:
                work.lost(name, message)
