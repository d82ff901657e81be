"""Everything an audit can check before it loads a weight: facts, text, models on paper, the bound.

A refusal here costs nothing and leaves nothing behind. What passes is fixed: the questions, their
tokens and batches, and which models will be asked.
"""

import filecmp
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from palimpsest.audit.probes import ASSUMES, generated_probes
from palimpsest.audit.request import LADDER, AuditRequest
from palimpsest.cell.setting import Setting, used
from palimpsest.cell.sources import Given, source_digest, source_digests
from palimpsest.criteria.beacon import Draw
from palimpsest.criteria.multiplicity import Certifiability, certifiability
from palimpsest.errors import FactsError, ModelError
from palimpsest.facts.elicitation import file_elicitations, reversible
from palimpsest.facts.files import Fact, as_jsonl, check_sets, set_problems
from palimpsest.facts.general import general_pieces
from palimpsest.facts.questions import Question, Testbed, audit_questions
from palimpsest.models.adapter import WEIGHTS as ADAPTER_WEIGHTS
from palimpsest.models.encode import chat_prompt, start_remark
from palimpsest.models.inspect_folder import read_weights
from palimpsest.models.load import Loaded, Outline, check_compatible, outline, resolve, rounded
from palimpsest.models.net import WholeNet
from palimpsest.plan import CellPlan, Plan
from palimpsest.run.store import Run, canonical, digest, environment
from palimpsest.scoring.answers import Sheet, make_sheet

CELL = "audit"
"""The one cell of an audit's run; every random choice is derived from this name."""


@dataclass(frozen=True, slots=True)
class AuditModel:
    """One model of an audit: its name in the tables, its role, and where it is."""

    name: str
    role: str
    place: str


@dataclass(frozen=True)
class CellInputs:
    """What the models of one cell are asked."""

    id: str
    sets: Mapping[str, tuple[Fact, ...]]
    """The facts: forget, retain and probe."""
    setting: Setting
    with_evidence: Sheet | None
    """The forget facts' held-out questions after their evidence, for the headroom."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Models and facts that were checked on paper: of an audit, or of a TOFU study."""

    plan: Plan
    models: tuple[AuditModel, ...]
    """Base, injected, references and candidates, in this order; those that are trained here not."""
    outline: Outline
    """Of the base; all models share its tokenizer and shape."""
    cells: tuple[CellInputs, ...]
    bound: Certifiability
    known: Mapping[str, str] = field(default_factory=dict)
    """Digests of models that were read already, by place."""

    def terms(self) -> dict[str, Any]:
        """Return what is fixed about the work, without the paths of its files."""
        raise NotImplementedError

    def digests(self) -> dict[str, str]:
        """Return the digest of every model, fact and text that goes in; reads checkpoints whole."""
        known = self.known
        digests = {m.name: known.get(m.place) or source_digest(m.place) for m in self.models}
        for cell in self.cells:
            which = f" of {cell.id}" if len(self.cells) > 1 else ""
            for name, facts in cell.sets.items():
                digests[f"{name} facts{which}"] = digest(as_jsonl(facts))
        scored = [list(cell.setting.general_scored) for cell in self.cells]
        return digests | {"general text": digest(canonical(scored))}

    def commitment(self) -> str:
        """Return the digest of the held-out questions, which no candidate may have been shown."""
        heldout = [
            [cell.id, q.id, q.prompt, q.answer]
            for cell in self.cells
            for q in cell.setting.facts.questions
            if q.pool == "evaluation"
        ]
        return digest(canonical(heldout))

    def run(self, out: Path, *, fork: bool) -> Run:
        """Return the run folder, created or resumed."""
        return Run.create_or_resume(
            out,
            self.terms(),
            self.plan.as_dict()["rules"],
            environment(self.digests()),
            {"commitment": self.commitment(), "pool": "held-out questions"},
            cells=[cell.id for cell in self.cells],
            fork=fork,
        )


