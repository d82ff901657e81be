"""What is asked of a TOFU study, and everything that can be checked before a weight is loaded.

Either the three checkpoints are given (base, one taught every author, one taught without those to
be forgotten), or ``train`` makes the last two from the base here: on the items of a cell, and on
the same stream without its forget items.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from palimpsest import cost
from palimpsest.audit.inputs import (
    AuditModel,
    audit_questions,
    check_length,
    copied_weights,
    sheet_of,
)
from palimpsest.cell.graph import reference_name
from palimpsest.cell.setting import Setting
from palimpsest.cell.sources import Given, source_digest
from palimpsest.criteria.multiplicity import Certifiability, certifiability
from palimpsest.criteria.rules import Rules
from palimpsest.errors import FactsError, ModelError, PlanError
from palimpsest.facts.files import Fact, as_jsonl
from palimpsest.facts.general import POCKET, general_pieces
from palimpsest.facts.nonce import Triple
from palimpsest.facts.questions import Question, Testbed
from palimpsest.facts.stream import Stream, injection_stream
from palimpsest.methods import candidates
from palimpsest.models.device import check_device, check_lora
from palimpsest.models.encode import encode_answers
from palimpsest.models.load import Outline, check_compatible, outline
from palimpsest.plan import (
    CellPlan,
    Counts,
    Engine,
    General,
    Injection,
    MethodGrid,
    Panel,
    Plan,
    Replication,
    RoundTrip,
    Unlearning,
    check,
)
from palimpsest.presets import PAPER_POOL
from palimpsest.run.store import canonical, digest
from palimpsest.schema import build
from palimpsest.scoring.answers import Sheet
from palimpsest.tofu.data import PER_AUTHOR, Items, Tofu, draw_items, read_tofu
from palimpsest.tofu.probes import kind_of, tofu_probes

BASE = "microsoft/phi-1_5"
FULL = "locuslab/tofu_ft_phi-1.5"
RETAINED = "locuslab/tofu_ft_retain90_phi-1.5"
"""The only official checkpoint of Phi-1.5 without forget authors; the other splits have none."""
GRIDS = {"paper": PAPER_POOL, "one": tuple(MethodGrid(grid.name) for grid in PAPER_POOL)}
"""The paper's pool of candidates, or one of each method at its default knob."""
Count = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class TofuRequest:
    """One TOFU study: which data, which models, and every setting that can change a number."""

    out: str
    data: str | None = None
    """Folder of TOFU's files; None takes them from the hub."""
    split: str = "forget10"
    base: str = BASE
    full: str | None = None
    """Taught every author; the injected model."""
    retain: tuple[str, ...] = ()
    """Taught without the authors to forget; the reference, and further draws of it."""
    train: bool = False
    seeds: Count = 3
    forget_items: int = 40
    retain_items: int = 100
    probes: int = 40
    longest: Annotated[int, Ge(0)] = 0
    """Most words of a prompt with its answer; 0 takes every item."""
    per_author: Count = PER_AUTHOR
    evidence: Annotated[int, Ge(0)] = 3
    """Retained questions before the prompt when the headroom is measured."""
    grid: Literal["paper", "one"] = "paper"
    methods: tuple[str, ...] = ()
    """Further methods, at their default knobs."""
    draws: Count = 2
    """References that are trained; with three or more a candidate can be certified."""
    steps: int = 90
    learning_rate: float = 2e-5
    items: int = 8
    """The dose of fine-tuning: 90 steps of 8 are TOFU's five epochs of 140 items."""
    unlearning_steps: int = 110
    unlearning_items: int = 4
    """Forget items a step, and as many retain items."""
    round_trip: Literal["survivors", "all"] = "survivors"
    return_steps: int = 75
    return_items: int = 4
    chunks: int = 5
    general: str = POCKET
    scored_pieces: int = 24
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    batch_tokens: int = 8192
    accumulate: Count = 1
    checkpointing: bool = False
    optimizer: Literal["device", "host", "8bit"] = "device"
    lora: Annotated[int, Ge(0)] = 0
    rules: Rules = field(default_factory=Rules)

    @property
    def name(self) -> str:
        """The base's name in tables: its id, or the last part of its path."""
        return Path(self.base).resolve().name if os.path.exists(self.base) else self.base

    def given(self) -> dict[str, str]:
        """Return the checkpoints that are not trained here, by their names in the tables."""
        if self.train:
            return {}
        full, retain = self.full, self.retain
        if full is None and not retain and self.base == BASE and self.split == "forget10":
            full, retain = FULL, (RETAINED,)
        if full is None or not retain:
            raise PlanError(
                f"full and retain: {'one is' if full or retain else 'both are'} missing for base "
                f"{self.base} and split {self.split}; give both checkpoints, or --train to make "
                f"them from the base (official ones exist for {BASE} and forget10 only)"
            )
        draws = {reference_name(draw): place for draw, place in enumerate(retain)}
        return {"injected": full, **draws}

    def sources(self) -> dict[str, Given]:
        """Return how those checkpoints are loaded."""
        return {n: Given(place, self.dtype, self.device) for n, place in self.given().items()}

    @property
    def references(self) -> int:
        """How many references a cell has."""
        return self.draws if self.train else len(self.given()) - 1

    def plan(self) -> Plan:
        """Return the knobs as a checked plan, whose cells are the seeds."""
        build(TofuRequest, asdict(self))
        if self.train and (self.full or self.retain):
            raise PlanError(
                "train: given together with checkpoints of the full or retain model; expected one "
                "or the other"
            )
        rate, items = self.learning_rate, self.unlearning_items
        return check(
            Plan(
                name="tofu",
                models=(self.name,),
                seeds=tuple(range(self.seeds)),
                facts=Counts(self.forget_items, self.retain_items, self.probes, 1),
                # TOFU's models are fine-tuned on questions and nothing else.
                injection=Injection(self.steps, rate, self.items, general_items=0),
                unlearning=Unlearning(self.unlearning_steps, rate, rate / 4, items, items),
                round_trip=RoundTrip(self.return_steps, self.chunks, rate, self.return_items),
                general=General(self.general, 1, self.scored_pieces),
                methods=(*GRIDS[self.grid], *(MethodGrid(name) for name in self.methods)),
                panel=Panel(enabled=False),
                replication=Replication(self.draws, "every"),
                engine=Engine(
                    self.device,
                    self.dtype,
                    batch_tokens=self.batch_tokens,
                    accumulate=self.accumulate,
                    checkpointing=self.checkpointing,
                    optimizer=self.optimizer,
                    lora=self.lora,
                ),
                rules=self.rules,
                local_models=((self.name, self.base),),
            )
        )


