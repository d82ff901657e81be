"""The models of one cell, trained here or given, and what all its steps share.

A worker keeps this object between steps, so that the loaded model and what the frozen models say
are computed once per worker. What a step stores depends on the plan and on the steps it needs, and
never on which worker did it or on what was computed before.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from typing import Any, cast

from palimpsest.cell.graph import (
    REPLAY,
    Costs,
    Descendant,
    Task,
    TaskWork,
    chunks,
    with_general_only,
)
from palimpsest.cell.setting import Setting, make_setting
from palimpsest.cell.sources import (
    WEIGHTS,
    Given,
    Source,
    State,
    Trained,
    check_source,
    save_weights,
)
from palimpsest.errors import TrainingDiverged
from palimpsest.methods import candidates, title
from palimpsest.methods.context import Context, Method, lesson
from palimpsest.methods.recipe import Cost, Recipe, stream_cost
from palimpsest.methods.running import Failure, groups, run_group
from palimpsest.models.load import Loaded, load, state_digest
from palimpsest.models.nets import Nets
from palimpsest.models.stored import lasting_state
from palimpsest.models.train import text_loss, train
from palimpsest.plan import CellPlan
from palimpsest.run.graph import Step
from palimpsest.run.store import Cell

Roles = dict[str, dict[str, Any]]


class Bench(TaskWork):
    """The models of one cell, trained here or given, and the steps that train them.

    A subclass adds steps in ``tasks``; an action ends in one ``self.cell.put``.
    """

    def __init__(
        self,
        plan: CellPlan,
        trained: Sequence[Descendant],
        given: Mapping[str, Given] | None = None,
        inputs: Mapping[str, str] | None = None,
    ) -> None:
        """given: checkpoints by the name of the model; inputs: digests fixed when the run began."""
        self.plan = plan
        self.inputs = dict(inputs or {})
        self.given = dict(given or {})
        self.methods: tuple[Method, ...] = candidates(plan.plan.methods)
        self.planned = with_general_only(trained, self.methods)
        self.trained = tuple(model for model in self.planned if model.name not in self.given)
        self.sources: dict[str, Source] = {
            model.name: Trained(model.step) for model in self.trained
        }
        self.sources.update(self.given)
        self.device = plan.plan.engine.device
        super().__init__()

    def tasks(self) -> list[Task]:
        """Return the steps of the cell in plan order: here, the trainings."""
        cost = Costs(self.plan.plan).train
        return [
            Task(Step(model.step, f"training {model.name}", cost=cost), partial(self._train, model))
            for model in self.trained
        ]

    def finish(self, cell: Cell) -> dict[str, Any]:
        """Return what ``cell.json`` says of the cell: its models with their roles, its facts."""
        self.cell = cell
        return {"model": self.plan.model, "seed": self.plan.seed, "models": self.roles(cell)}

    def needs(self, *names: str) -> tuple[str, ...]:
        """Return the steps that make these models; base needs none."""
        steps = (self.sources[name].needs for name in names if name in self.sources)
        return tuple(dict.fromkeys(step for several in steps for step in several))

    def keep(self) -> dict[str, tuple[str, str]]:
        """Return the files a finished cell keeps: file -> (step, name of the step's file)."""
        if not self.plan.plan.engine.keep_models:
            return {}
        return {f"{model.name}.safetensors": (model.step, WEIGHTS) for model in self.trained}

    # -- training ----------------------------------------------------------------------------

    def _train(self, model: Descendant, step: str) -> None:
        net = self.nets([self.base])
        batches = self.setting.injection_steps(model.texts(self.setting))
        rate = self.plan.plan.injection.learning_rate
        diverged = train(net, batches, text_loss, learning_rate=rate)
        if diverged:
            raise TrainingDiverged(diverged[0], f"{model.name} of cell {self.plan.id}")
        state = {key: value.cpu().contiguous() for key, value in net.state().items()}
        self.cell.put_file(step, WEIGHTS, lambda path: save_weights(state, path))
        role = model.described(state_digest(state))
        self.cell.put(step, values={"models": {model.name: role}})

    # -- what the steps share, made when first needed ----------------------------------------

    @cached_property
    def loaded(self) -> Loaded:
        plan = self.plan.plan
        local = dict(plan.local_models).get(self.plan.model, self.plan.model)
        if self.plan.model in self.inputs:
            check_source(self.plan.model, local, self.inputs[self.plan.model])
        return load(local, dtype=plan.engine.dtype, device=plan.engine.device)

    @cached_property
    def nets(self) -> Nets:
        engine = self.plan.plan.engine
        host = engine.optimizer == "host"
        return Nets(self.loaded, stack=engine.stack, checkpointing=engine.checkpointing, host=host)

    @cached_property
    def setting(self) -> Setting:
        return make_setting(self.plan, self.loaded.tokenizer)

    @cached_property
    def base(self) -> State:
        return lasting_state(self.loaded)

    def state(self, name: str) -> State:
        """Return the weights of base or of a model that was trained here or given."""
        if name == "base":
            return self.base
        _ = self.base  # the loaded module's own weights, before it is trained
        return self.sources[name].state(self.cell, self.loaded, in_memory=self.nets.stacked)

    @cached_property
    def context(self) -> Context:
        """What methods see; the frozen models' answers are recorded here, once for all methods."""
        injected = self.state("injected")
        pad, tokenizer = self.setting.pad, self.loaded.tokenizer
        forget, retain = self.setting.seen("forget"), self.setting.seen("retain")
        said_base = lesson(tokenizer, forget, {"base": self.nets([self.base])}, pad)
        frozen = {"injected": self.nets([injected])}
        said_injected = lesson(tokenizer, forget, frozen, pad)
        teachers = {**said_base.teachers, **said_injected.teachers}
        return Context(
            base=self.base,
            injected=injected,
            forget_only=self.state("forget_only") if "forget_only" in self.sources else {},
            forget=replace(said_injected, teachers=teachers),
            retain=lesson(tokenizer, retain, frozen, pad),
            budget=self.plan.plan.unlearning,
            seed_key=self.plan.id,
            gated=self.loaded.gated,
            net=self.nets,
            whole=self.nets.whole,
            tokenizer=tokenizer,
            pad=pad,
            general_only=self.state("general_only") if "general_only" in self.sources else {},
            recipe=self.recipe,
        )

    @cached_property
    def recipe(self) -> Recipe:
        """How the injected model was trained: what methods may know of it."""
        plan = self.plan.plan
        return Recipe(
            self.setting.stream(),
            self.setting.stream(REPLAY).without("forget"),
            plan.injection.learning_rate,
            plan.general.piece_tokens,
            plan.engine.accumulate,
        )

    def cost(self, name: str) -> dict[str, float] | None:
        """Return what making a candidate took, None if it was not made here."""
        cost = self.context.shared.meter.costs.get(name)
        return None if cost is None else cost.values(self.loaded.parameters, self.retraining)

    @cached_property
    def retraining(self) -> Cost:
        """What one retraining costs, the unit of the others."""
        stream = self.recipe.stream.without("forget")
        return stream_cost(self.loaded.tokenizer, stream, self.recipe.piece_tokens)

    def made(self, group: Sequence[Method]) -> Iterator[list[tuple[str, Method, State | Failure]]]:
        """Yield what a group of methods makes, as many at a time as a net holds.

        Each with its name, and the model it makes or why it makes none.
        """
        for several in chunks(group, self.nets.stack):
            results = run_group(self.context, several)
            yield [(title(method), method, result) for method, result in zip(several, results)]

    def method_groups(self, prefix: str) -> list[tuple[str, list[Method]]]:
        """Return the names of the steps that make candidates, with their methods.

        By the plan's stack alone, whatever the model can do: the steps are known without it.
        """
        return [
            (f"{prefix}-{number:02d}-{group[0].name.replace('_', '-').lower()[:24]}", group)
            for number, group in enumerate(groups(self.methods, self.plan.plan.engine.stack))
        ]


def candidate_role(method: Method) -> dict[str, Any]:
    """Return what ``cell.json`` says of a method's candidate."""
    knobs = {item.name: getattr(method, item.name) for item in fields(cast(Any, method))}
    kind = getattr(method, "kind", "other")  # a plug-in may declare none
    return {"role": "candidate", "method": method.name, "knobs": knobs, "kind": kind}
