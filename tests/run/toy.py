"""A job that writes through the real store but trains nothing, and a disk that fails on request.

A cell trains, measures a reference, makes candidates side by side and scores a panel on the sealed
pool. What a cell does wrong is in its name: `fails...` raises in its second candidate,
`diverges...` raises an error of Palimpsest there, `dies...` is killed there the first time,
`doomed...` every time, `silent...` stores nothing there, `held...` waits there until a file `go`
is beside the run, `memory...` runs out of memory there, `stopped...` gets SIGTERM there, which it
turns into an error as a library would. The steps of `unplanned...` are not known.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet  # noqa: F401  here, so that forked workers need not load it

from palimpsest.errors import MachineError, ModelError, TrainingDiverged
from palimpsest.run import files
from palimpsest.run.cell import CellStore
from palimpsest.run.executor import OnEvent, Outcome, execute, silent
from palimpsest.run.files import Disk, file_digest
from palimpsest.run.steps import Step, step_key
from palimpsest.run.store import Run, Terms

CANDIDATES = ("part-0", "part-1", "part-2")
STEPS = ("train", "reference", *CANDIDATES, "panel")
SEAL = "sha256:toy"
KEPT = "panel.safetensors"


def toy_terms(cells: tuple[str, ...] = ("a", "b"), **config: Any) -> Terms:
    return Terms(
        kind="study",
        config={"seeds": [0, 1], "steps": {"inject": 150}} | config,
        rules={"alpha": 0.05},
        seal={"commitment": SEAL, "pool": "built-in"},
        inputs={"base": "sha256:b"},
        cells=cells,
        code={"version": "1", "source": "sha256:s"},
        packages={"numpy": "1", "torch": "2"},
    )


@dataclass
class ToyCell:
    cell_id: str
    job: "ToyJob"
    seen: list[str] = field(default_factory=list)

    @property
    def steps(self) -> tuple[Step, ...]:
        made: dict[str, Step] = {}

        def add(name: str, *needs: str, **more: Any) -> None:
            settings = [self.cell_id, name, dict(self.job.versions).get(name, 1)]
            key = step_key("toy", settings, [made[need].key for need in needs])
            made[name] = Step(name, "toy", key, f"doing {name}", needs, **more)

        add("train", transient=True, cost=2.0)
        add("reference", "train")
        for name in self.job.candidates:
            add(name, "train")
        add("panel", "train", "reference")
        return tuple(made.values())

    def do(self, step: Step, store: CellStore) -> None:
        self.seen.append(step.name)
        if self.job.log is not None:
            files.Disk().append(self.job.log, f"{self.cell_id} {step.name}\n".encode())
        if step.name == "part-1" and self._misbehave():
            return
        draw = np.random.default_rng(int(step.key[7:15], 16))
        numbers = draw.normal(size=20)
        if step.name == "train":
            store.put_file(step, "weights.safetensors", lambda path: path.write_bytes(numbers))
        else:
            train = self.steps[0]
            assert store.file(train, "weights.safetensors").stat().st_size == 160
        if step.name == "panel":
            store.open_seal(step, SEAL, {"injected": "sha256:1"})
            store.put_file(step, "kept.safetensors", numbers.tobytes())
        rows = {"model": [step.name] * 20, "nll_sum": numbers}
        store.put(step, {"items": rows}, {"step": step.name})

    def finish(self, store: CellStore) -> Mapping[str, Any]:
        last = store.get(self.steps[-1])[1]["step"]
        return {"threads": os.environ.get("OMP_NUM_THREADS"), "last": last}

    def keep(self, store: CellStore) -> Mapping[str, tuple[Step, str]]:
        return {KEPT: (self.steps[-1], "kept.safetensors")}

    def _misbehave(self) -> bool:
        kind, base = self.cell_id.split("-")[0], self.job.base
        if kind == "fails":
            raise ValueError(f"{self.cell_id} was made to fail")
        if kind == "diverges":
            raise TrainingDiverged(7, "loss is nan")
        if kind == "memory":
            raise MachineError("out of memory")
        if kind == "stopped":
            signal.raise_signal(signal.SIGTERM)
            raise ValueError("could not determine the shape")
        mark = base / f"{self.cell_id}-died"
        if kind == "doomed" or (kind == "dies" and not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        while kind == "held" and not (base / "go").exists():
            time.sleep(0.02)
        return kind == "silent"


@dataclass(frozen=True)
class ToyJob:
    base: Path
    """Folder of the files `go` and `...-died`."""
    candidates: tuple[str, ...] = CANDIDATES
    versions: tuple[tuple[str, int], ...] = ()
    """Of the code of a step, as that of a plug-in."""
    log: Path | None = None
    """Where each computed step is noted."""

    def cell(self, cell_id: str) -> ToyCell:
        if cell_id.startswith("unplanned"):
            raise ModelError("no such model")
        return ToyCell(cell_id, self)


def toy_run(folder: Path, *cells: str, **config: Any) -> Run:
    """Return a run folder of toy cells."""
    return Run.create_or_resume(folder, toy_terms(cells or ("a", "b"), **config))


def work(
    run: Run, job: ToyJob | None = None, *, on_event: OnEvent = silent, reuse: Run | None = None
) -> Outcome:
    """Do what is left of a toy run in this process."""
    job = job or ToyJob(run.path.parent)
    return execute(job, run, on_event=on_event, reuse=reuse)


def do_steps(run: Run, cell_id: str, *names: str) -> dict[str, Step]:
    """Do some steps of a cell, without finishing it; return all its steps by name."""
    cell, store = ToyJob(run.path.parent).cell(cell_id), run.cell(cell_id)
    steps = {step.name: step for step in cell.steps}
    for name in names:
        store.begin(steps[name])
        cell.do(steps[name], store)
    return steps


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file of a run or cell that is evidence."""
    paths = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    passing = ("progress", "locks")
    return {str(n): p.read_bytes() for n, p in paths.items() if n.parts[0] not in passing}


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of every file of a run that is evidence."""
    return {name: file_digest(folder / name) for name in contents(folder)}


def mutations(data: bytes, few: int = 0) -> list[bytes]:
    """Return every truncation, and every byte changed in one bit; or a draw of a few of them."""
    changed = [data[:length] for length in range(len(data))]
    for n in range(len(data)):
        changed.append(data[:n] + bytes([data[n] ^ 1 << n % 8]) + data[n + 1 :])
    return random.Random(len(data)).sample(changed, few) if 0 < few < len(changed) else changed


def damage(path: Path, change: str) -> None:
    """Flip a bit of a file, cut it, delete it, or put a folder in its place."""
    data = path.read_bytes()
    path.unlink()
    if change == "flip":
        path.write_bytes(bytes([data[0] ^ 4]) + data[1:])
    elif change == "truncate":
        path.write_bytes(data[:-1])
    elif change == "folder":
        path.mkdir()


# -- a disk that fails -----------------------------------------------------------------------------

Hook = Callable[[str, Path], object]


class HookedDisk(Disk):
    """Calls a hook before each operation, and in the middle of each write."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def write(self, path: Path, data: bytes) -> None:
        self.hook("create", path)
        with open(path, "xb", buffering=0) as file:
            file.write(data[: len(data) // 2])
            self.hook("write", path)
            file.write(data[len(data) // 2 :])

    def __getattribute__(self, name: str) -> Any:
        operation = super().__getattribute__(name)
        if name not in ("append", "sync", "rename", "link", "make_folder", "remove"):
            return operation

        def with_hook(*arguments: Any) -> None:
            self.hook(name, [item for item in arguments if isinstance(item, Path)][-1])
            operation(*arguments)

        return with_hook


@contextmanager
def hooked(hook: Hook) -> Iterator[None]:
    """Put a disk with a hook in the place of the real one."""
    before, files.DISK = files.DISK, HookedDisk(hook)
    try:
        yield
    finally:
        files.DISK = before


class Countdown:
    """Counts the operations of this process; ends it with SIGKILL at number `fatal`, if any."""

    def __init__(self, fatal: int | None = None) -> None:
        self.fatal = fatal
        self.operations = 0
        files.DISK = HookedDisk(self)

    def __call__(self, operation: str, path: Path) -> None:
        self.operations += 1
        if self.operations == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