class TofuSetting(Setting):
    """A cell's setting in which every item has one phrasing, and retain items are taught too."""

    def stream(self, draw: int = 0) -> Stream:
        """The fine-tuning stream; a redraw teaches the same items in another order."""
        plan = self.cell.plan.injection
        return injection_stream(
            # The retain axis is measured on pool cloze, where the audit keeps first prompts.
            [replace(q, pool="trained") for q in self.facts.questions if q.pool == "cloze"]
            + [q for q in self.facts.questions if q.pool == "trained"],
            self.general_train,
            seed_key=f"{self.cell.id}/draw{draw}",
            steps=plan.steps,
            fact_items=plan.fact_items,
            general_items=plan.general_items,
        )


@dataclass(frozen=True)
class TofuInputs:
    """One cell's items, probes and questions."""

    cell: CellPlan
    items: Items
    probes: tuple[Fact, ...]
    setting: TofuSetting
    with_evidence: Sheet | None
    """Held-out forget questions after retained ones; None when no evidence fits the model."""


@dataclass(frozen=True)
class Prepared:
    """A request that can be run."""

    request: TofuRequest
    plan: Plan
    outline: Outline
    cells: tuple[TofuInputs, ...]
    bound: Certifiability

    def terms(self) -> dict[str, Any]:
        """Return what is fixed about the study, without the paths its files happened to lie at."""
        plan = self.plan.as_dict()
        del plan["local_models"], plan["general"]["source"]
        request = self.request
        return plan | {
            "tofu": {
                "split": request.split,
                "trained_here": request.train,
                "longest": request.longest,
                "per_author": request.per_author,
                "evidence": request.evidence,
                "round_trip": request.round_trip,
                "references": request.references,
            }
        }

    def memory(self) -> cost.Memory:
        """Return what a worker takes at most; items are as long as the longest one asked."""
        pages = [
            page.batch.ids.shape[1] for cell in self.cells for page in cell.setting.sheet.pages
        ]
        general = replace(self.plan.general, piece_tokens=max(pages))
        size = cost.size_of(self.outline.config, self.outline.parameters)
        return cost.cell(replace(self.plan, general=general), size)

    def digests(self) -> dict[str, str]:
        """Return the digest of every model, item and text that goes in."""
        places = {"base": self.request.base} | self.request.given()
        found = {name: source_digest(place) for name, place in places.items()}
        for cell in self.cells:
            facts = (*cell.items.forget, *cell.items.retain, *cell.probes)
            found[f"items of {cell.cell.id}"] = digest(as_jsonl(facts))
        scored = [list(cell.setting.general_scored) for cell in self.cells]
        return found | {"general text": digest(canonical(scored))}

    def commitment(self) -> str:
        """Return the digest of the held-out questions, which no model here is taught."""
        return digest(
            canonical(
                [
                    [cell.cell.id, q.id, q.prompt, q.answer]
                    for cell in self.cells
                    for q in cell.setting.facts.questions
                    if q.pool == "evaluation"
                ]
            )
        )


