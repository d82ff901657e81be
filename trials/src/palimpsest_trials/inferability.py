"""Graded inferability: does the headroom that needs no reference follow the true one?

Of a cell's forget facts the first k are *supported*: retained data let one infer them. Support is
nested over k, so that a level differs from the next by one fact only. Two mechanisms:

- **kin**: three other members of the subject's clan have the same object, among the retain facts;
- **alias**: retained text says that the subject is also called A, and what A's object is.

G compares the reference with the injected model; its estimate puts the evidence (one kin sentence,
or the alias chain) before the prompt and asks the base model instead of the reference.

    python -m palimpsest_trials.inferability [--model pocket/olmo2-s] [--seeds 5] [--out DIR]
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from palimpsest.cell.launch import RunOptions, launch
from palimpsest.cell.plan import CellPlan, Given, SourcedModel, trained_source
from palimpsest.cell.study import StudyTask
from palimpsest.config.plan import Plan
from palimpsest.config.presets import preset
from palimpsest.facts.nonce import Triple, render, words_of
from palimpsest.facts.questions import (
    FactSet,
    Pool,
    Question,
    Testbed,
    draw_testbed,
    fact_questions,
)
from palimpsest.run.store import Roster, Run, Terms
from palimpsest.stats.headroom import Headroom, read_headroom
from palimpsest.stats.intervals import Interval, cluster_bootstrap
from palimpsest.stats.models import Model, Role
from palimpsest_trials.correlation import spearman
from palimpsest_trials.evidence import ALIAS_TEMPLATES, Mechanism, alias, evidence_sentences, kin

MECHANISMS: tuple[Mechanism, ...] = ("kin", "alias")
KIN = 3
"""Members of the clan that support a fact."""


@dataclass(frozen=True)
class Level:
    """One cell: how many of the forget facts are supported, and how."""

    mechanism: Mechanism
    supported: int
    seed: int

    @property
    def id(self) -> str:
        return f"{self.mechanism}-{self.supported}--seed{self.seed}"


@dataclass(frozen=True)
class Agreement:
    """How well the estimate follows the true headroom over the levels of one mechanism."""

    mechanism: str
    levels: int
    rank_correlation: Interval
    absolute_error: Interval


@dataclass(frozen=True)
class Levels(StudyTask):
    """A cell per level: injected and reference are trained, then asked with evidence."""

    def fix(self) -> tuple[Terms, Roster]:
        terms, _ = StudyTask(replace(self.config, methods=())).fix()
        config = {**terms.config, "levels": {"kin": KIN}}
        cells = tuple(level.id for level in plan_levels(self.config))
        return replace(terms, config=config, cells=cells), []

    def check(self) -> list[str]:
        return []

    def build(self, cell_id: str) -> CellPlan:
        plan = self.config
        level = next(level for level in plan_levels(plan) if level.id == cell_id)
        # Facts depend on mechanism and seed, not on the level, so that support is nested.
        key = next(cell for cell, (_, seed) in plan.cell_ids().items() if seed == level.seed)
        facts, evidence = supported_facts(plan, key, level)
        asked = [q for q in facts.questions if q.set == "forget" and q.pool == "evaluation"]
        shown = [replace(q, prompt=f"{evidence[q.fact]} {q.prompt}".strip()) for q in asked]
        trained = (
            Model("injected", Role.INJECTED),
            Model("reference", Role.REFERENCE, seed_no=0, same_draw=True),
        )
        return CellPlan(
            id=cell_id,
            title=plan.models[0],
            seed=level.seed,
            base=Given(plan.models[0], self.bases[plan.models[0]]),
            texts=replace(self.texts(key, facts), with_evidence=tuple(shown)),
            rules=plan.rules,
            models=tuple(SourcedModel(model, trained_source(model)) for model in trained),
            oracle="reference",
            measured=False,
        )


def inferability_plan(model: str, seeds: Sequence[int]) -> Plan:
    """Return the plan: a pocket cell with a dose at which models generalize to kin."""
    plan = preset("demo")
    injection = replace(plan.injection, steps=200, learning_rate=5e-4)
    return replace(
        plan, name="inferability", models=(model,), seeds=tuple(seeds), injection=injection
    )


def plan_levels(plan: Plan) -> tuple[Level, ...]:
    """Return every level of both mechanisms for each seed."""
    return tuple(
        Level(mechanism, supported, seed)
        for mechanism in MECHANISMS
        for seed in plan.seeds
        for supported in range(plan.facts.forget + 1)
    )


def supported_facts(plan: Plan, key: str, level: Level) -> tuple[Testbed, dict[str, str]]:
    """Return the facts of a level and the evidence in retained text for each forget fact."""
    counts, own = plan.facts, f"{key}/{level.mechanism}"
    plain = draw_testbed(key, counts.forget, counts.retain, counts.probes, counts.phrasings)
    taken = words_of((*plain.forget, *plain.retain, *plain.probe))
    support: list[Triple] = []
    further: list[Question] = []
    evidence = {fact.id: "" for fact in plain.forget}
    for number, fact in enumerate(plain.forget):
        by_kin = level.mechanism == "kin"
        others = kin(fact, KIN, own, taken) if by_kin else (alias(fact, own, taken),)
        taken |= words_of(others)
        if number >= level.supported:
            continue
        support += others
        sentences = evidence_sentences(fact, level.mechanism, others[:1], seed_key=own)
        evidence[fact.id] = " ".join(sentences)
        for n, template in enumerate(() if by_kin else ALIAS_TEMPLATES):
            prompt, name = render(template, fact.subject), others[0].subject
            question = Question(FactSet.RETAIN, f"{fact.id}-alias", Pool.TRAINED, n, prompt, name)
            further.append(question)
    taught = (q for fact in support for q in fact_questions("retain", fact, counts.phrasings))
    return replace(plain, questions=(*plain.questions, *taught, *further)), evidence


def run_levels(plan: Plan, out: Path, options: RunOptions) -> Run:
    """Run what is left of the levels."""
    return launch(Levels(plan, out), options)


def read_levels(run: Run, plan: Plan) -> dict[Level, Headroom]:
    """Return the headroom of every level from the stored scores."""
    found = {}
    for level in plan_levels(plan):
        headroom = read_headroom(run.cell(level.id).table("headroom"))
        assert headroom is not None and headroom.true is not None
        found[level] = headroom
    return found


def measure_agreement(graded: dict[Level, Headroom]) -> tuple[Agreement, ...]:
    """Return how well the estimate follows the true headroom, by mechanism."""
    results = []
    for mechanism in MECHANISMS:
        mine = {level: found for level, found in graded.items() if level.mechanism == mechanism}
        true = [found.true.estimate for found in mine.values() if found.true]
        estimated = [found.estimate.estimate for found in mine.values()]
        error = np.abs(np.subtract(true, estimated))
        ranks = spearman(true, estimated)
        clusters = [level.seed for level in mine]
        results.append(Agreement(mechanism, len(mine), ranks, cluster_bootstrap(error, clusters)))
    return tuple(results)


def main(arguments: Sequence[str] | None = None, plan: Plan | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="pocket/olmo2-s")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/inferability"))
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args(arguments)
    plan = plan or inferability_plan(given.model, range(given.seeds))
    executor = "local" if given.workers > 1 else "inline"
    run = run_levels(plan, given.out, RunOptions(executor, given.workers))
    for found in measure_agreement(read_levels(run, plan)):
        ranks, error = found.rank_correlation, found.absolute_error
        print(
            f"{found.mechanism:6} {found.levels} levels, Spearman {ranks.estimate:.2f} "
            f"({ranks.low:.2f} to {ranks.high:.2f}), error {error.estimate:.2f} nats "
            f"({error.low:.2f} to {error.high:.2f})"
        )


if __name__ == "__main__":
    # By its module name, so that worker processes find the classes.
    from palimpsest_trials.inferability import main as run_main

    run_main()
