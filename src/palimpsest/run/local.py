"""Steps in worker processes of this machine, one numerical thread each.

Even one worker is a process of its own: it has the same threads and the same libraries loaded as
each of many, a step that exhausts the memory takes its worker and not the command, and the bytes
are the same. Each worker has its own pipe: a worker killed in the middle of a message can leave no
lock behind that another waits for.
"""

import contextlib
import itertools
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from palimpsest.run.executor import OnEvent, Outcome, Work, shared_work, silent
from palimpsest.run.graph import Failure, Job
from palimpsest.run.locks import release_all
from palimpsest.run.stop import Leave, StopRequest, leave_on_sigterm, shielded, stop_requests
from palimpsest.run.worker import Result, Worker, environment_of_children, thread_settings

GRACE = 30.0
"""Seconds a worker has to end before it is killed."""
START = "spawn"
"""How a worker process is started: afresh. Tests that kill hundreds of them have them forked."""


class LocalExecutor:
    """Does steps in worker processes of this machine.

    threads: numerical threads of each worker. More than one can change the last bits of a result,
    so it belongs to a run like its plan; models too large for one thread may need it.
    """

    def __init__(self, *, threads: int = 1) -> None:
        self.threads = threads

    def execute(
        self,
        job: Job,
        run_path: Path | str,
        cell_ids: Sequence[str],
        *,
        workers: int = 1,
        on_event: OnEvent = silent,
    ) -> Outcome:
        """Return what became of the cells; Interrupted when SIGINT or SIGTERM ended the work."""
        with (
            shared_work(job, run_path, cell_ids, workers, on_event) as work,
            stop_requests() as stop,
        ):
            processes = _Processes(work, job, self.threads)
            try:
                processes.work_until_over(workers, stop)
            except BaseException:
                processes.stop(at_once=True)
                raise
            processes.stop(at_once=stop.signum is not None)
            if stop.signum is not None:
                raise work.interrupted(stop.signum)
        return work.outcome()


@dataclass
class _Process:
    name: str
    process: BaseProcess
    pipe: "Connection[Any, Any]"

    def send(self, message: object) -> None:
        # A worker that has died is noticed by its closed pipe, not here.
        with contextlib.suppress(OSError):
            self.pipe.send(message)

    def results(self) -> Iterator[Result | None]:
        """Return the results received since the last call, and None if no more will come."""
        try:
            while self.pipe.poll():
                yield self.pipe.recv()
        except (EOFError, OSError):
            yield None


class _Processes:
    """The worker processes, each with a step or waiting for one."""

    def __init__(self, work: Work, job: Job, threads: int) -> None:
        self.work = work
        # Pickled once, and unpickled where an error becomes the failure of a step.
        self.arguments = (pickle.dumps(job), str(work.run.path), threads)
        self.environment = thread_settings(threads)
        self.context: Any = multiprocessing.get_context(START)
        self.processes: list[_Process] = []
        self.numbers = itertools.count()

    def work_until_over(self, number: int, stop: StopRequest) -> None:
        """Do all steps that can be done, unless asked to stop."""
        while stop.signum is None:
            self._hand_out(number)
            if not self.work.scheduler.running:
                return
            wait([stop.reader, *(process.pipe for process in self.processes)])
            for process in list(self.processes):
                for result in process.results():
                    if stop.signum is not None:
                        return
                    if result is None:
                        self.work.lost(process.name, self._how_it_ended(process))
                    else:
                        self.work.ended(process.name, result)

    def _hand_out(self, number: int) -> None:
        """Give each free worker a step, starting workers as long as there are steps for them."""
        busy = self.work.scheduler.running
        for process in self.processes:
            if process.name not in busy:
                task = self.work.next(process.name)
                if task is None:
                    return
                process.send(task)
        while len(self.processes) < number:
            name = f"worker-{next(self.numbers)}"
            task = self.work.next(name)
            if task is None:
                return
            self._start(name).send(task)

    def _start(self, name: str) -> _Process:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_work, args=(theirs, name, *self.arguments))
        # Started on first use, multiprocessing's own helper would unblock the signals again.
        resource_tracker.ensure_running()
        with environment_of_children(self.environment), shielded():
            process.start()
        theirs.close()
        self.processes.append(_Process(name, process, ours))
        return self.processes[-1]

    def _how_it_ended(self, process: _Process) -> str:
        """Return how a worker that closed its pipe ended."""
        process.process.join(GRACE)
        code = process.process.exitcode
        self.processes.remove(process)
        process.pipe.close()
        if code is not None and code < 0:
            hint = " (out of memory?)" if code == -signal.SIGKILL else ""
            return f"its worker was ended by {signal.Signals(-code).name}{hint}"
        return f"its worker ended with exit code {code}"

    def stop(self, *, at_once: bool) -> None:
        """End all workers: after their step, or now; one that does not end in time is killed."""
        for process in self.processes:
            if at_once:
                process.process.terminate()
            else:
                process.send(None)
        deadline = time.monotonic() + GRACE
        try:
            for process in self.processes:
                process.process.join(max(0.0, deadline - time.monotonic()))
        finally:
            for process in self.processes:
                process.process.kill()
                process.process.join()
                process.process.close()
                process.pipe.close()
            self.processes.clear()


def _work(pipe: "Connection[Any, Any]", name: str, job: bytes, run_path: str, threads: int) -> None:
    """Do the steps that come through the pipe until None comes."""
    gone = (Leave, EOFError, BrokenPipeError, ConnectionResetError)
    with contextlib.suppress(*gone), leave_on_sigterm():
        threading.Thread(target=_end_with_parent, daemon=True).start()
        try:
            worker = Worker(pickle.loads(job), run_path, name, threads=threads)
            with worker.at_work():
                while (task := pipe.recv()) is not None:
                    pipe.send(worker.do(task))
        except gone:
            raise
        except Exception as error:
            # The worker could not begin: its step fails of that, wherever it is tried.
            task = pipe.recv()
            failure = Failure("error", f"{type(error).__name__}: {error}", task.step)
            pipe.send(Result("failed", 0.0, failure))
    release_all()


def _end_with_parent() -> None:
    """End this process when its parent dies: an orphan would go on writing to the run."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)
