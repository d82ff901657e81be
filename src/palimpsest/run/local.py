"""Steps in worker processes of this machine, one numerical thread each.

Even one worker is a process of its own: it has the same threads and the same libraries loaded as
each of many, a step that exhausts the memory takes its worker and not the command, and the bytes
are the same. Each worker has its own pipe: a worker killed in the middle of a message can leave no
lock behind that another waits for.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from palimpsest.run.executor import ONE_THREAD, Message, Work, Worker
from palimpsest.run.signals import shielded
from palimpsest.run.steps import Task

GRACE = 10.0
"""Seconds a worker without a step has to end before it is killed."""
START = "forkserver" if sys.platform == "linux" else "spawn"
"""How a worker process is started: afresh, or forked from a process that has imported modules and
done nothing else. Tests that kill hundreds of workers have them forked from the command."""


@contextlib.contextmanager
def pool(work: Work) -> Iterator["_Processes"]:
    """Provide worker processes for the steps of a run."""
    prepare(type(work.job).__module__)
    yield _Processes(pickle.dumps(work.job), work.run.path, work.run.device)


def prepare(*modules: str) -> None:
    """Start the process that workers are forked from, if there is none; it imports these modules.

    A command that calls this first imports its own modules meanwhile, and its workers none.
    """
    # Started on first use, multiprocessing's own helper would unblock the signals again.
    resource_tracker.ensure_running()
    if START == "forkserver":
        multiprocessing.set_forkserver_preload(["__main__", *modules])
        with _environment_of_children(ONE_THREAD), shielded():
            forkserver.ensure_running()


class _Processes:
    """The worker processes, by name."""

    def __init__(self, job: bytes, run_path: Path, device: str) -> None:
        self.device = device
        self.arguments = (job, str(run_path))
        # Its GPU is told to a library when that is loaded.
        start = START if START != "forkserver" or device == "cpu" else "spawn"
        self.context: Any = multiprocessing.get_context(start)
        self.processes: dict[str, tuple[BaseProcess, Connection[Any, Any]]] = {}

    def start(self, name: str) -> None:
        ours, theirs = self.context.Pipe()
        own = ONE_THREAD | gpu_of(name, self.device)
        arguments = (theirs, name, *self.arguments, {**os.environ, **own})
        process = self.context.Process(target=_work, args=arguments)
        with _environment_of_children(own), shielded():
            process.start()
        theirs.close()
        self.processes[name] = (process, ours)

    def send(self, name: str, task: Task | None) -> None:
        # A worker that has died is noticed by its closed pipe, not here.
        with contextlib.suppress(OSError):
            self.processes[name][1].send(task)

    def messages(self, wake: int) -> Iterator[tuple[str, Message]]:
        wait([wake, *(pipe for _, pipe in self.processes.values())])
        for name, (_, pipe) in list(self.processes.items()):
            try:
                while pipe.poll():
                    yield name, pipe.recv()
            except (EOFError, OSError):
                yield name, self._how_it_ended(name)

    def _how_it_ended(self, name: str) -> str:
        process, pipe = self.processes.pop(name)
        process.join(GRACE)
        code = process.exitcode
        pipe.close()
        if code is not None and code < 0:
            hint = " (out of memory?)" if code == -signal.SIGKILL else ""
            return f"its worker was ended by {signal.Signals(-code).name}{hint}"
        return f"its worker ended with exit code {code}"

    def stop(self, *, at_once: bool) -> None:
        deadline = time.monotonic() + (0.0 if at_once else GRACE)
        for name, (process, _) in self.processes.items():
            process.kill() if at_once else self.send(name, None)
        for process, pipe in self.processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.join()
            process.close()
            pipe.close()
        self.processes.clear()


def gpus() -> tuple[str, ...]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(part.strip() for part in named.split(",") if part.strip())
    try:
        return tuple(str(n) for n in range(len(os.listdir("/proc/driver/nvidia/gpus"))))
    except OSError:
        return ()


def gpu_of(name: str, device: str) -> dict[str, str]:
    """Return the environment that gives worker k GPU k, from the first again after the last."""
    there = gpus()
    if device != "cuda" or len(there) < 2:
        return {}
    return {"CUDA_VISIBLE_DEVICES": there[int(name.rpartition("-")[2]) % len(there)]}


def _work(
    pipe: "Connection[Any, Any]",
    name: str,
    job: bytes,
    run_path: str,
    environment: Mapping[str, str],
) -> None:
    """Do the steps that come through the pipe until None comes."""
    os.environ.clear()
    os.environ.update(environment)
    # Ctrl-C reaches the whole process group; the parent decides when a worker ends. A worker may be
    # ended at any instant, so the default action of SIGTERM is the right one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gone = (EOFError, BrokenPipeError, ConnectionResetError)
    with contextlib.suppress(*gone), contextlib.ExitStack() as held:
        try:
            worker = Worker(pickle.loads(job), run_path, name)
            held.enter_context(worker.at_work())
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")
            return
        pipe.send(None)
        while (task := pipe.recv()) is not None:
            pipe.send(worker.do(task))


def _end_with_parent() -> None:
    """End this process when its parent dies: an orphan would go on writing to the run."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def _environment_of_children(settings: Mapping[str, str]) -> Iterator[None]:
    """Let processes started meanwhile have these variables from their first instruction on."""
    before = dict(os.environ)
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
