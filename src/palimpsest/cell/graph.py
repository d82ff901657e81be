"""Which models a cell trains and which steps it has; known without loading a model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from palimpsest.cell.setting import Setting
from palimpsest.facts.stream import Stream
from palimpsest.methods import used
from palimpsest.models.device import machine_faults, repeatable
from palimpsest.plan import Plan
from palimpsest.run.graph import Step
from palimpsest.run.store import Cell

RETRAININGS = 100_000
"""Fresh retrainings are drawn from here on, so that their number and the references' are free."""
REPLAY = 200_000
"""The draw of the stream that methods replay: no reference and no retraining has it."""
PANEL = 300_000
"""The draw of the retraining that the panel of known-label models makes."""


@dataclass(frozen=True, slots=True)
class Task:
    """A step and what does it; the action stores exactly one result under the step's name."""

    step: Step
    action: Callable[[str], None]


class TaskWork:
    """The work of a cell whose steps are tasks; a worker keeps it between steps."""

    cell: Cell
    device: str

    def __init__(self) -> None:
        self._tasks = {task.step.name: task for task in self.tasks()}
        self.steps = tuple(task.step for task in self._tasks.values())

    def tasks(self) -> list[Task]:
        """Return the steps of the cell in plan order."""
        raise NotImplementedError

    def do(self, step: str, cell: Cell) -> None:
        """Do one step and store its result."""
        repeatable(self.device)
        self.cell = cell
        with machine_faults():
            self._tasks[step].action(step)

    def roles(self, cell: Cell) -> dict[str, dict[str, Any]]:
        """Return what the steps recorded of each model, in plan order."""
        roles: dict[str, dict[str, Any]] = {}
        for step in self.steps:
            for name, role in cell.get(step.name)[1].get("models", {}).items():
                roles.setdefault(name, {}).update(role)
        return roles


@dataclass(frozen=True, slots=True)
class Descendant:
    """A model trained from base on part of one draw of the injection stream."""

    name: str
    role: str
    facts: tuple[str, ...]
    """The sets of facts it is taught; all descendants see the general text."""
    stream: int = 0
    draw: int | None = None
    """Number among the models of its role, where there are several."""

    @property
    def step(self) -> str:
        return f"train-{self.name}"

    def described(self, digest: str) -> dict[str, Any]:
        """Return what ``cell.json`` says of it."""
        role = {"role": self.role, "digest": digest}
        return role if self.draw is None else role | {"draw": self.draw}

    def texts(self, setting: Setting) -> Stream:
        """Return the stream it is trained on."""
        stream = setting.stream(self.stream)
        for name in ("forget", "retain"):
            stream = stream if name in self.facts else stream.without(name)
        return stream


def descendants(draws: int = 1, retrainings: int = 0) -> tuple[Descendant, ...]:
    """Return the models a cell trains: injected, references, forget-only, fresh retrainings."""
    references = [
        Descendant(reference_name(n), "reference", ("retain",), stream=n, draw=n)
        for n in range(draws)
    ]
    fresh = [
        Descendant(f"retraining-{n}", "retraining", ("retain",), stream=RETRAININGS + n, draw=n)
        for n in range(1, retrainings + 1)
    ]
    return (
        Descendant("injected", "injected", ("forget", "retain")),
        references[0],
        Descendant("forget_only", "forget_only", ("forget",)),
        *references[1:],
        *fresh,
    )


def with_general_only(
    trained: Sequence[Descendant], methods: Sequence[Any]
) -> tuple[Descendant, ...]:
    """Return the models, and after forget-only the general-only one if a method uses it."""
    wanted = any("general_only" in used(method) for method in methods)
    models: list[Descendant] = []
    for model in trained:
        models.append(model)
        if wanted and model.name == "forget_only":
            models.append(Descendant("general_only", "general_only", ()))
    return tuple(models)


def reference_name(draw: int) -> str:
    """Return the name of one draw of the reference."""
    return f"reference-{draw}" if draw else "reference"


def control_name(share: float) -> str:
    """Return the name of the control with this share of the injected weights left."""
    return f"control-{100 * share:g}"


def chunks(members: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Return the members in order, at most ``size`` together."""
    return [members[start : start + size] for start in range(0, len(members), size)]


class Costs:
    """Expected time of a cell's steps, in texts seen; for the time left alone."""

    def __init__(self, plan: Plan) -> None:
        facts, trip = plan.facts, plan.round_trip
        phrasings = facts.phrasings + 5  # trained phrasings, the cloze and four held-out ones
        asked = (facts.forget + facts.retain + facts.probes) * phrasings
        asked += plan.general.scored_pieces
        back = (facts.forget + facts.retain) * phrasings + plan.general.scored_pieces
        texts = plan.injection.fact_items + plan.injection.general_items
        exercise = plan.unlearning.forget_items + plan.unlearning.retain_items
        # A text is seen by a backward pass too while a model is trained.
        self.train = 3.0 * plan.injection.steps * texts
        self.forward = float(asked)
        self.measure = self.forward + 3.0 * trip.steps * trip.items + (trip.chunks + 1) * back
        self.unlearn = 3.0 * plan.unlearning.steps * exercise
