"""Which step is next: a data structure without processes, files or clock.

Every executor, and the simulation in `benchmarks/`, asks the same scheduler. A worker gets a ready
step of the cell it worked on last, because its caches fit, else the first ready step in the order
of the plan. A step that fails blocks the steps that need it and nothing else. Its operations take
time that grows with the logarithm of the number of steps.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from palimpsest.run.graph import FINISH, Failure, Step, check_steps

ATTEMPTS = 2
"""How often a step is begun by workers that are lost in it before it counts as failed."""


@dataclass(frozen=True, slots=True)
class Task:
    """One step of one cell, for one worker."""

    cell: str
    step: str


@dataclass(slots=True)
class _Cell:
    """The steps of one cell on their way."""

    place: int  # in the plan
    steps: tuple[Step, ...]  # with FINISH at the end
    index: dict[str, int]
    blocked: list[int]  # how many needed steps are not done, by step
    dependents: list[list[int]]
    ready: list[int]  # heap of step indices
    done: set[str] = field(default_factory=set)
    running: int = 0
    failures: dict[int, Failure] = field(default_factory=dict)
    halted: str | None = None


class Scheduler:
    """Hands out the steps of cells, in plan order, to workers known by any hashable name.

    cells: the steps of each cell, in plan order; `done`: the steps of a cell that are stored.
    """

    def __init__(
        self,
        cells: Mapping[str, Sequence[Step]],
        done: Mapping[str, Collection[str]] | None = None,
        *,
        attempts: int = ATTEMPTS,
    ) -> None:
        self.attempts = attempts
        self.ready = 0  # how many steps are ready
        self.left = 0  # how many are not done
        self.finished: list[str] = []
        self._order = list(cells)
        self._cells: dict[str, _Cell] = {}
        self._ready: list[int] = []  # heap of places of cells that may have ready steps
        self._last: dict[object, str] = {}
        self._running: dict[object, Task] = {}
        self._lost: Counter[Task] = Counter()
        for place, (cell_id, steps) in enumerate(cells.items()):
            stored = set((done or {}).get(cell_id, ()))
            self._cells[cell_id] = _begin(place, check_steps(steps, cell_id), stored)
            self._ready.append(place)
            self.ready += len(self._cells[cell_id].ready)
            self.left += len(self._cells[cell_id].steps) - len(self._cells[cell_id].done)

    # -- handing out -------------------------------------------------------------------------

    def next(self, worker: object) -> Task | None:
        """Return the next step for a worker, or None when no step is ready."""
        if worker in self._running:
            raise ValueError(f"worker {worker!r} has {self._running[worker]}; it takes one step")
        last = self._last.get(worker)
        cell_id = last if last is not None and self._cells[last].ready else self._first_ready()
        if cell_id is None:
            return None
        cell = self._cells[cell_id]
        task = Task(cell_id, cell.steps[heappop(cell.ready)].name)
        self.ready -= 1
        cell.running += 1
        self._running[worker] = task
        self._last[worker] = cell_id
        return task

    def _first_ready(self) -> str | None:
        while self._ready:
            cell_id = self._order[self._ready[0]]
            if self._cells[cell_id].ready:
                return cell_id
            heappop(self._ready)
        return None

    # -- what became of a step ---------------------------------------------------------------

    def done(self, worker: object) -> Task:
        """Record that a worker's step is stored, which may make others ready."""
        task = self._end(worker)
        cell = self._cells[task.cell]
        cell.done.add(task.step)
        self.left -= 1
        if task.step == FINISH:
            self.finished.append(task.cell)
        elif cell.halted is None:
            for dependent in cell.dependents[cell.index[task.step]]:
                cell.blocked[dependent] -= 1
                if not cell.blocked[dependent]:
                    self._push(cell, dependent)
        return task

    def failed(self, worker: object, failure: Failure) -> Task:
        """Record that a worker's step failed; the steps that need it are never ready."""
        task = self._end(worker)
        cell = self._cells[task.cell]
        cell.failures[cell.index[task.step]] = failure
        return task

    def halted(self, worker: object, reason: str) -> Task:
        """Record that a worker's step ended its cell on purpose; its other steps are dropped."""
        task = self._end(worker)
        cell = self._cells[task.cell]
        cell.halted = cell.halted or reason
        self.ready -= len(cell.ready)
        cell.ready.clear()
        return task

    def lost(self, worker: object, why: str) -> tuple[Task, Failure | None] | None:
        """Record that a worker is gone; its step is ready again, or failed if lost too often.

        Return its step, with the failure if it is one; None when the worker had no step.
        """
        self._last.pop(worker, None)
        if worker not in self._running:
            return None
        task = self._end(worker)
        cell = self._cells[task.cell]
        self._lost[task] += 1
        if self._lost[task] >= self.attempts:
            reason = f"{why}, {self._lost[task]} times in this step"
            failure = Failure("worker lost", reason, task.step)
            cell.failures[cell.index[task.step]] = failure
            return task, failure
        if cell.halted is None:
            self._push(cell, cell.index[task.step])
        return task, None

    def _end(self, worker: object) -> Task:
        task = self._running.pop(worker)
        self._cells[task.cell].running -= 1
        return task

    def _push(self, cell: _Cell, index: int) -> None:
        if not cell.ready:
            heappush(self._ready, cell.place)
        heappush(cell.ready, index)
        self.ready += 1

    # -- looking at it -----------------------------------------------------------------------

    @property
    def running(self) -> Mapping[object, Task]:
        """The step each busy worker is at."""
        return self._running

    @property
    def over(self) -> bool:
        """Whether nothing is running and nothing will ever be ready."""
        return not self._running and not self.ready

    @property
    def failures(self) -> dict[str, Failure]:
        """The failure of each failed cell: of its first failed step in plan order."""
        failed = [c for c, cell in self._cells.items() if cell.failures and cell.halted is None]
        return {cell_id: self.failure(cell_id) for cell_id in failed}

    @property
    def halts(self) -> dict[str, str]:
        """Why each halted cell ended."""
        return {c: cell.halted for c, cell in self._cells.items() if cell.halted is not None}

    def failure(self, cell_id: str) -> Failure:
        """Return the failure of a failed cell's first failed step in plan order."""
        failures = self._cells[cell_id].failures
        return failures[min(failures)]

    def busy(self, cell_id: str) -> bool:
        """Return whether any worker is at a step of the cell."""
        return self._cells[cell_id].running > 0

    def is_halted(self, cell_id: str) -> bool:
        """Return whether the cell was ended on purpose."""
        return self._cells[cell_id].halted is not None

    def step(self, task: Task) -> Step:
        """Return the step of a task."""
        cell = self._cells[task.cell]
        return cell.steps[cell.index[task.step]]

    def progress(self, cell_id: str) -> tuple[int, int]:
        """Return how many steps of a cell are done, of how many; the finish is not counted."""
        cell = self._cells[cell_id]
        return len(cell.done) - (FINISH in cell.done), len(cell.steps) - 1


def _begin(place: int, steps: tuple[Step, ...], stored: set[str]) -> _Cell:
    steps = (*steps, Step(FINISH, "finishing", tuple(step.name for step in steps), 0.1))
    index = {step.name: n for n, step in enumerate(steps)}
    dependents: list[list[int]] = [[] for _ in steps]
    blocked, ready = [], []
    for n, step in enumerate(steps):
        needs = [need for need in step.needs if need not in stored]
        blocked.append(len(needs))
        for need in needs:
            dependents[index[need]].append(n)
        if not needs and step.name not in stored:
            ready.append(n)
    heapify(ready)
    return _Cell(place, steps, index, blocked, dependents, ready, stored & set(index))
