"""The steps of a cell, the protocols of the work an executor is given, and which step is next.

A step is addressed by ``key``, the hash of everything its result depends on: settings, digests of
inputs, the measuring code and the keys of the steps it needs. A stored result counts only under the
key that is expected now. So resuming, adding a candidate, editing a method and taking over results
from another run are one thing: steps whose key is stored are not done again.

The scheduler is a data structure without processes, files or clock. A worker gets a ready step of
the cell it worked on last, because its caches fit, else one of the earliest cell in the plan that
has any, so that few cells are open at a time. A step that fails blocks the steps that need it and
nothing else.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Protocol

from palimpsest.run.files import canonical, digest

if TYPE_CHECKING:
    from palimpsest.run.cell import CellStore

FINISH = "finish"
"""The name of the last step of every cell, which merges the others."""
ATTEMPTS = 2
"""How often a step is started by workers that are lost in it before it counts as failed."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a cell: what a free worker does in one go."""

    name: str
    """Unique in the cell and safe as a folder name, such as ``train-reference-3``."""
    kind: StrEnum | str
    key: str
    words: str
    """For people: ``training reference-3``."""
    needs: tuple[str, ...] = ()
    """Names of the steps of this cell that must be done before."""
    models: tuple[str, ...] = ()
    cost: float = 1.0
    """Expected time relative to other steps, for the time left."""
    transient: bool = False
    """Its result serves other steps only, and is dropped when the cell is finished."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a step, and with it its cell, failed."""

    kind: str
    """Of the error class, ``worker lost``, or ``error`` for an unforeseen error."""
    reason: str
    step: str


class CellWork(Protocol):
    """The work of one cell; a worker keeps it between steps, so that its caches survive."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """Return the steps in plan order, without loading a model."""

    def do(self, step: Step, store: "CellStore") -> None:
        """Do one step; it must end in exactly one ``store.put(step, ...)``."""

    def finish(self, store: "CellStore") -> Mapping[str, Any]:
        """Return the summary that goes into cell.json, when all steps are done."""

    def keep(self, store: "CellStore") -> Mapping[str, tuple[Step, str]]:
        """Return the files that a finished cell keeps: name -> step and its file."""


class Job(Protocol):
    """How a worker (a process, a Ray actor) gets at the work; must be picklable."""

    def cell(self, cell_id: str) -> CellWork:
        """Return the work of one cell."""


def step_key(kind: str, settings: object, needs: Sequence[str] = ()) -> str:
    """Return the key of a step from its settings and the keys of the steps it needs."""
    return digest(canonical({"kind": kind, "settings": settings, "needs": list(needs)}))


def steps_to_do(
    steps: Sequence[Step], done: Collection[str], recorded: Collection[str] = ()
) -> set[str]:
    """Return the names of the steps to do: those not done, and what they need.

    recorded: transient steps whose weights are gone, to be done again only if others need them.
    """
    wanted: set[str] = set()
    for step in reversed(steps):
        if step.name not in done and (step.name not in recorded or step.name in wanted):
            wanted |= {step.name, *step.needs}
    return wanted - set(done)


# -- which step is next ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Task:
    """One step of one cell, for one worker."""

    cell: str
    step: str


@dataclass(slots=True)
class CellState:
    """The steps of one cell that are to be done."""

    steps: dict[str, Step]
    """In plan order, with FINISH at the end."""
    graph: TopologicalSorter[str]
    done: int
    total: int
    """Planned steps; ``done`` of them need not be done, or are by now."""
    ready: list[tuple[int, str]] = field(default_factory=list)
    """A heap by place in the plan."""
    failures: dict[int, Failure] = field(default_factory=dict)

    def order(self, step: str) -> int:
        return list(self.steps).index(step)


class Scheduler:
    """Hands out the steps of cells, in plan order, to workers known by any hashable name.

    cells: the steps of each cell in plan order; to_do: names of those that are not done.
    """

    def __init__(
        self, cells: Mapping[str, Sequence[Step]], to_do: Mapping[str, Collection[str]]
    ) -> None:
        self.ready = 0
        self.left = 0
        self.finished: list[str] = []
        self.cells: dict[str, CellState] = {}
        self.running: dict[Hashable, Task] = {}
        self._last: dict[Hashable, str] = {}
        self._lost: Counter[Task] = Counter()
        for cell_id, planned in cells.items():
            wanted = [step for step in planned if step.name in to_do[cell_id]]
            names = tuple(step.name for step in wanted)
            finish = Step(FINISH, FINISH, "", "finishing", names, cost=0.1)
            steps = {step.name: step for step in (*wanted, finish)}
            graph = TopologicalSorter(
                {name: set(step.needs) & set(names) for name, step in steps.items()}
            )
            graph.prepare()
            done = len(planned) - len(wanted)
            self.cells[cell_id] = CellState(steps, graph, done, len(planned))
            self.left += len(steps)
            self._release(cell_id, graph.get_ready())

    def _release(self, cell_id: str, steps: Iterable[str]) -> None:
        """Make steps ready whose needs are done."""
        cell = self.cells[cell_id]
        for name in steps:
            heappush(cell.ready, (cell.order(name), name))
            self.ready += 1

    def next(self, worker: Hashable) -> Task | None:
        """Return the next step for a worker, or None when no step is ready."""
        if not self.ready:
            return None
        cell_id = self._last.get(worker)
        if cell_id is None or not self.cells[cell_id].ready:
            cell_id = next(name for name, cell in self.cells.items() if cell.ready)
        task = Task(cell_id, heappop(self.cells[cell_id].ready)[1])
        self.ready -= 1
        self.running[worker] = task
        self._last[worker] = cell_id
        return task

    def done(self, worker: Hashable) -> Task:
        """Record that a worker's step is stored, which may make others ready."""
        task = self.running.pop(worker)
        cell = self.cells[task.cell]
        cell.done += task.step != FINISH
        cell.graph.done(task.step)
        self.left -= 1
        if task.step == FINISH:
            self.finished.append(task.cell)
        self._release(task.cell, cell.graph.get_ready() if task.step != FINISH else ())
        return task

    def failed(self, worker: Hashable, failure: Failure) -> Task:
        """Record that a worker's step failed; the steps that need it are never ready."""
        task = self.running.pop(worker)
        cell = self.cells[task.cell]
        cell.failures[cell.order(task.step)] = failure
        return task

    def lost(self, worker: Hashable, why: str) -> tuple[Task, Failure | None]:
        """Record that a worker is gone; its step is ready again, or failed if lost too often."""
        task = self.running[worker]
        self._lost[task] += 1
        if self._lost[task] >= ATTEMPTS:
            reason = f"{why}, {self._lost[task]} times in this step"
            failure = Failure("worker lost", reason, task.step)
            return self.failed(worker, failure), failure
        del self.running[worker]
        self._release(task.cell, [task.step])
        return task, None

    @property
    def over(self) -> bool:
        """Whether nothing is running and nothing will ever be ready."""
        return not self.running and not self.ready

    @property
    def failures(self) -> dict[str, Failure]:
        """The failure of each failed cell: of its first failed step in plan order."""
        failed = {name: cell.failures for name, cell in self.cells.items() if cell.failures}
        return {name: failures[min(failures)] for name, failures in failed.items()}

    def step(self, task: Task) -> Step:
        """Return the step of a task."""
        return self.cells[task.cell].steps[task.step]

    def progress(self, cell_id: str) -> tuple[int, int]:
        """Return how many steps of a cell are done, of how many; the finish is not counted."""
        cell = self.cells[cell_id]
        return cell.done, cell.total
