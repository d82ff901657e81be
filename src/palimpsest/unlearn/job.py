"""The steps of ``unlearn`` and ``retrain``: train what is needed, make the candidates.

::

    retrain:  train-injected, train-reference, train-reference-1 …
    unlearn:  train-forget_only, train-general_only -> choose -> make-000, make-001 …

Each step ends in a file of weights, so that stopped work resumes with the models that are left.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from palimpsest.audit.probes import generated_probes
from palimpsest.cell.bench import Bench, candidate_role
from palimpsest.cell.graph import Costs, Descendant, Task, reference_name
from palimpsest.cell.setting import Setting
from palimpsest.cell.sources import WEIGHTS, Given, save_weights
from palimpsest.facts.questions import file_questions
from palimpsest.methods import title, used
from palimpsest.methods.choice import choose
from palimpsest.methods.context import Context, Lesson, Method, lesson
from palimpsest.methods.recipe import Cost
from palimpsest.methods.replay import Replay
from palimpsest.methods.running import Failure, checked_run
from palimpsest.models.load import state_digest
from palimpsest.plan import CellPlan
from palimpsest.run.graph import Step
from palimpsest.run.store import Cell
from palimpsest.unlearn.request import OWN, Request, Retrain, Unlearn

INVENTED = 16
"""Invented facts that the forget facts are compared with when knobs are chosen."""
CHOOSE = "choose"


@dataclass(frozen=True)
class OwnJob:
    """The work of a request, for whichever process does it."""

    request: Request

    def cell(self, cell_id: str) -> "OwnWork":
        if isinstance(self.request, Unlearn):
            return UnlearnWork(self.request)
        assert isinstance(self.request, Retrain)
        return RetrainWork(self.request)


class OwnWork(Bench):
    """Models of the user's own facts."""

    def __init__(
        self, request: Request, trained: tuple[Descendant, ...], given: Mapping[str, Given]
    ) -> None:
        self.request = request
        super().__init__(CellPlan(OWN, request.seed, request.plan), trained, given)

    @cached_property
    def setting(self) -> Setting:
        return self.request.setting(self.loaded.tokenizer)

    def results(self) -> dict[str, str]:
        """Return the steps whose weights are the answer, by the name of the model."""
        raise NotImplementedError

    def keep(self) -> dict[str, tuple[str, str]]:
        made = [step for step in self.results().values() if not self._failed(step)]
        return {f"{step}.safetensors": (step, WEIGHTS) for step in made}

    def _failed(self, step: str) -> bool:
        models = self.cell.get(step)[1]["models"]
        return any("failure" in role for role in models.values())


class RetrainWork(OwnWork):
    """References, each another draw of the recipe, and the injected model."""

    def __init__(self, request: Retrain) -> None:
        models = [
            Descendant(reference_name(draw), "reference", ("retain",), stream=draw, draw=draw)
            for draw in range(request.draws)
        ]
        if request.forget is not None:
            models.insert(0, Descendant("injected", "injected", ("forget", "retain")))
        super().__init__(request, tuple(models), {})

    def results(self) -> dict[str, str]:
        return {model.name: model.step for model in self.trained}


class UnlearnWork(OwnWork):
    """Candidates of one method."""

    request: Unlearn

    def __init__(self, request: Unlearn) -> None:
        trained: tuple[Descendant, ...] = ()
        methods = request.methods()
        if any({"forget_only", "general_only"} & set(used(method)) for method in methods):
            trained = (Descendant("forget_only", "forget_only", ("forget",)),)
        given = {"injected": Given(request.injected, request.dtype, request.device)}
        super().__init__(request, trained, given)

    def tasks(self) -> list[Task]:
        tasks = super().tasks()
        costs = Costs(self.plan.plan)
        needs = self.needs("forget_only", "general_only")
        if self.request.choose:
            words = "choosing coefficient and share"
            tasks.append(Task(Step(CHOOSE, words, needs, costs.train / 2), self._choose))
            needs = (*needs, CHOOSE)
        for number, method in enumerate(self.methods):
            words = f"making {title(method)}" if not self.request.choose else "making the candidate"
            step = Step(made_step(number), words, needs, costs.unlearn)
            tasks.append(Task(step, partial(self._make, method)))
        return tasks

    def results(self) -> dict[str, str]:
        return {title(method): made_step(number) for number, method in enumerate(self.methods)}

    @cached_property
    def context(self) -> Context:
        context = super().context
        if self.request.base is not None:
            return context
        # No method that needs a base comes here; one that does not say so gets nothing to use.
        unknown = tuple(
            torch.full_like(said, torch.nan) for said in context.forget.teachers["base"]
        )
        teachers = {**context.forget.teachers, "base": unknown}
        return replace(context, base={}, forget=replace(context.forget, teachers=teachers))

    def finish(self, cell: Cell) -> dict[str, Any]:
        summary = super().finish(cell)
        chosen = cell.get(CHOOSE)[1] if self.request.choose else None
        return summary | {"choice": chosen}

    def _choose(self, step: str) -> None:
        meter = self.context.shared.meter
        meter.spent = Cost()
        choice = choose(self.context, self.invented)
        cost = meter.spent.values(self.loaded.parameters, self.retraining)
        self.cell.put(step, values={**asdict(choice), "cost": cost})

    @cached_property
    def invented(self) -> Lesson:
        """Facts that no model learned, in the forget facts' trained phrasings."""
        sets = self.request.sets
        asked = [replace(fact, trained=(), heldout=fact.trained) for fact in sets["forget"]]
        facts = generated_probes(asked, INVENTED, sets["retain"])
        facts = tuple(replace(fact, trained=fact.heldout, heldout=()) for fact in facts)
        return lesson(self.loaded.tokenizer, file_questions({"probe": facts}), {}, self.setting.pad)

    def _make(self, method: Method, step: str) -> None:
        if self.request.choose:
            method = Replay(**self.cell.get(CHOOSE)[1]["method"])
        name = title(method)
        result = checked_run(method, self.context)
        role = candidate_role(method)
        if isinstance(result, Failure):
            role["failure"] = {"kind": result.kind, "reason": result.reason}
        else:
            role |= {"digest": state_digest(result), "cost": self.cost(name)}
            self.cell.put_file(step, WEIGHTS, lambda path: save_weights(result, path))
        self.cell.put(step, values={"models": {name: role}})


def made_step(number: int) -> str:
    """Return the name of the step that makes a candidate."""
    return f"make-{number:03d}"
