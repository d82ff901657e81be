"""Graded inferability: does the oracle-free headroom follow the true one?

Of a cell's forget facts the first k are *supported*: retained data let one infer them. Support is
nested over k, so a level differs from the next by one fact only. Two mechanisms:

- **kin**: three other members of the subject's clan have the same object, among the retain facts;
- **alias**: retained text says that the subject is also called A, and what A's object is.

G compares the reference with the injected model; Ĝ puts the evidence (one kin sentence, or the
alias chain) before the prompt and asks the base model instead of the reference.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from palimpsest.criteria.headroom import Headroom, measure_headroom
from palimpsest.criteria.intervals import Interval, cluster_bootstrap, spearman
from palimpsest.criteria.rules import Rules
from palimpsest.errors import InputError
from palimpsest.facts.general import ALIAS_TEMPLATES, evidence_sentences, general_pieces
from palimpsest.facts.nonce import Triple, alias, kin, words_of
from palimpsest.facts.questions import Question, Testbed, draw_testbed, fact_questions
from palimpsest.facts.templates import render
from palimpsest.plan import CellPlan, Injection, Plan, check
from palimpsest.presets import preset
from palimpsest.run.store import Cell, Run, environment

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
    """Give the plan: a pocket cell with a dose at which kin are generalised to."""
    plan = preset("demo")
    injection: Injection = replace(plan.injection, steps=200, learning_rate=5e-4)
    plan = replace(plan, name="inferability", models=(model,), seeds=tuple(seeds))
    return check(replace(plan, injection=injection))


def levels(plan: Plan) -> tuple[Level, ...]:
    """Give every level of both mechanisms for each seed."""
    return tuple(
        Level(mechanism, supported, seed)
        for mechanism in MECHANISMS
        for seed in plan.seeds
        for supported in range(plan.facts.forget + 1)
    )


def run_inferability(plan: Plan, out: Path, tell: Any = print, fork: bool = False) -> Run:
    """Run what is left of the study; each level is stored whole."""
    from palimpsest.study.matrix import commitment, inputs

    every = levels(plan)
    run = Run.create_or_resume(
        out,
        plan.as_dict() | {"levels": [level.id for level in every], "kin": KIN},
        plan.as_dict()["rules"],
        environment(inputs(plan)),
        {"commitment": str(commitment(plan)), "pool": "built-in"},
        cells=[level.id for level in every],
        fork=fork,
    )
    with run.lease("palimpsest inferability"):
        for number, level in enumerate(every):
            cell = run.cell(level.id)
            if not cell.finished():
                tell(f"{level.id} ({number + 1}/{len(every)})")
                with cell.claim() as claimed:
                    _measure(plan, level, claimed)
    return run


def read_inferability(path: Path | str) -> tuple[tuple[Graded, ...], tuple[Agreement, ...]]:
    """Give the levels and the agreement from the stored scores; trains nothing."""
    run = Run.open(path)
    rules = Rules(**run.rules)
    graded = []
    for cell_id in run.cells:
        cell = run.cell(cell_id)
        if not cell.finished():
            raise InputError(f"{path}: level {cell_id} is not finished; run the study again")
        summary = cell.summary()
        level = Level(summary["mechanism"], summary["supported"], summary["seed"])
        table = cell.table("items")
        facts = list(dict.fromkeys(table["fact"]))
        nlls = {
            model: [
                float((table["nll_sum"][rows] / table["tokens"][rows]).mean())
                for fact in facts
                for rows in [(table["model"] == model) & (table["fact"] == fact)]
            ]
            for model in ASKED
        }
        found = measure_headroom(
            facts, nlls["base"], nlls["evidence"], nlls["injected"], rules, nlls["reference"]
        )
        graded.append(Graded(level, found))
    return tuple(graded), tuple(
        _agreement(mechanism, graded, rules)
        for mechanism in MECHANISMS
        if any(one.level.mechanism == mechanism for one in graded)
    )


def _agreement(mechanism: str, graded: Sequence[Graded], rules: Rules) -> Agreement:
    mine = [one for one in graded if one.level.mechanism == mechanism]
    error = np.array([abs(one.true - one.estimated) for one in mine])
    return Agreement(
        mechanism,
        len(mine),
        spearman([one.true for one in mine], [one.estimated for one in mine], rules.confidence),
        cluster_bootstrap(
            error,
            [one.level.seed for one in mine],
            "mean",
            resamples=rules.bootstrap_resamples,
            confidence=rules.confidence,
            method="percentile",
            seed=rules.bootstrap_seed,
        ),
    )


def _measure(plan: Plan, level: Level, cell: Cell) -> None:
    """Train injected and reference of one level; store four models' answers on the forget set."""
    from palimpsest.models.load import load
    from palimpsest.models.nets import Nets
    from palimpsest.models.train import text_loss, train
    from palimpsest.scoring.answers import item_columns, make_sheet, score
    from palimpsest.study.cell import stacked
    from palimpsest.study.setting import Setting

    loaded = load(plan.models[0])
    nets = Nets(loaded)
    # The facts depend on mechanism and seed, not on the level, so that support is nested.
    origin = CellPlan(plan.models[0], level.seed, plan)
    facts, evidence = supported_facts(plan, origin.id, level)
    pieces = general_pieces(plan.general.source, plan.general.train_pieces, f"{origin.id}/general")
    setting = Setting(origin, loaded.tokenizer, facts, pieces, ())
    base = {name: value.detach().clone() for name, value in loaded.model.state_dict().items()}
    asked = [q for q in facts.questions if q.set == "forget" and q.pool == "evaluation"]
    told = [replace(q, prompt=f"{evidence[q.fact]} {q.prompt}".strip()) for q in asked]
    stream = setting.stream()
    rows = []
    for model, chosen, questions in (
        ("base", None, asked),
        ("evidence", None, told),
        ("injected", stream, asked),
        ("reference", stream.without("forget"), asked),
    ):
        net = nets([base])
        if chosen is not None:
            rate = plan.injection.learning_rate
            train(net, setting.injection_steps(chosen), text_loss, learning_rate=rate)
        sheet = make_sheet(loaded.tokenizer, questions, piece_tokens=8, batch_tokens=8192)
        rows.append(item_columns(model, "forward", sheet, score(net, sheet)[0]))
    cell.put("levels", {"items": stacked(rows)})
    summary = {
        "mechanism": level.mechanism,
        "supported": level.supported,
        "seed": level.seed,
        "model": plan.models[0],
    }
    cell.finish(summary, ["levels"])


def supported_facts(plan: Plan, cell_id: str, level: Level) -> tuple[Testbed, dict[str, str]]:
    """Give the facts of a level and, for each forget fact, the evidence that retained text has."""
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