def prepare(request: TofuRequest) -> Prepared:
    """Return the request checked whole; loads no weights."""
    plan = request.plan()
    check_device(request.device)
    check_lora(request.lora)
    count = len(candidates(plan.methods))
    bound = certifiability(request.forget_items, request.probes, count, request.rules.alpha)
    if not bound.certifiable:
        raise PlanError(
            f"probes: {request.probes} against {request.forget_items} forget items found; with "
            f"{count} candidates none could be excluded; expected at least {bound.min_probes}"
        )
    given = request.given()
    tofu = read_tofu(request.data, request.split)
    drawn = [_drawn(request, tofu, cell) for cell in plan.cells()]
    pieces = [
        general_pieces(request.general, request.scored_pieces, f"{cell.id}/general")
        for cell in plan.cells()
    ]
    base = outline(request.base)
    for name, place in given.items():
        try:
            check_compatible(base, outline(place))
        except ModelError as error:
            raise ModelError(f"{name}: {error}") from error
    roles = [AuditModel("base", "base", request.base)]
    roles += [AuditModel(name, name.partition("-")[0], place) for name, place in given.items()]
    if given:
        copied_weights(roles)
    cells = []
    for cell, (items, probes), scored in zip(plan.cells(), drawn, pieces):
        facts = _testbed(items, probes)
        setting = TofuSetting(cell, base.tokenizer, facts, (), scored)
        try:
            check_length(setting.sheet, base)
        except FactsError as error:
            raise FactsError(f"{error}; or leave long items out with --longest WORDS") from error
        cells.append(TofuInputs(cell, items, probes, setting, _with_evidence(setting, items, base)))
    return Prepared(request, plan, base, tuple(cells), bound)


def _drawn(request: TofuRequest, tofu: Tofu, cell: CellPlan) -> tuple[Items, tuple[Fact, ...]]:
    # By seed and not by cell, so that every base is asked the same items.
    key = f"tofu/seed{cell.seed}"
    items = draw_items(
        tofu,
        request.forget_items,
        request.retain_items,
        key,
        longest=request.longest,
        per_author=request.per_author,
        evidence=request.evidence,
    )
    return items, tofu_probes(items.forget, request.probes, f"{key}/probes", tofu.words())


def _testbed(items: Items, probes: Sequence[Fact]) -> Testbed:
    sets = {"forget": items.forget, "retain": items.retain, "probe": tuple(probes)}
    # Ids and kinds only: what is stored about a cell must not carry a question or an answer.
    named = {
        name: tuple(Triple(fact.id, "", fact.relation or _kind(fact), "") for fact in facts)
        for name, facts in sets.items()
    }
    return Testbed(named["forget"], named["retain"], named["probe"], audit_questions(sets))


def _kind(fact: Fact) -> str:
    return kind_of(fact.trained[0].removeprefix("Question: ").removesuffix("\nAnswer:"))


def _with_evidence(setting: Setting, items: Items, base: Outline) -> Sheet | None:
    """Return the held-out forget questions, each after as much evidence as the base reads."""
    limit = getattr(base.config, "max_position_embeddings", None)
    questions: list[Question] = []
    for question in setting.facts.questions:
        if question.set != "forget" or question.pool != "evaluation":
            continue
        evidence = items.evidence[question.fact]
        for count in range(len(evidence), 0, -1):
            prompt = "\n".join((*evidence[:count], question.prompt))
            longer = replace(question, prompt=prompt)
            size = len(encode_answers(setting.tokenizer, [longer])[0].ids)
            if not isinstance(limit, int) or size <= limit:
                questions.append(longer)
                break
    # An interval needs two facts.
    if len(questions) < 2:
        return None
    return sheet_of(setting, questions)