ONE_WAY = (
    "not every forget fact has a subject and a relation, so none is asked from the answer to the "
    "subject; add both keys to the forget facts to compare the axis reversed too"
)


@dataclass(frozen=True, kw_only=True)
class Inputs(Checked):
    """An audit that can be run; it has one cell."""

    request: AuditRequest
    repeated: tuple[str, ...]
    """Which candidates have the weights of base or injected, a sentence each."""
    remarks: tuple[str, ...]
    """What is allowed but weakens the measurement; the sentences above are among them."""

    @property
    def sets(self) -> Mapping[str, tuple[Fact, ...]]:
        return self.cells[0].sets

    @property
    def setting(self) -> Setting:
        return self.cells[0].setting

    @property
    def with_evidence(self) -> Sheet | None:
        return self.cells[0].with_evidence

    @property
    def generated(self) -> bool:
        """Whether the probes were generated here and not given."""
        return self.request.probes is None

    def of(self, role: str) -> tuple[AuditModel, ...]:
        """Return the models of a role."""
        return tuple(model for model in self.models if model.role == role)

    def given(self, model: AuditModel) -> Given:
        """Return how a model is loaded."""
        request = self.request
        return Given(
            model.place,
            request.dtype,
            request.device,
            request.adapter_base,
            request.checkpointing,
            request.optimizer,
            request.lora,
        )

    def net(self, model: AuditModel) -> AbstractContextManager[tuple[Loaded, WholeNet]]:
        """Provide a model ready to score and train; it is dropped when the block ends."""
        return self.given(model).net(self.outline)

    def terms(self) -> dict[str, Any]:
        request, plan = self.request, self.plan.as_dict()
        if request.chooses_rate:
            plan["round_trip"]["learning_rate"] = None
        return {
            "name": CELL,
            "methods": [],
            # A list: ties between candidates go by their order.
            "models": [[model.name, model.role] for model in self.models],
            "facts": {name: len(facts) for name, facts in self.sets.items()},
            "generated_probes": len(self.sets["probe"]) if self.generated else 0,
            "reacquired": request.round_trip,
            "round_trip": plan["round_trip"],
            "learning_rates": list(LADDER) if request.chooses_rate else [],
            "general": {key: value for key, value in plan["general"].items() if key != "source"},
            "engine": plan["engine"] | ({"chat": True} if request.chat else {}),
            "rules": plan["rules"],
        } | ({} if self.setting.drawn is None else {"beacon": self.setting.drawn.record()})

    def digests(self) -> dict[str, str]:
        digests = super().digests()
        if self.request.adapter_base is not None:
            digests["adapter base"] = source_digest(self.request.adapter_base)
        return digests


def prepare(request: AuditRequest) -> Inputs:
    """Return the request checked whole; loads no weights."""
    drawn = None
    if request.beacon:
        handed_in = {name: source_digest(place) for name, place in request.candidates}
        drawn = Draw(request.beacon, handed_in)
    sets, remarks = _facts(request, drawn)
    if "reversed" in request.rules.axes and not reversible(sets["forget"]):
        request = replace(request, rules=request.rules.without("reversed"))
        remarks = (*remarks, ONE_WAY)
    plan = request.plan()
    general = plan.general
    pieces = general_pieces(general.source, general.scored_pieces, f"{CELL}/general")
    models = _models(request, request.references)
    base = checked_outline(models, request.adapter_base)
    questions = used(audit_questions(sets), drawn)
    facts = Testbed((), (), (), _asked(request, base, questions))
    otherwise = _asked(request, base, file_elicitations(sets))
    cell = CellPlan(CELL, 0, plan)
    setting = Setting(cell, base.tokenizer, facts, (), pieces, drawn, otherwise)
    with_evidence = _with_evidence(request, sets, base, setting)
    for sheet in (setting.sheet, with_evidence):
        if sheet is not None:
            check_length(sheet, base)
    bound = certifiability(
        len(sets["forget"]), len(sets["probe"]), len(request.candidates), request.rules.alpha
    )
    repeated = copied_weights(models)
    digests: dict[str, str] = {}
    if bound.certifiable:
        # By their weights, so that an audit depends neither on the order its references are given
        # in nor on what else lies in their folders.
        both = {place: source_digests(place) for place in request.references}
        digests = {place: whole for place, (whole, _) in both.items()}
        models = _models(request, sorted(both, key=lambda place: both[place][1]))
    return Inputs(
        plan=plan,
        models=models,
        outline=base,
        cells=(CellInputs(CELL, sets, setting, with_evidence),),
        bound=bound,
        known=digests,
        request=request,
        repeated=repeated,
        remarks=(*repeated, *remarks, *_precision(request, models, base)),
    )


