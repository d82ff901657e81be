"""What is asked of a TOFU study, and everything that can be checked before a weight is loaded.

Either the three checkpoints are given (base, one taught every author, one taught without those to
be forgotten), or ``train`` makes the last two from the base here: on the items of a cell, and on
the same stream without its forget items.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt

from palimpsest.audit.inputs import (
    AuditModel,
    CellInputs,
    Checked,
    check_length,
    checked_outline,
    copied_weights,
    sheet_of,
)
from palimpsest.audit.request import check_chunks
from palimpsest.cell.graph import reference_name
from palimpsest.cell.setting import Setting
from palimpsest.cell.sources import Given
from palimpsest.criteria.multiplicity import certifiability
from palimpsest.criteria.rules import Rules
from palimpsest.errors import FactsError, PlanError
from palimpsest.facts.files import Fact
from palimpsest.facts.general import POCKET, general_pieces
from palimpsest.facts.nonce import Triple
from palimpsest.facts.questions import Question, Testbed, audit_questions
from palimpsest.facts.stream import Stream, injection_stream
from palimpsest.methods import candidates
from palimpsest.models.device import check_lora
from palimpsest.models.encode import encode_answers
from palimpsest.models.load import Outline
from palimpsest.plan import (
    CellPlan,
    Computing,
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
from palimpsest.schema import build
from palimpsest.scoring.answers import Sheet
from palimpsest.tofu.data import PER_AUTHOR, Items, Tofu, draw_items, read_tofu
from palimpsest.tofu.probes import kind_of, tofu_probes

BASE = "microsoft/phi-1_5"
FULL = "locuslab/tofu_ft_phi-1.5"
RETAINED = "locuslab/tofu_ft_retain90_phi-1.5"
"""The only official checkpoint of Phi-1.5 without forget authors; the other splits have none."""
GRIDS = {"paper": PAPER_POOL, "one": tuple(MethodGrid(grid.name) for grid in PAPER_POOL)}
"""The paper's candidates, or one of each method with its default knobs."""
Count = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class TofuRequest(Computing):
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
    forget_items: Count = 40
    retain_items: Count = 100
    probes: Count = 40
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
    steps: Count = 90
    learning_rate: Annotated[float, Gt(0)] = 2e-5
    items: Count = 8
    """The dose of fine-tuning: 90 steps of 8 are TOFU's five epochs of 140 items."""
    unlearning_steps: Count = 110
    unlearning_items: Count = 4
    """Forget items a step, and as many retain items."""
    round_trip: Literal["survivors", "all"] = "survivors"
    return_steps: Count = 75
    return_items: Count = 4
    chunks: Count = 5
    general: str = POCKET
    scored_pieces: Count = 24
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
        check_chunks(self.chunks, self.return_steps, "return_steps")
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
                engine=Engine.of(self),
                rules=self.rules.without("reversed"),  # questions of TOFU name no relation
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


@dataclass(frozen=True, kw_only=True)
class Prepared(Checked):
    """A TOFU study that can be run; its cells are its seeds."""

    request: TofuRequest

    def terms(self) -> dict[str, Any]:
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


def prepare(request: TofuRequest) -> Prepared:
    """Return the request checked whole; loads no weights."""
    plan = request.plan()
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
    models = [AuditModel("base", "base", request.base)]
    models += [AuditModel(name, name.partition("-")[0], place) for name, place in given.items()]
    base = checked_outline(models)
    if given:
        copied_weights(models)
    cells = []
    for cell, (items, probes), scored in zip(plan.cells(), drawn, pieces):
        sets = {"forget": items.forget, "retain": items.retain, "probe": probes}
        setting = TofuSetting(cell, base.tokenizer, _testbed(sets), (), scored)
        try:
            check_length(setting.sheet, base)
        except FactsError as error:
            raise FactsError(f"{error}; or leave long items out with --longest WORDS") from error
        with_evidence = _with_evidence(setting, items.evidence, base)
        cells.append(CellInputs(cell.id, sets, setting, with_evidence))
    return Prepared(
        plan=plan,
        models=tuple(models),
        outline=base,
        cells=tuple(cells),
        bound=bound,
        request=request,
    )


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


def _testbed(sets: Mapping[str, tuple[Fact, ...]]) -> Testbed:
    # Ids and kinds only: what is stored about a cell must not carry a question or an answer.
    named = {
        name: tuple(Triple(fact.id, "", fact.relation or _kind(fact), "") for fact in facts)
        for name, facts in sets.items()
    }
    return Testbed(named["forget"], named["retain"], named["probe"], audit_questions(sets))


def _kind(fact: Fact) -> str:
    return kind_of(fact.trained[0].removeprefix("Question: ").removesuffix("\nAnswer:"))


def _with_evidence(
    setting: Setting, evidence: Mapping[str, tuple[str, ...]], base: Outline
) -> Sheet | None:
    """Return the held-out forget questions, each after as much evidence as the base reads."""
    limit = getattr(base.config, "max_position_embeddings", None)
    questions: list[Question] = []
    for question in setting.facts.questions:
        if question.set != "forget" or question.pool != "evaluation":
            continue
        shown = evidence[question.fact]
        for count in range(len(shown), 0, -1):
            prompt = "\n".join((*shown[:count], question.prompt))
            longer = replace(question, prompt=prompt)
            size = len(encode_answers(setting.tokenizer, [longer])[0].ids)
            if not isinstance(limit, int) or size <= limit:
                questions.append(longer)
                break
    # An interval needs two facts.
    if len(questions) < 2:
        return None
    return sheet_of(setting, questions)
