"""Cells as Ray tasks, on an existing cluster or on one that is started here and ended afterwards.

Ray decides where a cell runs, from the resources it asks for, and calls it again elsewhere when
its node or its process is lost; the cell then goes on at the step it had reached. The run folder
lies on storage that every node mounts at the same path and that carries file locks.
"""

import contextlib
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from palimpsest.errors import DriftError, InputError, PalimpsestError
from palimpsest.run.executor import (
    GRACE,
    RUN_CELL,
    Event,
    OnEvent,
    Outcome,
    check_workers,
    do_cell,
    interrupted,
    keep_reason,
    silent,
    split,
)
from palimpsest.run.lease import let_go
from palimpsest.run.stop import Leave, StopRequest, leave_when_told, stop_requests
from palimpsest.run.store import Run, environment
from palimpsest.run.terms import difference

POLL = 0.5
_OBJECT_STORE = 100 * 1024 * 1024  # nothing but a few words goes through it


class RayExecutor:
    """Runs cells as Ray tasks.

    address: of a cluster ("auto", "host:6379", "ray://host:10001"); None starts one here.
    num_cpus, num_gpus, memory (bytes): what one cell takes; a plan for a GPU takes one by default.
    retries: how often Ray calls a cell again whose node or process was lost.
    function: the cell's "module:function", importable on every node.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        num_cpus: float = 1,
        num_gpus: float | None = None,
        memory: int | None = None,
        retries: int = 5,
        function: str = RUN_CELL,
    ) -> None:
        self.address = address
        self.num_cpus = num_cpus
        self.num_gpus = num_gpus
        self.memory = memory
        self.retries = retries
        self.function = function

    def execute(
        self,
        run_path: Path | str,
        cell_ids: Sequence[str],
        *,
        workers: int = 1,
        pool_file: Path | str | None = None,
        on_event: OnEvent = silent,
    ) -> Outcome:
        """Give what became of the cells; `workers` is how many are handed to Ray at a time."""
        ray = ray_library()
        run = Run.open(Path(run_path).resolve())
        left, skipped = split(run, cell_ids)
        number = check_workers(workers)
        if not left:
            return Outcome((), {}, skipped)
        pool = None if pool_file is None else str(Path(pool_file).resolve())
        with self._cluster(ray, number), stop_requests() as stop:
            work = _Tasks(ray, run, on_event, self._task(ray, run), (self.function, pool))
            work.through(left, number, stop)
            if stop.signum is not None:
                raise interrupted(run, stop.signum)
        return Outcome(tuple(c for c in left if c in work.done), work.failed, skipped)

    def _task(self, ray: Any, run: Run) -> Any:
        device = str(run.plan.get("engine", {}).get("device", "cpu"))
        gpus = self.num_gpus if self.num_gpus is not None else float(device.startswith("cuda"))
        options = {"num_cpus": self.num_cpus, "num_gpus": gpus, "max_retries": self.retries}
        if self.memory is not None:
            options["memory"] = self.memory
        return ray.remote(_cell).options(scheduling_strategy="SPREAD", **options)

    @contextlib.contextmanager
    def _cluster(self, ray: Any, number: int) -> Iterator[None]:
        """Be connected to the cluster; a connection that was there before is left as it is."""
        if ray.is_initialized():
            yield
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        # Ray puts a handler of its own in the place of this one and leaves it there.
        handler = signal.getsignal(signal.SIGTERM)
        try:
            if self.address is None:
                # Ray's workers give way to everything else by default; here they are the work.
                os.environ.setdefault("RAY_worker_niceness", "0")
                here = {"num_cpus": max(1, round(number * self.num_cpus))}
                here["object_store_memory"] = _OBJECT_STORE
                ray.init(address="local", include_dashboard=False, **here, **quiet)
            else:
                ray.init(address=self.address, **quiet)
        except (ConnectionError, ValueError, TimeoutError) as error:
            raise InputError(
                f"Ray address {self.address!r}: no cluster answers ({error}); expected one such as "
                "'auto' or 'host:6379'; start it with `ray start --head`, or leave the address out"
            ) from error
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
            # Ray gives its processes 30 seconds, whatever else the machine is doing.
            raise PalimpsestError(
                f"Ray did not start on this machine ({' '.join(str(error).split())}); expected it "
                "within its own limit; try again when the machine is less busy, or use "
                "--executor local"
            ) from error
        try:
            with _hushed(ray):
                yield
        finally:
            ray.shutdown()
            with contextlib.suppress(ValueError, TypeError):
                signal.signal(signal.SIGTERM, handler)


def ray_library() -> Any:
    """Give Ray, which is installed only where it is wanted."""
    try:
        import ray
    except ImportError as error:
        raise InputError(
            "the executor 'ray' needs Ray, which is not installed; "
            "pip install 'palimpsest-audit[ray]', or use --executor local"
        ) from error
    return ray


@contextlib.contextmanager
def _hushed(ray: Any) -> Iterator[None]:
    """Keep Ray from telling of lost processes on stdout, which belongs to --json; events do.

    Ray has no setting for it. Where a later Ray has another name for the function, it talks.
    """
    worker, name = ray._private.worker, "print_to_stdstream"
    said = getattr(worker, name, None)
    if said is not None:
        setattr(worker, name, lambda *args, **kwargs: None)
    try:
        yield
    finally:
        if said is not None:
            setattr(worker, name, said)


class _Tasks:
    """The cells on their way through Ray: handed over, done or failed."""

    def __init__(
        self, ray: Any, run: Run, on_event: OnEvent, task: Any, arguments: tuple[str, str | None]
    ) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.ray = ray
        self.run = run
        self.on_event = on_event
        self.task = task
        self.function, self.pool = arguments
        self.done: set[str] = set()
        self.failed: dict[str, str] = {}
        self.places: dict[str, str] = {}  # where each cell was last begun
        self.pending: dict[Any, str] = {}
        # Beside the driver: only if this machine is lost are the messages lost, too.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor = ray.remote(_Mailbox).options(num_cpus=0, scheduling_strategy=here)
        self.mailbox = actor.remote()

    def through(self, cells: Sequence[str], number: int, stop: StopRequest) -> None:
        """Get every cell done, unless asked to stop."""
        waiting = deque(cells)
        try:
            while (waiting or self.pending) and stop.signum is None:
                while waiting and len(self.pending) < number:
                    self._submit(waiting.popleft())
                ready, _ = self.ray.wait(list(self.pending), timeout=POLL)
                self._deliver()
                for reference in ready:
                    self._ended(self.pending.pop(reference), reference)
        finally:
            self._cancel()

    def _submit(self, cell: str) -> None:
        where = (str(self.run.path), os.getcwd())
        call = self.task.remote(self.function, where, cell, self.pool, self.mailbox)
        self.pending[call] = cell

    def _ended(self, cell: str, reference: Any) -> None:
        try:
            reason = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            # Lost for good, unless it was lost after its last word was stored.
            finished = self.run.cell(cell).finished()
            reason = None if finished else f"{type(error).__name__}: {str(error).splitlines()[0]}"
            if reason is not None:
                keep_reason(self.run, cell, reason)
        if reason is None:
            self.done.add(cell)
            self.on_event(Event(cell, "finished"))
        else:
            self.failed[cell] = reason
            self.on_event(Event(cell, "failed", reason))

    def _deliver(self) -> None:
        """Pass on what the cells have said."""
        said: list[tuple[str, Event]] = []
        with contextlib.suppress(self.ray.exceptions.RayError):
            said = self.ray.get(self.mailbox.take.remote(), timeout=GRACE)
        for place, event in said:
            before = self.places.setdefault(event.cell, place)
            if place != before:
                self.places[event.cell] = place
                why = f"lost on {before}; the cell goes on where it was, on {place}"
                self.run.note("worker lost", cell=event.cell, why=why)
                self.on_event(Event(event.cell, "again", why))
            if event.cell in self.pending.values():
                self.on_event(event)

    def _cancel(self) -> None:
        """Have the cells that still run put their pens down, and kill those that do not in time."""
        left = list(self.pending)
        for force in (False, True):
            for reference in left:
                with contextlib.suppress(self.ray.exceptions.RayError):
                    self.ray.cancel(reference, force=force)
            deadline = time.monotonic() + GRACE
            while left and time.monotonic() < deadline:
                _, left = self.ray.wait(left, num_returns=len(left), timeout=POLL)
            if not left:
                return


class _Mailbox:
    """Holds what the cells say until the driver asks for it."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Event]] = []

    def put(self, place: str, event: Event) -> None:
        self.said.append((place, event))

    def take(self) -> list[tuple[str, Event]]:
        said, self.said = self.said, []
        return said


