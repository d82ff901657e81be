"""A task: what a command does with cells, from its configuration to the plan of each cell.

Studies, audits, ``retrain`` and ``unlearn`` are tasks; ``launch.py`` checks, previews and runs any.
"""

from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from palimpsest.cell.plan import CellPlan
from palimpsest.config.sections import Engine
from palimpsest.models.device import keep_freed_memory
from palimpsest.run.steps import CellWork
from palimpsest.run.store import Roster, Terms

if TYPE_CHECKING:
    from palimpsest.cell.estimate import Estimate

PLANS = 64
"""How many plans of cells a process keeps."""


class Task(Protocol):
    """What a command does with cells."""

    @property
    def kind(self) -> str:
        """The command, as the terms of the run name it."""

    @property
    def folder(self) -> Path:
        """The run folder."""

    @property
    def engine(self) -> Engine:
        """How numbers are computed."""

    def check(self) -> list[str]:
        """Raise for whatever can be known to be wrong; return what is worth knowing."""

    def terms(self) -> Terms:
        """Return what is fixed about the run before its first step."""

    def roster(self) -> Roster:
        """Return the candidates and references of the run."""

    def plan(self, cell: str) -> CellPlan:
        """Return the plan of a cell."""

    def preview(self, estimate: "Estimate", workers: int) -> list[str]:
        """Return what would be done and what it would take, one paragraph or row each."""

    def cell(self, cell_id: str) -> CellWork:
        """Return the work of a cell, for a worker, which gets the task pickled."""


class CellTask:
    """What tasks share: terms, list and plans are made once in a process.

    A worker takes its fields and what ``carried`` names as they were when the task was checked:
    what lies on disk may have changed since.
    """

    carried: ClassVar[tuple[str, ...]] = ("fixed",)

    def fix(self) -> tuple[Terms, Roster]:
        """Return the terms and the list of models, made anew."""
        raise NotImplementedError

    def build(self, cell: str) -> CellPlan:
        """Return the plan of a cell, made anew."""
        raise NotImplementedError

    @cached_property
    def fixed(self) -> tuple[Terms, Roster]:
        """The terms and the list of models."""
        return self.fix()

    def terms(self) -> Terms:
        """Return what is fixed about the run before its first step."""
        return self.fixed[0]

    def roster(self) -> Roster:
        """Return the candidates and references of the run."""
        return self.fixed[1]

    def plan(self, cell: str) -> CellPlan:
        """Return the plan of a cell."""
        if cell not in self._plans:
            while len(self._plans) >= PLANS:
                self._plans.pop(next(iter(self._plans)))
            self._plans[cell] = self.build(cell)
        return self._plans[cell]

    @cached_property
    def _plans(self) -> dict[str, CellPlan]:
        return {}

    def cell(self, cell_id: str) -> CellWork:
        """Return the work of a cell, for a worker."""
        from palimpsest.cell.work import CellWork as Work

        keep_freed_memory()
        return Work(self.plan(cell_id))

    def __getstate__(self) -> dict[str, Any]:
        names = [item.name for item in fields(self)]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in (*names, *self.carried)}