def _asked(
    request: AuditRequest, base: Outline, questions: Sequence[Question]
) -> tuple[Question, ...]:
    """Return the questions as they are asked: plain, or as turns of the base's chat template."""
    if not request.chat:
        return tuple(questions)
    return tuple(replace(q, prompt=chat_prompt(base.tokenizer, q.prompt)) for q in questions)


def _precision(request: AuditRequest, models: Sequence[AuditModel], base: Outline) -> Iterator[str]:
    """Yield what loading and tokenising change without an error."""
    changes: dict[str, list[str]] = {}
    for model in models:
        if change := rounded(model.place, request.dtype):
            changes.setdefault(change, []).append(model.name)
    for change, names in changes.items():
        yield f"{', '.join(names)}: {change}; use float32 to compare exact weights"
    if request.lora:
        yield (
            f"every model is re-acquired by LoRA adapters of rank {request.lora}: compare "
            "residual, early and late only with audits of the same rank"
        )
    if remark := start_remark(base.tokenizer, base.config.model_type):
        yield remark


def _facts(
    request: AuditRequest, drawn: Draw | None
) -> tuple[dict[str, tuple[Fact, ...]], tuple[str, ...]]:
    files = {"forget": request.forget, "retain": request.retain}
    if request.probes is not None:
        files["probe"] = request.probes
    sets = check_sets(files)
    remarks = tuple(str(problem) for problem in set_problems(files) if not problem.fatal)
    if request.probes is not None:
        return sets, remarks
    if not request.generate_probes:
        count, alpha = len(request.candidates), request.rules.alpha
        least = certifiability(len(sets["forget"]), 1, count, alpha).min_probes
        raise FactsError(
            "probes: none given; expected never-learned facts to compare the forget facts with; "
            f"give a file with --probes, or generate some with --generate-probes {max(16, least)} "
            f"(in a file: probes, generate_probes); this design needs at least "
            f"{least}. {ASSUMES}"
        )
    key = "audit/probes" if drawn is None else drawn.key("probes")
    sets["probe"] = generated_probes(sets["forget"], request.generate_probes, sets["retain"], key)
    return sets, (*remarks, ASSUMES)


def _models(request: AuditRequest, references: Sequence[str]) -> tuple[AuditModel, ...]:
    return (
        AuditModel("base", "base", request.base),
        AuditModel("injected", "injected", request.injected),
        *(
            AuditModel(f"reference-{draw}" if draw else "reference", "reference", place)
            for draw, place in enumerate(references)
        ),
        *(AuditModel(name, "candidate", place) for name, place in request.candidates),
    )


def checked_outline(models: Sequence[AuditModel], adapter_base: str | None = None) -> Outline:
    """Return the base on paper, after every other model was compared with it on paper."""
    for model in models:
        with _naming(model):
            _check_weights(model)
    base = outline(models[0].place, base=adapter_base)
    for model in models[1:]:
        with _naming(model):
            check_compatible(base, outline(model.place, base=adapter_base))
    return base


