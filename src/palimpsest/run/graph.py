"""The graph of steps of a cell, and the protocols of the work an executor is given.

Each step reads what earlier steps stored and stores its own results through the cell's folder; any
free worker can do it. A job makes the work of a cell in whatever process it is needed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from palimpsest.errors import InputError
from palimpsest.run.disk import safe_name

if TYPE_CHECKING:
    from palimpsest.run.cell import Cell

FINISH = "finish"
"""The name of the last step of every cell, which merges the others; no step may be called that."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a cell: what any free worker does in one go."""

    name: str  # unique in the cell, lower case, safe as a folder name, e.g. "train-reference-3"
    words: str  # for people, e.g. "training reference 3"
    needs: tuple[str, ...] = ()  # steps of this cell that must be done before
    cost: float = 1.0  # relative expected time, for the time left


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a step, and with it its cell, failed."""

    kind: str  # of the error class, "worker lost", or "error" for an error nobody foresaw
    reason: str
    step: str


@dataclass(eq=False)
class Halt(Exception):
    """Raised by `CellWork.do`: the cell ends here on purpose, without results; not a failure.

    `values` are stored with the reason, since the steps' files are removed.
    """

    reason: str
    values: Mapping[str, Any] = field(default_factory=dict)


class CellWork(Protocol):
    """The work of one cell; a worker keeps it between steps, so that its caches survive.

    A work with a method `keep()` keeps files of its steps: it returns, for each file to keep as
    `models/<name>`, the step and the file it comes from.
    """

    @property
    def steps(self) -> tuple[Step, ...]:
        """Return the steps in plan order, without loading a model."""

    def do(self, step: str, cell: "Cell") -> None:
        """Do one step; it must end in exactly one `cell.put(step, ...)`."""

    def finish(self, cell: "Cell") -> Mapping[str, Any]:
        """Return the summary that goes into cell.json, when all steps are done."""


class Job(Protocol):
    """How a worker (a process, a Ray actor) gets at the work; must be picklable."""

    def cell(self, cell_id: str) -> CellWork:
        """Return the work of one cell."""


def check_steps(steps: Sequence[Step], cell_id: str) -> tuple[Step, ...]:
    """Return the steps, or raise InputError when their names or needs cannot be used."""
    names: set[str] = set()
    for step in steps:
        check_name(step.name)
        unknown = [need for need in step.needs if need not in names]
        if step.name in names or unknown:
            wrong = f"needs {unknown}" if unknown else "is there twice"
            raise InputError(
                f"cell {cell_id}: step {step.name!r} {wrong}; expected each step once, after the "
                "steps it needs"
            )
        names.add(step.name)
    return tuple(steps)


def check_name(step: str) -> str:
    """Return the name of a step, or raise InputError when it cannot be called that."""
    if safe_name(step, "step") != step.lower() or step == FINISH:
        raise InputError(f"step {step!r}: expected a lower-case name other than {FINISH!r}")
    return step
