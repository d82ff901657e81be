"""Which step is next: a data structure without processes, files or clock.

Every executor, and the simulation in `benchmarks/`, asks the same scheduler. A worker gets a ready
step of the cell it worked on last, because its caches fit, else one of the earliest cell in the
plan that has any, so that few cells are open at a time. A step that fails blocks the steps that
need it and nothing else. Operations take time that grows with the logarithm of the number of steps.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from heapq import heappop, heappush

from palimpsest.run.graph import FINISH, Failure, Step, check_steps

ATTEMPTS = 2
"""How often a step is begun by workers that are lost in it before it counts as failed."""


@dataclass(frozen=True, slots=True)
class Task:
    """One step of one cell, for one worker."""

    cell: str
    step: str


@dataclass(slots=True)
class CellState:
    """The steps of one cell on their way."""

    place: int  # in the plan
    steps: dict[str, Step]  # in plan order, with FINISH at the end
    order: dict[str, int]
    graph: TopologicalSorter[str]
    ready: list[tuple[int, str]] = field(default_factory=list)  # heap
    done: set[str] = field(default_factory=set)
    running: int = 0
    failures: dict[int, Failure] = field(default_factory=dict)
    halted: str | None = None

    @property
    def failure(self) -> Failure:
        """The failure of a failed cell: of its first failed step in plan order."""
        return self.failures[min(self.failures)]


class Scheduler:
    """Hands out the steps of cells, in plan order, to workers known by any hashable name.

    cells: the steps of each cell, in plan order; `done`: the steps of a cell that are stored.
    """

    def __init__(
        self,
        cells: Mapping[str, Sequence[Step]],
        done: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self.ready = 0  # how many steps are ready
        self.left = 0  # how many are not done
        self.finished: list[str] = []
        self.cells: dict[str, CellState] = {}
        self.running: dict[object, Task] = {}  # the step each busy worker is at
        self._open: list[tuple[int, str]] = []  # heap of cells that may have ready steps
        self._last: dict[object, str] = {}
        self._lost: Counter[Task] = Counter()
        for cell_id, steps in cells.items():
            self._add(cell_id, check_steps(steps, cell_id), set((done or {}).get(cell_id, ())))

    def _add(self, cell_id: str, planned: tuple[Step, ...], stored: set[str]) -> None:
        finish = Step(FINISH, "finishing", tuple(step.name for step in planned), 0.1)
        steps = {step.name: step for step in (*planned, finish)}
        order = {name: n for n, name in enumerate(steps)}
        graph = TopologicalSorter({name: step.needs for name, step in steps.items()})
        graph.prepare()
        self.cells[cell_id] = CellState(len(self.cells), steps, order, graph)
        self.left += len(steps)
        self._release(cell_id, stored)

    def _release(self, cell_id: str, stored: Collection[str] = ()) -> None:
        """Make the steps ready whose needs are done; those that are stored are done too."""
        cell = self.cells[cell_id]
        while names := cell.graph.get_ready():
            for name in names:
                if name in stored:
                    self._done(cell, name)
                else:
                    self._push(cell_id, name)

    def _done(self, cell: CellState, step: str) -> None:
        cell.done.add(step)
        cell.graph.done(step)
        self.left -= 1

    def _push(self, cell_id: str, step: str) -> None:
        cell = self.cells[cell_id]
        if not cell.ready:
            heappush(self._open, (cell.place, cell_id))
        heappush(cell.ready, (cell.order[step], step))
        self.ready += 1

    # -- handing out -------------------------------------------------------------------------

    def next(self, worker: object) -> Task | None:
        """Return the next step for a worker, or None when no step is ready."""
        if worker in self.running:
            raise ValueError(f"worker {worker!r} has {self.running[worker]}; it takes one step")
        cell_id = self._last.get(worker)
        if cell_id is None or not self.cells[cell_id].ready:
            while self._open and not self.cells[self._open[0][1]].ready:
                heappop(self._open)
            if not self._open:
                return None
            cell_id = self._open[0][1]
        cell = self.cells[cell_id]
        task = Task(cell_id, heappop(cell.ready)[1])
        self.ready -= 1
        cell.running += 1
        self.running[worker] = task
        self._last[worker] = cell_id
        return task

    # -- what became of a step ---------------------------------------------------------------

    def done(self, worker: object) -> Task:
        """Record that a worker's step is stored, which may make others ready."""
        task, cell = self._end(worker)
        self._done(cell, task.step)
        if task.step == FINISH:
            self.finished.append(task.cell)
        elif cell.halted is None:
            self._release(task.cell)
        return task

    def failed(self, worker: object, failure: Failure) -> Task:
        """Record that a worker's step failed; the steps that need it are never ready."""
        task, cell = self._end(worker)
        cell.failures[cell.order[task.step]] = failure
        return task

    def halted(self, worker: object, reason: str) -> Task:
        """Record that a worker's step ended its cell on purpose; its other steps are dropped."""
        task, cell = self._end(worker)
        cell.halted = cell.halted or reason
        self.ready -= len(cell.ready)
        cell.ready.clear()
        return task

    def lost(self, worker: object, why: str) -> tuple[Task, Failure | None]:
        """Record that a worker is gone; its step is ready again, or failed if lost too often."""
        task = self.running[worker]
        self._lost[task] += 1
        if self._lost[task] >= ATTEMPTS:
            reason = f"{why}, {self._lost[task]} times in this step"
            failure = Failure("worker lost", reason, task.step)
            return self.failed(worker, failure), failure
        _, cell = self._end(worker)
        if cell.halted is None:
            self._push(task.cell, task.step)
        return task, None

    def _end(self, worker: object) -> tuple[Task, CellState]:
        task = self.running.pop(worker)
        cell = self.cells[task.cell]
        cell.running -= 1
        return task, cell

    # -- looking at it -----------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether nothing is running and nothing will ever be ready."""
        return not self.running and not self.ready

    @property
    def failures(self) -> dict[str, Failure]:
        """The failure of each failed cell."""
        cells = self.cells.items()
        return {c: cell.failure for c, cell in cells if cell.failures and cell.halted is None}

    @property
    def halts(self) -> dict[str, str]:
        """Why each halted cell ended."""
        return {c: cell.halted for c, cell in self.cells.items() if cell.halted is not None}

    def step(self, task: Task) -> Step:
        """Return the step of a task."""
        return self.cells[task.cell].steps[task.step]

    def progress(self, cell_id: str) -> tuple[int, int]:
        """Return how many steps of a cell are done, of how many; the finish is not counted."""
        cell = self.cells[cell_id]
        return len(cell.done - {FINISH}), len(cell.steps) - 1
