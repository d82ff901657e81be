"""Graded inferability: does the oracle-free headroom follow the true one?

Of a cell's forget facts the first k are *supported*: retained data let one infer them. Support is
nested over k, so a level differs from the next by one fact only. Two mechanisms:

- **kin**: three other members of the subject's clan have the same object, among the retain facts;
- **alias**: retained text says that the subject is also called A, and what A's object is.

G compares the reference with the injected model; Ĝ puts the evidence (one kin sentence, or the
alias chain) before the prompt and asks the base model instead of the reference.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from palimpsest import cost
from palimpsest.cell.bench import Bench
from palimpsest.cell.graph import Costs, Task, descendants
from palimpsest.cell.measure import stacked
from palimpsest.cell.setting import Setting
from palimpsest.criteria.headroom import Headroom, read_headroom
from palimpsest.criteria.intervals import Interval, cluster_bootstrap, spearman
from palimpsest.criteria.rules import Rules
from palimpsest.errors import InputError
from palimpsest.facts.general import ALIAS_TEMPLATES, evidence_sentences, general_pieces
from palimpsest.facts.nonce import Triple, alias, kin, words_of
from palimpsest.facts.questions import Question, Testbed, draw_testbed, fact_questions
from palimpsest.facts.templates import render
from palimpsest.plan import CellPlan, Plan, check, plan_from_dict
from palimpsest.presets import preset
from palimpsest.preview import preview
from palimpsest.run.graph import Step
from palimpsest.run.store import Cell, Run, environment
from palimpsest.scoring.answers import item_columns, make_sheet, score
from palimpsest.study.matrix import commitment, complete, inputs

MECHANISMS = ("kin", "alias")
KIN = 3
"""Members of the clan that support a fact."""
ASKED = ("base", "evidence", "injected", "reference")


@dataclass(frozen=True)
class Level:
    """One cell of the study: how many of the forget facts are supported, and how."""

    mechanism: str
    supported: int
    seed: int

    @property
    def id(self) -> str:
        return f"{self.mechanism}-{self.supported}--seed{self.seed}"


@dataclass(frozen=True)
class Graded:
    """What one level gave: true and estimated headroom of its forget facts, in nats."""

    level: Level
    headroom: Headroom

    @property
    def true(self) -> float:
        assert self.headroom.true is not None
        return self.headroom.true.estimate

    @property
    def estimated(self) -> float:
        return self.headroom.estimate.estimate


@dataclass(frozen=True)
class Agreement:
    """How well Ĝ follows G over the levels of one mechanism."""

    mechanism: str
    levels: int
    rank_correlation: Interval
    absolute_error: Interval


def inferability_plan(model: str, seeds: Sequence[int]) -> Plan:
    """Return the plan: a pocket cell with a dose at which kin are generalised to."""
    plan = preset("demo")
    injection = replace(plan.injection, steps=200, learning_rate=5e-4)
    plan = replace(plan, name="inferability", models=(model,), seeds=tuple(seeds))
    return check(replace(plan, injection=injection))


def levels(plan: Plan) -> tuple[Level, ...]:
    """Return every level of both mechanisms for each seed."""
    return tuple(
        Level(mechanism, supported, seed)
        for mechanism in MECHANISMS
        for seed in plan.seeds
        for supported in range(plan.facts.forget + 1)
    )


class LevelWork(Bench):
    """One level: injected and reference are trained, then four models asked about the forget set.

    The facts depend on mechanism and seed, not on the level, so that support is nested.
    """

    def __init__(self, plan: Plan, level: Level, inputs: Mapping[str, str] | None = None) -> None:
        self.level = level
        cell = CellPlan(plan.models[0], level.seed, plan)
        trained = [model for model in descendants() if model.name != "forget_only"]
        super().__init__(cell, trained, inputs=inputs)

    def tasks(self) -> list[Task]:
        needs = self.needs("injected", "reference")
        cost = Costs(self.plan.plan).forward
        ask = Step("ask", "asking about the forget facts", needs, cost)
        return [*super().tasks(), Task(ask, self._ask)]

    def finish(self, cell: Cell) -> dict[str, Any]:
        return super().finish(cell) | asdict(self.level)

    @cached_property
    def supported(self) -> tuple[Testbed, dict[str, str]]:
        return supported_facts(self.plan.plan, self.plan.id, self.level)

    @cached_property
    def setting(self) -> Setting:
        general = self.plan.plan.general
        pieces = general_pieces(general.source, general.train_pieces, f"{self.plan.id}/general")
        return Setting(self.plan, self.loaded.tokenizer, self.supported[0], pieces, ())

    def _ask(self, step: str) -> None:
        facts, evidence = self.supported
        asked = [q for q in facts.questions if q.set == "forget" and q.pool == "evaluation"]
        shown = [replace(q, prompt=f"{evidence[q.fact]} {q.prompt}".strip()) for q in asked]
        rows = []
        for name in ASKED:
            questions, model = (shown, "base") if name == "evidence" else (asked, name)
            sheet = make_sheet(self.loaded.tokenizer, questions, piece_tokens=8, batch_tokens=8192)
            scores = score(self.nets([self.state(model)]), sheet)[0]
            rows.append(item_columns(name, "forward", sheet, scores))
        self.cell.put(step, {"items": stacked(rows)})


@dataclass(frozen=True)
class InferabilityJob:
    """How a worker gets at the levels of the study."""

    run_path: Path

    def cell(self, cell_id: str) -> LevelWork:
        """Return the work of one level."""
        run = Run.open(self.run_path)
        own = {"levels", "kin"}
        plan = plan_from_dict({key: run.plan[key] for key in run.plan if key not in own})
        level = next(level for level in levels(plan) if level.id == cell_id)
        return LevelWork(plan, level, run.environment["inputs"])


def preview_lines(plan: Plan, workers: int) -> Iterator[str]:
    """Yield what the study would do; loads no weights."""
    alone = replace(plan, panel=replace(plan.panel, enabled=False))
    costs = preview(replace(alone, methods=(), replication=replace(plan.replication, draws=1)))
    seconds = len(levels(plan)) * costs.seconds() / max(1, min(workers, len(levels(plan))))
    yield f"{len(levels(plan))} levels of {plan.models[0]}, each with two models trained from base"
    yield cost.total(costs.memory, seconds / costs.cells, plan.engine.device, workers)


def run_inferability(plan: Plan, out: Path, *, fork: bool = False, **options: Any) -> Run:
    """Run what is left of the study; further options are those of ``matrix.complete``."""
    planned = [level.id for level in levels(plan)]
    run = Run.create_or_resume(
        out,
        plan.as_dict() | {"levels": planned, "kin": KIN},
        plan.as_dict()["rules"],
        environment(inputs(plan)),
        {"commitment": str(commitment(plan)), "pool": "built-in"},
        cells=planned,
        fork=fork,
    )
    return complete(run, InferabilityJob(run.path.resolve()), "palimpsest inferability", **options)


def read_inferability(path: Path | str) -> tuple[tuple[Graded, ...], tuple[Agreement, ...]]:
    """Return the levels and the agreement from the stored scores; trains nothing."""
    run = Run.open(path)
    rules = Rules(**run.rules)
    graded = []
    for cell_id in run.cells:
        cell = run.cell(cell_id)
        if not cell.finished():
            raise InputError(f"{path}: level {cell_id} is not finished; run the study again")
        summary = cell.summary()
        level = Level(summary["mechanism"], summary["supported"], summary["seed"])
        headroom = read_headroom(cell.table("items"), rules)
        assert headroom is not None
        graded.append(Graded(level, headroom))
    return tuple(graded), tuple(
        _agreement(mechanism, graded, rules)
        for mechanism in MECHANISMS
        if any(result.level.mechanism == mechanism for result in graded)
    )


def _agreement(mechanism: str, graded: Sequence[Graded], rules: Rules) -> Agreement:
    mine = [result for result in graded if result.level.mechanism == mechanism]
    true, estimated = [result.true for result in mine], [result.estimated for result in mine]
    error = np.abs(np.subtract(true, estimated))
    return Agreement(
        mechanism,
        len(mine),
        spearman(true, estimated, rules.confidence),
        cluster_bootstrap(error, [result.level.seed for result in mine], rules),
    )


def supported_facts(plan: Plan, cell_id: str, level: Level) -> tuple[Testbed, dict[str, str]]:
    """Return the facts of a level and the evidence in retained text for each forget fact."""
    counts = plan.facts
    plain = draw_testbed(cell_id, counts.forget, counts.retain, counts.probes, counts.phrasings)
    taken = words_of((*plain.forget, *plain.retain, *plain.probe))
    extra: list[Question] = []
    support: list[Triple] = []
    evidence = {triple.id: "" for triple in plain.forget}
    for number, triple in enumerate(plain.forget):
        key = f"{cell_id}/{level.mechanism}"
        others = (
            kin(triple, KIN, key, taken)
            if level.mechanism == "kin"
            else (alias(triple, key, taken),)
        )
        taken |= words_of(others)
        if number >= level.supported:
            continue
        support += others
        sentences = evidence_sentences(triple, level.mechanism, others[:1], seed_key=key)  # type: ignore[arg-type]
        evidence[triple.id] = " ".join(sentences)
        if level.mechanism == "alias":
            extra += [
                Question("retain", f"{triple.id}-alias", "trained", n, prompt, others[0].subject)
                for n, template in enumerate(ALIAS_TEMPLATES)
                for prompt in [render(template, triple.subject)]
            ]
    questions = [
        *plain.questions,
        *(q for triple in support for q in fact_questions("retain", triple, counts.phrasings)),
        *extra,
    ]
    return replace(plain, questions=tuple(questions)), evidence
