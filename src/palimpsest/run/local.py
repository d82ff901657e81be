"""Cells in worker processes of this machine, one numerical thread each.

Even one worker is a process of its own: it has the same threads and the same libraries loaded as
each of many, a cell that exhausts the memory takes its worker and not the command, and the bytes
are the same. Each worker has its own pipe: a worker killed in the middle of a sentence can leave
no lock behind that another waits for.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from palimpsest.run.executor import (
    GRACE,
    RUN_CELL,
    Event,
    OnEvent,
    Outcome,
    check_workers,
    do_cell,
    environment_of_children,
    interrupted,
    keep_reason,
    silent,
    split,
    thread_settings,
)
from palimpsest.run.lease import let_go
from palimpsest.run.stop import Leave, StopRequest, leave_when_told, shielded, stop_requests
from palimpsest.run.store import Run

ATTEMPTS = 2
"""How often a cell is begun by workers that die under it before it counts as failed."""
START = "spawn"
"""How a worker process is started: afresh. Tests that kill hundreds of them have them forked."""


class LocalExecutor:
    """Runs cells in worker processes; `function` is the cell's "module:function".

    threads: numerical threads of each worker. More than one can change the last bits of a result,
    so it belongs to a run like its plan; models too large for one thread may need it.
    """

    def __init__(self, *, function: str = RUN_CELL, threads: int = 1) -> None:
        self.function = function
        self.threads = threads

    def execute(
        self,
        run_path: Path | str,
        cell_ids: Sequence[str],
        *,
        workers: int = 1,
        pool_file: Path | str | None = None,
        on_event: OnEvent = silent,
    ) -> Outcome:
        """Give what became of the cells; Interrupted when SIGINT or SIGTERM ended the work."""
        run = Run.open(Path(run_path).resolve())
        left, skipped = split(run, cell_ids)
        number = min(check_workers(workers), len(left))
        with stop_requests() as stop:
            crew = _Crew(self, run, pool_file)
            work = _Work(run, left, on_event)
            try:
                work.through(crew, number, stop)
            except BaseException:
                crew.dismiss(at_once=True)
                raise
            crew.dismiss(at_once=stop.signum is not None)
            if stop.signum is not None:
                raise interrupted(run, stop.signum)
        return Outcome(tuple(c for c in left if c in work.done), work.failed, skipped)


@dataclass
class _Worker:
    process: BaseProcess
    pipe: "Connection[Any, Any]"
    cell: str | None = None

    def give(self, cell: str | None) -> None:
        self.cell = cell
        # A worker that has died is noticed by its closed pipe, not here.
        with contextlib.suppress(OSError):
            self.pipe.send(cell)

    def said(self) -> Iterator[Event | None]:
        """Give what the worker has said since last asked, and None if it will say no more."""
        try:
            while self.pipe.poll():
                yield self.pipe.recv()
        except (EOFError, OSError):
            yield None


class _Crew:
    """The worker processes, started and dismissed."""

    def __init__(self, settings: LocalExecutor, run: Run, pool_file: Path | str | None) -> None:
        pool = None if pool_file is None else str(Path(pool_file).resolve())
        self.arguments = (settings.function, str(run.path), pool, settings.threads)
        self.environment = thread_settings(settings.threads)
        self.context: Any = multiprocessing.get_context(START)
        self.workers: list[_Worker] = []

    def hire(self) -> _Worker:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_work, args=(theirs, *self.arguments))
        # Started on first use, multiprocessing's own helper would lift the shield again.
        resource_tracker.ensure_running()
        with environment_of_children(self.environment), shielded():
            process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self.workers.append(worker)
        return worker

    def bury(self, worker: _Worker) -> str:
        """Give how a worker that said its last word ended."""
        worker.process.join(GRACE)
        code = worker.process.exitcode
        self.workers.remove(worker)
        worker.pipe.close()
        if code is not None and code < 0:
            hint = " (out of memory?)" if code == -signal.SIGKILL else ""
            return f"its worker was ended by {signal.Signals(-code).name}{hint}"
        return f"its worker ended with exit code {code}"

    def dismiss(self, *, at_once: bool) -> None:
        """Send everyone home: after their cell, or now; who does not go in time is killed."""
        for worker in self.workers:
            if at_once:
                worker.process.terminate()
            else:
                worker.give(None)
        deadline = time.monotonic() + GRACE
        try:
            for worker in self.workers:
                worker.process.join(max(0.0, deadline - time.monotonic()))
        finally:
            for worker in self.workers:
                worker.process.kill()
                worker.process.join()
                worker.process.close()
                worker.pipe.close()
            self.workers.clear()


class _Work:
    """The cells on their way: waiting, with a worker, done or failed."""

    def __init__(self, run: Run, cells: Sequence[str], on_event: OnEvent) -> None:
        self.run = run
        self.waiting = deque(cells)
        self.deaths: Counter[str] = Counter()
        self.done: set[str] = set()
        self.failed: dict[str, str] = {}
        self.on_event = on_event

    def through(self, crew: _Crew, number: int, stop: StopRequest) -> None:
        """Get every cell done, unless asked to stop."""
        for _ in range(number):
            crew.hire().give(self.waiting.popleft())
        while any(worker.cell for worker in crew.workers):
            wait([stop.reader, *(worker.pipe for worker in crew.workers)])
            for worker in list(crew.workers):
                for event in worker.said():
                    if stop.signum is not None:
                        return
                    if event is None:
                        self._lost(worker.cell, crew.bury(worker))
                        if self.waiting:
                            crew.hire().give(self.waiting.popleft())
                    else:
                        self._heard(event)
                        if event.kind != "step":
                            worker.give(self.waiting.popleft() if self.waiting else None)
            if stop.signum is not None:
                return

    def _heard(self, event: Event) -> None:
        if event.kind == "finished":
            self.done.add(event.cell)
        elif event.kind == "failed":
            self.failed[event.cell] = event.label
        self.on_event(event)

    def _lost(self, cell: str | None, how: str) -> None:
        """Put a dead worker's cell back, once."""
        if cell is None:
            return
        self.deaths[cell] += 1
        if self.run.cell(cell).finished():
            self._heard(Event(cell, "finished"))
        elif self.deaths[cell] < ATTEMPTS:
            self.waiting.appendleft(cell)
            self.run.note("worker lost", cell=cell, why=how)
            self.on_event(Event(cell, "again", f"{how}; the cell goes on where it was"))
        else:
            reason = f"{how}, {ATTEMPTS} times in this cell"
            keep_reason(self.run, cell, reason)
            self._heard(Event(cell, "failed", reason))


def _work(
    pipe: "Connection[Any, Any]", function: str, run_path: str, pool: str | None, threads: int
) -> None:
    """Be a worker: do the cells that come through the pipe until None does."""
    gone = (Leave, EOFError, BrokenPipeError, ConnectionResetError)
    with contextlib.suppress(*gone), leave_when_told():
        threading.Thread(target=_end_with_parent, daemon=True).start()
        while (cell := pipe.recv()) is not None:

            def tell(label: str, done: int, total: int, cell: str = cell) -> None:
                # A parent that is gone is no fault of the cell.
                with contextlib.suppress(OSError):
                    pipe.send(Event(cell, "step", label, done, total))

            reason = do_cell(function, run_path, cell, pool, tell, threads=threads)
            ending = Event(cell, "finished") if reason is None else Event(cell, "failed", reason)
            pipe.send(ending)
    let_go()


def _end_with_parent() -> None:
    """End this process when its parent dies: an orphan would hold the lease of its cell."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)
