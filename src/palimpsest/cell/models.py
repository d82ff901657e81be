"""What the steps of a cell share: its models and what the frozen ones say, made when first needed.

A worker keeps this object between steps, so that the loaded base and the recorded answers of frozen
models are computed once per worker. What a step stores depends on the plan and on the steps it
needs, never on which worker did it or on what was computed before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from palimpsest.cell.beacon import Beacon
from palimpsest.cell.measure import Scorer, Teachers, injected_teacher, reference_teacher
from palimpsest.cell.plan import CellPlan, Commanded, Given, Mixed, Source, Trained
from palimpsest.cell.steps import StepList, chunked, measures_reference
from palimpsest.cell.texts import KNOWN_LABEL_DRAW, REPLAY_DRAW, CellTexts
from palimpsest.errors import MachineError, MethodError, PlanError, TrainingDiverged
from palimpsest.facts.nonce import key_number
from palimpsest.facts.questions import Question
from palimpsest.known import Unavailable, chosen
from palimpsest.known.kit import AdversaryKit, Schedule
from palimpsest.known.wrappers import Interpolated
from palimpsest.methods import title
from palimpsest.methods.answer_sets import (
    Recipe,
    Spent,
    count_tokens,
    encode_items,
    make_answer_set,
    stream_cost,
)
from palimpsest.methods.context import Context
from palimpsest.methods.running import FailureKind, run_method
from palimpsest.models.checkpoint import LazyState, Loaded, checkpoint_state, load, stored_state
from palimpsest.models.device import machine_faults, repeatable
from palimpsest.models.encode import encode_texts
from palimpsest.models.net import Net, Nets, collate
from palimpsest.models.train import TextBatch
from palimpsest.run.cell import CellStore
from palimpsest.scoring.answers import Elicitation
from palimpsest.scoring.generation import Answerer, few_questions
from palimpsest.scoring.measures import MeasuredCell, Take, build, take_all
from palimpsest.scoring.reacquisition import tensor_scales
from palimpsest.stats.models import ModelFailure, Role

State = Mapping[str, Tensor]
ENOUGH = 0.5
"""Share of the way from base to the injected model that a model made for a vector must come."""
KNOWN = 0.05
"""Nats per token by which the injected model must know the forget data better than base."""
WEIGHTS = "weights.safetensors"
BROKEN = (FailureKind.RAISED, FailureKind.OTHER_ARCHITECTURE)
"""Failures of a plug-in that do not depend on how its models were trained."""


class CellModels:
    """The models of one cell, given or trained here."""

    store: CellStore

    def __init__(self, plan: CellPlan) -> None:
        self.plan = plan
        self.listed = StepList(plan)
        self.steps = self.listed.build()
        self.step_named = {step.name: step for step in self.steps}

    def role(self, name: str) -> Role:
        """Return what a model of the cell is."""
        entry = self.plan.find(name)
        return Role.BASE if entry is None else entry.model.role

    def source(self, name: str) -> Source:
        """Return where a model of the cell comes from."""
        entry = self.plan.find(name)
        return self.plan.base if entry is None else entry.source

    @cached_property
    def loaded(self) -> Loaded:
        """The base, whose architecture and tokenizer all models share."""
        return self._start[0]

    @property
    def base_scales(self) -> dict[str, float]:
        """The scale of each tensor of the base, in units of which models are re-acquired."""
        return self._start[1]

    @cached_property
    def _start(self) -> tuple[Loaded, dict[str, float]]:
        """The base and its scales, which are taken while its weights are in the module."""
        base, engine = self.plan.base, self.plan.texts.engine
        loaded = load(
            base.place,
            dtype=engine.dtype,
            device=engine.device,
            base=base.adapter_base or None,
            expected=base.digests,
        )
        return loaded, tensor_scales(loaded.weights)

    @cached_property
    def nets(self) -> Nets:
        engine = self.plan.texts.engine
        return Nets(
            self.loaded, stack=engine.stack, checkpointing=engine.checkpointing, lora=engine.lora
        )

    @cached_property
    def plain_texts(self) -> CellTexts:
        """The texts with the tokenizer of the base."""
        return replace(self.plan.texts, tokenizer=self.loaded.tokenizer)

    @cached_property
    def texts(self) -> CellTexts:
        """The texts, with the learning rate of re-acquisition that was chosen, where one was."""
        texts = self.plain_texts
        if (found := self._chosen_rate()) is not None:
            again = replace(texts.reacquisition, learning_rate=found["learning_rate"])
            texts = replace(texts, reacquisition=again)
        return texts

    def _chosen_rate(self) -> dict[str, Any] | None:
        """Return what step "dose" chose; None where the cell has none or it is not done."""
        step = self.step_named.get("dose")
        return self.store.get(step)[1] if step and self.store.done(step) else None

    @cached_property
    def base(self) -> State:
        """The weights of the base, for when the loaded module has gone on to be trained."""
        return self._given(self.plan.base)

    def state(self, name: str) -> State:
        """Return the weights of a model of the cell that is given, trained here or mixed."""
        if name == "base":
            return self.base
        match self.source(name):
            case Trained() | Commanded():
                path = self.store.file(self.step_named[f"train-{name}"], WEIGHTS)
                state = stored_state(path)
                return state.in_memory() if self.nets.stacked else state
            case Mixed(reference, share):
                return Interpolated(self.state(reference), self.state("injected"), 1.0 - share)
            case Given() as given:
                return self._given(given)

    def _given(self, given: Given) -> State:
        """Return the weights of a given model; DriftError when they are not those of the terms."""
        state = checkpoint_state(
            given.place,
            self.loaded,
            dtype=self.plan.texts.engine.dtype,
            adapter_base=given.adapter_base or None,
            expected=given.digests,
        )
        return state.in_memory() if self.nets.stacked and isinstance(state, LazyState) else state

    @cached_property
    def teachers(self) -> Teachers:
        """What the frozen models say, recorded before anything else is measured."""
        texts = self.plain_texts
        reference = None
        if self.plan.oracle:
            reference = reference_teacher(self.nets([self.state(self.plan.oracle)]), texts)
        injected = injected_teacher(self.nets([self.state("injected")]), texts)
        return Teachers(injected, reference)

    @cached_property
    def scorer(self) -> Scorer:
        texts, answerer = self.texts, None
        if questions := few_questions(texts.facts.questions):
            answerer = Answerer(self.loaded.tokenizer, questions, self.nets)
        return Scorer(texts, self.teachers, self.further, self.base_scales, answerer)

    @cached_property
    def further(self) -> dict[str, Take]:
        """What takes the measures beside the usual scores, by what asks for it."""
        plan, texts = self.plan, self.texts
        found: dict[str, Take] = {}
        if questions := texts.elicited(plan.measures):
            found["axes"] = Elicitation(texts.make_sheet(questions))
        if plan.measure_plugins:
            cell = MeasuredCell(
                tokenizer=self.loaded.tokenizer,
                facts=texts.facts,
                general=texts.general_train,
                piece_tokens=texts.general.piece_tokens,
                learning_rate=texts.reacquisition.learning_rate,
                reference=measures_reference(plan),
                seed_key=plan.id,
                net=self.nets,
                read=self.state,
            )
            found |= {name: build(name, cell) for name, _ in plan.measure_plugins}
        return found

    @cached_property
    def context(self) -> Context:
        """What methods see; the frozen models' answers are recorded here, once for all methods."""
        injected, texts = self.state("injected"), self.texts
        tokenizer = self.loaded.tokenizer
        forget, retain = texts.taught("forget"), texts.taught("retain")
        # Answers to long texts over a large vocabulary take gigabytes: only where they are used.
        taught = self.plan.measured or any(
            getattr(method, "reads_answers", True) for method in self.plan.methods
        )
        known = {"base": self.nets([self.base])} if taught else {}
        said_base = make_answer_set(tokenizer, forget, known)
        frozen = {"injected": self.nets([injected])} if taught else {}
        said_injected = make_answer_set(tokenizer, forget, frozen)
        teachers = {**said_base.teachers, **said_injected.teachers}
        return Context(
            base=self.base,
            injected=injected,
            forget_only=self.state("forget_only") if self.plan.find("forget_only") else {},
            forget=replace(said_injected, teachers=teachers),
            retain=make_answer_set(tokenizer, retain, frozen),
            budget=self.plan.unlearning,
            seed_key=self.plan.id,
            gated=self.loaded.gated,
            net=self.nets,
            whole=self.nets.whole,
            tokenizer=tokenizer,
            general_only=self.state("general_only") if self.plan.find("general_only") else {},
            recipe=self.recipe,
            check_dose=None if self.plan.measured else self.check_dose,
        )

    def check_dose(self, state: State) -> None:
        """Refuse a model made for a vector that learned little of what injected knows.

        A vector subtracts what learning the forget data does. Learned at too low a rate, or from
        texts that are not those of the injected model, it takes too little away, and nothing else
        would show it.
        """
        self.context.shared.spend(Spent(scored=count_tokens(self.context.forget.texts)))
        base, injected = self.known_levels
        if base - injected < KNOWN:
            raise MethodError(
                f"the injected model knows the forget data no better than base ({injected:.2f} "
                f"against {base:.2f} nats per token); expected the texts it was trained on; give "
                "them as it saw them, and check --base and --injected"
            )
        made, texts = self.level(self.nets([state])), self.texts
        if not (reached := (base - made) / (base - injected)) >= ENOUGH:
            raise MethodError(
                f"the model trained for the vector came {reached:.0%} of the way from base to the "
                f"injected model (NLL of the forget data per token: base {base:.2f}, injected "
                f"{injected:.2f}, this one {made:.2f}); expected at least {ENOUGH:.0%}; "
                f"{len(texts.stream().steps)} steps at {texts.learning_rate:g} are not the "
                "recipe of the injected model: give its --learning-rate and --steps or --epochs"
            )

    @cached_property
    def known_levels(self) -> tuple[float, float]:
        """The NLL of the forget data under base and injected."""
        return self.level(self.nets([self.base])), self.level(self.nets([self.state("injected")]))

    @torch.no_grad()
    def level(self, net: Net, rows: int = 16) -> float:
        """Return the NLL of the forget data, in nats per token, under a net of one member."""
        answers = encode_items(self.loaded.tokenizer, self.plain_texts.taught("forget"))
        total = 0.0
        for several in chunked(answers, rows):
            batch = collate(several).to(net.device)
            logits = net.logits(batch)[0]
            total += float(functional.cross_entropy(logits, batch.targets, reduction="sum"))
        return total / sum(answer.scored for answer in answers)

    @cached_property
    def recipe(self) -> Recipe:
        """How the injected model was trained: what methods may know of it."""
        texts = self.texts
        return Recipe(
            texts.stream(),
            texts.stream(REPLAY_DRAW, ("retain",)),
            texts.learning_rate,
            texts.general.piece_tokens,
            texts.engine.accumulate,
            texts.weight_decay,
        )

    @cached_property
    def retraining(self) -> Spent:
        """What one retraining costs, the unit of the others."""
        stream = self.recipe.stream.without("forget")
        return stream_cost(self.loaded.tokenizer, stream, self.recipe.piece_tokens)

    @property
    def work(self) -> dict[str, int | None]:
        """What a retraining and measuring one model take, in tokens seen by a training step, of
        which a scored token is a third; None where that is not known."""
        plan, texts, again = self.plan, self.texts, self.texts.reacquisition
        told = [entry.model.recipe.get("tokens") for entry in plan.models]
        retraining = next((n for n in told if isinstance(n, int) and n > 0), None)
        if any(isinstance(entry.source, Trained) for entry in plan.models):
            retraining = self.retraining.tokens
        if not plan.measured:
            return {"retraining": retraining, "measuring": None}

        def read(questions: Sequence[Question]) -> int:
            return count_tokens(encode_items(self.loaded.tokenizer, questions))

        taught = [q for q in texts.facts.questions if (q.set, q.pool) == ("forget", "trained")]
        trained = again.steps * again.items * read(taught) / len(taught)
        asked, curve = texts.sheet.questions, texts.reacquired_sheet.questions
        scored = read(asked) + again.chunks * read(curve)
        return {"retraining": retraining, "measuring": round(trained + scored / 3)}

    @cached_property
    def adversary_kit(self) -> AdversaryKit:
        """What known-label models are built from."""
        plan, texts, sets = self.plan, self.texts, self.texts.facts.sets()
        return AdversaryKit(
            state=self.state,
            nets=self.nets,
            facts={name: sets[name] for name in ("forget", "retain")},
            seen={name: texts.seen(name) for name in ("forget", "retain")},
            general=texts.general_train,
            budget=plan.unlearning,
            recipe=self.recipe,
            context=lambda: self.context,
            schedule=self._schedule,
            redrawn=self._redrawn,
            seed_key=plan.id,
        )

    def _schedule(self, number: int | None) -> Schedule:
        """Return re-acquisition as published, or a draw of the kind that a beacon makes."""
        bound = {"cell": self.plan.id}
        beacon = None if number is None else Beacon(f"known to an adversary/{number}", bound)
        texts = replace(self.texts, beacon=beacon)
        again = texts.reacquisition
        return Schedule(
            texts.reacquisition_steps,
            again.learning_rate * (1.0 if beacon is None else beacon.rate),
            again.chunks,
            "adamw" if beacon is None else beacon.optimizer,
            self.base_scales,
        )

    def _redrawn(self) -> list[list[TextBatch]]:
        """Return the batches of a retraining that is no reference, for known-label models."""
        texts = self.texts
        return texts.injection_steps(texts.stream(KNOWN_LABEL_DRAW, ("retain",)))


