"""The steps of a cell, and the protocols of the work an executor is given.

A step is addressed by ``key``, the hash of everything its result depends on: settings, digests of
inputs, the measuring code and the keys of the steps it needs. A stored result counts only under the
key that is expected now. So resuming, adding a candidate, editing a method and taking over results
from another run are one thing: steps whose key is stored are not done again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from palimpsest.errors import InputError
from palimpsest.run.disk import canonical, digest, safe_name

if TYPE_CHECKING:
    from palimpsest.run.cell import CellStore

FINISH = "finish"
"""The name of the last step of every cell, which merges the others."""


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


def check_steps(steps: Sequence[Step], cell_id: str) -> tuple[Step, ...]:
    """Return the steps, or raise InputError when their names or needs cannot be used."""
    names: set[str] = set()
    for step in steps:
        unknown = [need for need in step.needs if need not in names]
        if safe_name(step.name, "step") in (*names, FINISH) or unknown:
            wrong = f"needs {unknown}" if unknown else "is there twice"
            raise InputError(
                f"cell {cell_id}: step {step.name!r} {wrong}; expected each step once, after the "
                "steps it needs"
            )
        names.add(step.name)
    return tuple(steps)


def steps_to_do(steps: Sequence[Step], done: Collection[str]) -> set[str]:
    """Return the names of the steps to do: those not done, but a transient one only if needed."""
    wanted: set[str] = set()
    for step in reversed(steps):
        if step.name not in done and (not step.transient or step.name in wanted):
            wanted |= {step.name, *step.needs}
    return wanted - set(done)