@contextmanager
def _naming(model: AuditModel) -> Iterator[None]:
    """Let errors say which model they are about."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{_called(model)}: {error}") from error


def _called(model: AuditModel) -> str:
    """Return what messages call a model, without its place."""
    return model.name if model.role != "candidate" else f"candidate {model.name}"


def _check_weights(model: AuditModel) -> None:
    """Read the headers of a checkpoint on this disk: a missing or pickled one is refused now."""
    source = resolve(model.place)
    if source.path is not None and source.kind in ("folder", "pocket"):
        read_weights(source.path)
    elif source.path is not None and source.kind == "adapter":
        read_weights(source.path, ADAPTER_WEIGHTS)


def copied_weights(models: Sequence[AuditModel]) -> tuple[str, ...]:
    """Refuse a reference that is another model's copy; return a sentence per other copy."""
    base, injected, *others = models
    references = [model for model in others if model.role == "reference"]
    candidates = [model for model in others if model.role == "candidate"]
    for number, reference in enumerate(references):
        for other in (injected, base, *references[:number], *candidates):
            if _same_weights(reference, other):
                raise ModelError(
                    f"references: {reference.place} has the weights of {_called(other)} "
                    f"({other.place}), byte for byte; expected an independent retraining without "
                    "the forget set; leave it out, or give another"
                )
    sentences = []
    for model in candidates:
        known = next((known for known in (injected, base) if _same_weights(model, known)), None)
        if known is not None:
            sentences.append(
                f"candidate {model.name} has the weights of {known.name}, byte for byte; expected "
                "a model that unlearned something, unless it is included for comparison"
            )
    return tuple(sentences)


def _same_weights(model: AuditModel, other: AuditModel) -> bool:
    """Return whether two models have the same weight files; reads up to the first difference."""
    mine, theirs = _weight_files(model), _weight_files(other)
    if model.place == other.place or not mine or mine.keys() != theirs.keys():
        return model.place == other.place
    return all(filecmp.cmp(mine[name], theirs[name], shallow=False) for name in mine)


def _weight_files(model: AuditModel) -> dict[str, Path]:
    source = resolve(model.place)
    if source.path is None:
        return {}
    if source.kind == "gguf":
        return {"gguf": source.path}
    return {file.name: file for file in source.path.glob("*.safetensors")}


def _with_evidence(
    request: AuditRequest, sets: Mapping[str, tuple[Fact, ...]], base: Outline, setting: Setting
) -> Sheet | None:
    """Return the held-out questions of forget facts with evidence, the evidence before them."""
    evidence = {fact.id: " ".join(_sentences(fact)) for fact in sets["forget"] if fact.evidence}
    # An interval needs two facts; with fewer the headroom is not asked.
    if len(evidence) < 2:
        return None
    questions = [
        replace(question, prompt=f"{evidence[question.fact]} {question.prompt}")
        for question in used(audit_questions(sets), setting.drawn)
        if question.set == "forget" and question.pool == "evaluation" and question.fact in evidence
    ]
    return sheet_of(setting, _asked(request, base, questions))


def sheet_of(setting: Setting, questions: Sequence[Question]) -> Sheet:
    """Return questions laid out as batches, like the setting's own."""
    plan = setting.cell.plan
    return make_sheet(
        setting.tokenizer,
        questions,
        piece_tokens=plan.general.piece_tokens,
        batch_tokens=plan.engine.batch_tokens,
        pad=setting.pad,
    )


def _sentences(fact: Fact) -> Iterator[str]:
    for text in fact.evidence:
        yield text if text.endswith((".", "!", "?")) else f"{text}."


def check_length(sheet: Sheet, base: Outline) -> None:
    """Refuse a question that is longer than the base can read."""
    limit = getattr(base.config, "max_position_embeddings", None)
    longest = max(page.batch.ids.shape[1] for page in sheet.pages)
    if isinstance(limit, int) and longest > limit:
        raise FactsError(
            f"a prompt with its answer has {longest} tokens; {base.name} reads at most {limit}; "
            "shorten it, or its evidence"
        )
