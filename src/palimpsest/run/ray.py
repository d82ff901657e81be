"""Steps on Ray, on an existing cluster or on one that is started here and ended afterwards.

Each worker is an actor, placed by Ray from the resources it asks for; a step is one call. When an
actor or its node is lost, its step is started again by another. The run folder lies on storage that
every node mounts at the same path and that carries file locks.
"""

import contextlib
import logging
import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palimpsest.errors import DriftError, InputError
from palimpsest.run.executor import ONE_THREAD, Message, Result, Work, Worker
from palimpsest.run.steps import Task
from palimpsest.run.store import TERMS, Run, differences
from palimpsest.run.versions import code_version, package_versions

POLL = 0.25
"""Seconds after which a wait for Ray looks for a request to stop."""
_OBJECT_STORE = 100 * 1024 * 1024  # only tasks and results go through it


@contextlib.contextmanager
def pool(work: Work, workers: int, address: str | None = None, **asked: Any) -> Iterator["_Actors"]:
    """Provide workers on a cluster for the steps of a run.

    address: of the cluster ("auto", "host:6379", "ray://host:10001"); None takes the environment's
    RAY_ADDRESS, and starts a cluster here if there is none. asked: see ``resources``.
    """
    ray, wanted = ray_library(), resources(work.run.device, **asked)
    with _cluster(ray, address, max(1, round(workers * wanted["num_cpus"]))):
        yield _Actors(ray, wanted, pickle.dumps(work.job), work.run.path)


def resources(
    device: str,
    num_cpus: float = 1,
    num_gpus: float | None = None,
    memory: int | None = None,
) -> dict[str, Any]:
    """Return what one worker asks Ray for; by default a GPU for a run that computes on one.

    memory: in bytes.
    """
    gpus = num_gpus if num_gpus is not None else float(device.startswith("cuda"))
    more = {} if memory is None else {"memory": memory}
    return {"num_cpus": num_cpus, "num_gpus": gpus, **more}


@contextlib.contextmanager
def _cluster(ray: Any, address: str | None, cpus: int) -> Iterator[None]:
    """Connect to the cluster; a connection that was there before is left as it is."""
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = address or os.environ.get("RAY_ADDRESS")
    if address is None:
        # Ray's workers give way to everything else by default; here they are the work.
        os.environ.setdefault("RAY_worker_niceness", "0")
        options |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE}
        options["num_cpus"] = cpus
    # Ray puts a handler of its own in the place of this one and leaves it there.
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address or "local", **options)
    except Exception as error:  # Ray raises what it likes here, after 30 seconds of its own
        raise InputError(
            f"Ray {'at ' + address if address else 'on this machine'} does not "
            f"answer ({' '.join(str(error).split())}); expected a cluster such as 'auto' or "
            "'host:6379'; start it with `ray start --head`, unset RAY_ADDRESS to start one "
            "here, or use --executor local"
        ) from error
    try:
        with _quiet(ray):
            yield
    finally:
        ray.shutdown()
        with contextlib.suppress(ValueError, TypeError):
            signal.signal(signal.SIGTERM, handler)


def ray_library() -> Any:
    """Return Ray, which is installed only where it is wanted."""
    try:
        import ray
    except ImportError as error:
        raise InputError(
            "the executor 'ray' needs Ray, which is not installed; "
            "pip install 'palimpsest-audit[ray]', or use --executor local"
        ) from error
    return ray


@contextlib.contextmanager
def _quiet(ray: Any) -> Iterator[None]:
    """Keep Ray from reporting lost processes on stdout, which belongs to --json; events do.

    Ray has no setting for it. Where a later Ray has another name for the function, it reports.
    """
    worker = ray._private.worker
    original = getattr(worker, "print_to_stdstream", None)
    worker.print_to_stdstream = lambda *args, **kwargs: None
    try:
        yield
    finally:
        worker.print_to_stdstream = original


class _Actors:
    """The workers on Ray, by name, and the call each of them is at."""

    def __init__(self, ray: Any, resources: dict[str, Any], job: bytes, run_path: Path) -> None:
        self.ray = ray
        self.arguments = (job, str(run_path), os.getcwd())
        self.actor = ray.remote(_Actor).options(scheduling_strategy="SPREAD", **resources)
        self.actors: dict[str, Any] = {}
        self.calls: dict[Any, str] = {}

    def start(self, name: str) -> None:
        self.actors[name] = self.actor.remote()
        self.calls[self.actors[name].begin.remote(name, *self.arguments)] = name

    def send(self, name: str, task: Task) -> None:
        self.calls[self.actors[name].do.remote(task)] = name

    def messages(self, wake: int) -> Iterator[tuple[str, Message]]:
        ended, _ = self.ray.wait(list(self.calls), timeout=POLL)
        for call in ended:
            name = self.calls.pop(call)
            try:
                yield name, self.ray.get(call)
            except self.ray.exceptions.RayError as error:
                self.actors.pop(name)
                first = (str(error).splitlines() or [""])[0]
                yield name, f"its worker was lost ({type(error).__name__}: {first})"

    def stop(self, *, at_once: bool) -> None:
        for actor in self.actors.values():
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.kill(actor)
        # A call to a killed actor ends when its process has.
        with contextlib.suppress(self.ray.exceptions.RayError):
            calls = list(self.calls)
            self.ray.wait(calls, num_returns=len(calls), timeout=10.0) if calls else None


class _Actor:
    """A worker on whatever node this is."""

    def begin(self, name: str, job: bytes, run_path: str, folder: str) -> str | None:
        """Get ready for steps, with paths of the plan from `folder`; return why not, or None."""
        import ray

        os.environ.update(ONE_THREAD)
        with contextlib.suppress(OSError):
            os.chdir(folder)
        try:
            _check_node(run_path, ray.get_runtime_context().get_node_id()[:8])
            self.worker = Worker(pickle.loads(job), run_path, name)
            self.held = contextlib.ExitStack()
            self.held.enter_context(self.worker.at_work())
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    def do(self, task: Task) -> Result:
        """Do a step."""
        return self.worker.do(task)


def _check_node(run_path: str, node: str) -> None:
    """Refuse a node that does not see the run folder or would compute with other code."""
    if not (Path(run_path) / TERMS).exists():
        raise InputError(
            f"{run_path}: not there on node {node}; expected the run folder on storage that every "
            "node mounts at the same path; choose such a folder with --out"
        )
    terms = Run.open(run_path).terms
    drift = differences("code", terms.code, code_version())
    drift += differences("packages", terms.packages, package_versions())
    if drift:
        shown = "; ".join(f"{key}: {what}" for key, what in drift[:5])
        raise DriftError(
            f"node {node} has other code than the run: {shown}; expected the same on every node; "
            "install the same versions there",
            keys=(key for key, _ in drift),
        )