def _cell(
    function: str, where: tuple[str, str], cell_id: str, pool: str | None, mailbox: Any
) -> str | None:
    """Do a cell on whatever node this is; give None, or the reason why it failed.

    where: the run folder, and the folder that a plan's relative paths are meant from.
    """
    import ray

    run_path, meant_from = where
    with contextlib.suppress(OSError):
        os.chdir(meant_from)
    node = ray.get_runtime_context().get_node_id()[:8]
    place = f"node {node} (pid {os.getpid()})"

    def tell(label: str, done: int, total: int) -> None:
        mailbox.put.remote(place, Event(cell_id, "step", label, done, total))

    # Ray cancels by SIGINT, which whatever a shell ran in the background inherits as ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # Ray's own handler raises SystemExit, which code under test may take for a method's fault.
        with leave_when_told():
            _check_node(run_path, node)
            return do_cell(function, run_path, cell_id, pool, tell)
    except PalimpsestError as error:
        return f"{type(error).__name__}: {error}"
    except Leave:
        # To Ray a process that ends without a word is a lost one, whose cell it begins elsewhere.
        os.kill(os.getpid(), signal.SIGKILL)
        raise
    finally:
        let_go()


def _check_node(run_path: str, node: str) -> None:
    """Refuse a node that does not see the run folder or would compute with other code."""
    if not (Path(run_path) / "chain.jsonl").exists():
        raise InputError(
            f"{run_path}: not there on node {node}; expected the run folder on storage that every "
            "node mounts at the same path; choose such a folder with --out"
        )
    expected, found = Run.open(run_path).environment, environment()
    drift = [
        line
        for key in ("code", "packages")
        for line in difference(key, expected.get(key), found[key])
    ]
    if drift:
        raise DriftError(
            f"node {node} has other code than the run: {'; '.join(drift[:5])}; expected the same "
            "on every node; install the same versions there"
        )
