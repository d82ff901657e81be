"""The steps of a cell, each with the key of everything its result depends on."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from functools import cached_property
from typing import Any

from palimpsest.cell.plan import CellPlan, Commanded, Given, Mixed, SourcedModel, Trained
from palimpsest.config.commands import LADDER
from palimpsest.run.files import digest
from palimpsest.run.steps import Step, step_key
from palimpsest.run.versions import code_version, package_versions
from palimpsest.stats.models import Role

PARTS = (Role.FORGET_ONLY, Role.GENERAL_ONLY)
"""Models trained on a part of the stream, which methods may use; they are not re-acquired."""


class StepKind(StrEnum):
    """What a step does."""

    TRAIN = "train"
    HEADROOM = "headroom"
    DOSE = "dose"
    MEASURE = "measure"
    UNLEARN = "unlearn"
    KNOWN_LABEL = "known_label"


@dataclass(frozen=True)
class Effort:
    """What the work of a step is counted in: everything that a run takes follows from both."""

    trained: float = 0.0
    """Texts seen by a training step."""
    pages: float = 0.0
    """Times that all questions of the cell are scored."""

    def __add__(self, other: "Effort") -> "Effort":
        return Effort(self.trained + other.trained, self.pages + other.pages)

    def __mul__(self, times: float) -> "Effort":
        return Effort(self.trained * times, self.pages * times)


class StepList:
    """Builds the steps of one cell."""

    def __init__(self, plan: CellPlan) -> None:
        self.plan = plan
        self.stack = plan.texts.engine.stack
        self.steps: dict[str, Step] = {}
        self.efforts: dict[str, Effort] = {}
        """By the name of the step."""
        texts, budget, again = plan.texts, plan.unlearning, plan.texts.reacquisition
        self.training = Effort(texts.trained_texts)
        self.relearning = Effort(again.steps * again.items, 0.6)
        self.measuring = self.relearning + Effort(0, 1 + 0.6 * again.chunks)
        self.unlearning = Effort(budget.steps * (budget.forget_items + budget.retain_items))
        # A text is seen by a backward pass too while a model is trained.
        self._page = (len(texts.facts.questions) + len(texts.general_scored)) / 3

    def build(self) -> tuple[Step, ...]:
        """Return the steps in plan order."""
        plan = self.plan
        for entry in plan.models:
            if isinstance(entry.source, Trained | Commanded):
                self._train(entry, entry.source)
        if plan.texts.with_evidence:
            self._headroom()
        if plan.choose_rate_on:
            self._dose(plan.choose_rate_on)
        if plan.measured:
            self._measure_all()
        for number, group in enumerate(method_groups(plan.methods, self.stack)):
            self._unlearn(number, group)
        if plan.known_label:
            self._known_label()
        return tuple(self.steps.values())

    # -- one method per kind of step -------------------------------------------------------------

    def _train(self, entry: SourcedModel, source: Trained | Commanded) -> None:
        if isinstance(source, Commanded):
            made = {"command": source.command, "data": digest(source.data), "seed": source.seed}
            settings = self._common | made
        else:
            settings = self._common | self.plan.texts.training_terms()
            settings |= {"sets": list(source.sets), "draw": source.draw}
        self._add(
            f"train-{entry.name}",
            StepKind.TRAIN,
            settings,
            f"training {entry.name}",
            (entry.name,),
            effort=self.training,
            # Where nothing is measured, the trained models are the product.
            transient=(self.plan.measured or entry.model.role in PARTS)
            and "models" not in self.plan.texts.engine.keep,
        )

    def _headroom(self) -> None:
        asked = [[q.id, q.prompt, q.answer] for q in self.plan.texts.with_evidence]
        models = ("injected", *([self.plan.oracle] if self.plan.oracle else ()))
        settings = self._common | {"evidence": asked, "models": self._identities(models)}
        words, needs = "scoring base and injected with evidence", self._made(models)
        self._add("headroom", StepKind.HEADROOM, settings, words, needs=needs, effort=Effort(0, 1))

    def _dose(self, reference: str) -> None:
        models = ("injected", reference)
        settings = self._measuring | {"models": self._identities(models), "ladder": list(LADDER)}
        words = "choosing the learning rate of re-acquisition"
        needs, effort = self._made(models), self.relearning * (len(LADDER) / 2)
        self._add("dose", StepKind.DOSE, settings, words, needs=needs, effort=effort)

    def _measure_all(self) -> None:
        plan = self.plan
        parts = [entry.name for entry in plan.of(*PARTS)]
        self._measure("known", ("base", "injected", *parts))
        for role, label in (
            (Role.REFERENCE, "references"),
            (Role.RETRAINING, "retrainings"),
            (Role.CONTROL, "controls"),
            (Role.CANDIDATE, "candidates"),
        ):
            names = [entry.name for entry in plan.of(role)]
            for number, group in enumerate(chunked(names, self.stack)):
                alone = f"{label}-{number:02d}" if self.stack > 1 else group[0]
                self._measure(alone, tuple(group))

    def _measure(self, label: str, models: tuple[str, ...]) -> None:
        settings = self._measuring | {"models": self._identities(models)}
        self._add(
            f"measure-{label}",
            StepKind.MEASURE,
            settings,
            f"measuring {', '.join(models)}",
            models,
            needs=self._made((*self._teachers, *models)),
            effort=self.measuring * len(models),
        )

    def _unlearn(self, number: int, group: Sequence[Any]) -> None:
        plan, first = self.plan, group[0]
        made = [
            {"name": method.name, "label": method.label, "knobs": _knobs(method)}
            for method in group
        ]
        settings = self._common | self._unlearning
        settings |= {"methods": made, "plugin": dict(plan.plugins).get(first.name, "")}
        settings |= self._measuring if plan.measured else {}
        needs = self._made(tuple(entry.name for entry in plan.of(Role.INJECTED, *PARTS)))
        if plan.measured:
            needs = tuple(dict.fromkeys((*self._made(self._teachers), *needs)))
        short = first.name.replace("_", "-").lower()[:24]
        effort = self.unlearning + (self.measuring if plan.measured else Effort())
        self._add(
            f"unlearn-{number:02d}-{short}",
            StepKind.UNLEARN,
            settings,
            f"{first.name}: making {'and measuring ' if plan.measured else ''}{len(group)}",
            tuple(f"{method.name}-{method.label}" for method in group),
            needs=needs,
            effort=effort * len(group),
        )

    def _known_label(self) -> None:
        from palimpsest.known import chosen

        plan = self.plan
        entries = chosen(plan.known_label)
        wanted = [name for entry in entries for name in entry.builds_on]
        models = tuple(name for name in dict.fromkeys(wanted) if plan.find(name) is not None)
        _, commitment = plan.sealed_pool
        settings = self._measuring | self._unlearning | self.plan.texts.training_terms()
        named = {name: dict(plan.plugins).get(name, "") for name in plan.known_label}
        settings |= {"known_label": named, "seal": commitment}
        settings["models"] = self._identities(models)
        self._add(
            "known-label",
            StepKind.KNOWN_LABEL,
            settings,
            "measuring the known-label models",
            tuple(entry.model for entry in entries),
            needs=self._made((*self._teachers, *models)),
            effort=(self.measuring + self.unlearning) * len(entries),
        )

    # -- what keys are made of -------------------------------------------------------------------

    @cached_property
    def _common(self) -> dict[str, Any]:
        """What every step depends on."""
        engine = asdict(self.plan.texts.engine)
        numeric = {key: value for key, value in engine.items() if not key.startswith("keep")}
        return {
            "cell": self.plan.id,
            "base": self.plan.base.digests.files,
            "engine": numeric,
            "code": code_version()["source"],
            "packages": package_versions(),
        }

    @cached_property
    def _measuring(self) -> dict[str, Any]:
        """What every measuring step depends on beside the models it measures."""
        plan = self.plan
        return self._common | {
            "measuring": plan.texts.measuring_terms(),
            "measures": [list(plan.measures), dict(plan.measure_plugins)],
            "teachers": self._identities(self._teachers),
            "dose": self.steps["dose"].key if "dose" in self.steps else "",
        }

    @cached_property
    def _unlearning(self) -> dict[str, Any]:
        plan = self.plan
        used = tuple(entry.name for entry in plan.of(Role.INJECTED, *PARTS))
        return {
            "training": plan.texts.training_terms(),
            "unlearning": asdict(plan.unlearning),
            "start": self._identities(used),
        }

    @property
    def _teachers(self) -> tuple[str, ...]:
        """The frozen models whose answers are recorded before anything is measured."""
        plan = self.plan
        further = measures_reference(plan) if plan.measure_plugins else ""
        named = ["injected", plan.oracle, further]
        return tuple(dict.fromkeys(name for name in named if name))

    def _identities(self, names: Sequence[str]) -> list[list[str]]:
        """Return each model's name with what its weights are made of."""
        return [[name, self._identity(name)] for name in names]

    def _identity(self, name: str) -> str:
        entry = self.plan.find(name)
        if entry is None:
            return str(self.plan.base.digests.files)
        match entry.source:
            case Given(digests=digests):
                return str(digests.weights)
            case Trained() | Commanded():
                return self.steps[f"train-{name}"].key
            case Mixed(reference, share):
                parts = [self._identity(reference), self._identity("injected"), share]
                return step_key("mix", parts)

    def _made(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the steps that make these models; given ones need none."""
        needs: list[str] = []
        for name in names:
            entry = self.plan.find(name)
            if entry is not None and isinstance(entry.source, Mixed):
                needs += self._made((entry.source.reference, "injected"))
            elif f"train-{name}" in self.steps:
                needs.append(f"train-{name}")
        return tuple(dict.fromkeys(needs))

    def _add(
        self,
        name: str,
        kind: StepKind,
        settings: dict[str, Any],
        words: str,
        models: tuple[str, ...] = (),
        *,
        needs: tuple[str, ...] = (),
        effort: Effort,
        transient: bool = False,
    ) -> None:
        if kind in (StepKind.MEASURE, StepKind.UNLEARN, StepKind.KNOWN_LABEL):
            needs += ("dose",) if "dose" in self.steps else ()
        key = step_key(kind, settings, [self.steps[need].key for need in needs])
        cost = effort.trained + effort.pages * self._page
        self.efforts[name] = effort
        self.steps[name] = Step(name, kind, key, words, needs, models, cost, transient)


def measures_reference(plan: CellPlan) -> str:
    """Return the reference that measures of plug-ins may use.

    Not the one that shares the injected model's draw: mixtures and adversaries are made of it.
    """
    references = plan.of(Role.REFERENCE)
    others = [entry.name for entry in references if not entry.model.same_draw]
    return others[0] if others else references[0].name


def chunked(members: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Yield the members in order, at most ``size`` together."""
    for start in range(0, len(members), size):
        yield members[start : start + size]


def method_groups(methods: Sequence[Any], stack: int) -> list[list[Any]]:
    """Return the methods in order, neighbors that can be trained side by side together."""
    if not methods:
        return []
    from palimpsest.methods.running import groups

    return groups(methods, stack)


def _knobs(method: Any) -> dict[str, Any]:
    return {item.name: getattr(method, item.name) for item in fields(method)}