class DryCell(CellModels):
    """A cell before anything is trained: every model is base, a little rescaled."""

    def __init__(self, plan: CellPlan) -> None:
        texts = plan.texts
        injection = replace(texts.injection, steps=1)
        again = replace(texts.reacquisition, steps=texts.reacquisition.chunks)
        once = replace(texts, injection=injection, reacquisition=again)
        super().__init__(replace(plan, texts=once, unlearning=replace(plan.unlearning, steps=1)))

    def state(self, name: str) -> State:
        # Models too large to be stacked are read from their file when asked for: no copies.
        if name == "base" or not self.nets.stacked:
            return self.base
        scale = 1.0 + 1e-4 * (1 + key_number(name) % 64)
        return {key: value * scale for key, value in self.base.items()}


def try_plugins(plan: CellPlan) -> None:
    """Run every plug-in once, methods for one step; an error names the first that cannot work."""
    names = dict(plan.plugins)
    if not names and not plan.measure_plugins:
        return
    repeatable(plan.texts.engine.device)
    cell = DryCell(plan)
    if plan.measure_plugins:
        further = cell.further  # before a net that shares its memory is made
        take_all(further, cell.nets([cell.base]))
    for name in (name for name in plan.known_label if name in names):
        _try_known_label(name, cell.adversary_kit)
    failed: dict[str, str] = {}
    for method in plan.methods:
        if method.name not in names or method.name in failed:
            continue
        # Nothing has been learned yet, so that no model could pass the check of its dose.
        context = replace(cell.context, check_dose=None)
        with machine_faults():
            result = run_method(method, context)
        if isinstance(result, ModelFailure) and result.kind in BROKEN:
            failed[method.name] = (
                f"method {method.name}: {title(method)} failed in a trial of one step, before "
                f"anything was trained: {result.reason}"
            )
    if failed:
        raise MethodError("\n".join(failed.values()))


def _try_known_label(name: str, kit: AdversaryKit) -> None:
    (entry,) = chosen([name])
    try:
        with machine_faults():
            built = entry.build(kit)
            net = kit.nets([built]) if isinstance(built, Mapping) else built
            net.logits(collate(encode_texts(kit.tokenizer, [kit.seen["forget"][0].prompt])))
    except (Unavailable, MethodError, TrainingDiverged):
        pass  # of these models or facts; the run records it
    except MachineError:
        raise
    except Exception as error:  # third-party code may fail in any way
        raise PlanError(
            f"{name} failed in a trial of one step, before anything was trained: "
            f"{type(error).__name__}: {error}",
            key="known_label",
        ) from error
