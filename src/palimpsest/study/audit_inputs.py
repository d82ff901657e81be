"""Everything an audit can check before it loads a weight: facts, text, models on paper, the bound.

A refusal here costs nothing and leaves nothing behind. What passes is fixed: the questions, their
tokens and batches, and which models will be asked.
"""

import filecmp
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palimpsest.criteria.multiplicity import Certifiability, certifiability
from palimpsest.errors import FactsError, ModelError
from palimpsest.facts.files import Fact, as_jsonl, check_sets, set_problems
from palimpsest.facts.general import general_pieces
from palimpsest.facts.questions import Question, Testbed, file_questions
from palimpsest.models.adapter import WEIGHTS as ADAPTER_WEIGHTS
from palimpsest.models.inspect_folder import read_weights
from palimpsest.models.load import Outline, check_compatible, outline, resolve
from palimpsest.plan import CellPlan, Plan
from palimpsest.run.store import canonical, digest
from palimpsest.scoring.answers import Sheet, make_sheet
from palimpsest.study.audit_probes import ASSUMES, generated_probes
from palimpsest.study.audit_request import AuditRequest
from palimpsest.study.matrix import source_digest
from palimpsest.study.setting import Setting

CELL = "audit"
"""The one cell of an audit's run; every random choice is derived from this name."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One model of an audit: its name in the tables, what it is, and where it is."""

    name: str
    role: str
    place: str


@dataclass(frozen=True)
class Inputs:
    """A request that can be run."""

    request: AuditRequest
    plan: Plan
    sets: Mapping[str, tuple[Fact, ...]]
    generated: bool
    """Whether the probes were made here and not given."""
    models: tuple[Asked, ...]
    """Base, injected, references and candidates, in this order."""
    outline: Outline
    """Of the base; tokenizer and shape are everybody's."""
    setting: Setting
    told: Sheet | None
    """The supported forget facts' held-out questions after their evidence, for the headroom."""
    bound: Certifiability
    repeated: tuple[str, ...]
    """Which candidates have the weights of base or injected, a sentence each."""
    remarks: tuple[str, ...]
    """What is allowed but weakens the measurement; the sentences above are among them."""

    def of(self, role: str) -> tuple[Asked, ...]:
        return tuple(model for model in self.models if model.role == role)

    def terms(self) -> dict[str, Any]:
        """Give what is fixed about the audit, without the paths its files happened to lie at."""
        request, plan = self.request, self.plan.as_dict()
        return {
            "name": CELL,
            "methods": [],
            # A list: ties between candidates go by their order.
            "models": [[model.name, model.role] for model in self.models],
            "facts": {name: len(facts) for name, facts in self.sets.items()},
            "generated_probes": len(self.sets["probe"]) if self.generated else 0,
            "reacquired": request.round_trip,
            "round_trip": plan["round_trip"],
            "general": {key: value for key, value in plan["general"].items() if key != "source"},
            "engine": plan["engine"],
            "rules": plan["rules"],
        }

    def digests(self) -> dict[str, str]:
        """Give the digest of every model, facts file and text; reads the checkpoints whole."""
        request = self.request
        found = {model.name: source_digest(model.place) for model in self.models}
        if request.adapter_base is not None:
            found["adapter base"] = source_digest(request.adapter_base)
        found |= {f"{name} facts": digest(as_jsonl(facts)) for name, facts in self.sets.items()}
        found["general text"] = digest(canonical(list(self.setting.general_scored)))
        return found

    def commitment(self) -> str:
        """Give the digest of the held-out prompts: what a candidate must not have been shown."""
        heldout = [[q.id, q.prompt, q.answer] for q in self.setting.facts.questions]
        return digest(canonical([row for row in heldout if "/evaluation/" in row[0]]))


def prepare(request: AuditRequest) -> Inputs:
    """Give the request checked whole; loads no weights."""
    plan = request.plan()
    sets, generated, remarks = _facts(request)
    general = plan.general
    pieces = general_pieces(general.source, general.scored_pieces, f"{CELL}/general")
    models = _models(request)
    base = _outlines(request, models)
    facts = Testbed((), (), (), audit_questions(sets))
    setting = Setting(CellPlan(CELL, 0, plan), base.tokenizer, facts, (), pieces)
    told = _supported(sets, setting)
    for sheet in (setting.sheet, told):
        if sheet is not None:
            check_length(sheet, base)
    bound = certifiability(
        len(sets["forget"]), len(sets["probe"]), len(request.candidates), request.rules.alpha
    )
    repeated = tuple(_repeated(models))
    return Inputs(
        request,
        plan,
        sets,
        generated,
        models,
        base,
        setting,
        told,
        bound,
        repeated,
        (*repeated, *remarks),
    )


def audit_questions(sets: Mapping[str, tuple[Fact, ...]]) -> tuple[Question, ...]:
    """Give the questions of a user's facts.

    Trained prompts are pool ``trained`` and held-out ones pool ``evaluation``. The retain axis is
    measured on pool ``cloze``, which files do not have: there it is each retain fact's first
    trained prompt, moved and not repeated, so that no position counts twice in the residual.
    """
    return tuple(
        replace(question, pool="cloze")
        if question.set == "retain" and question.pool == "trained" and question.template == 0
        else question
        for question in file_questions(sets)
    )


def _facts(request: AuditRequest) -> tuple[dict[str, tuple[Fact, ...]], bool, list[str]]:
    files = {"forget": request.forget, "retain": request.retain}
    if request.probes is not None:
        files["probe"] = request.probes
    sets = check_sets(files)
    remarks = [str(problem) for problem in set_problems(files) if not problem.fatal]
    if request.probes is not None:
        return sets, False, remarks
    if not request.generate_probes:
        least = certifiability(
            len(sets["forget"]), 1, len(request.candidates), request.rules.alpha
        ).min_probes
        raise FactsError(
            "probes: none given, and without never-learned facts there is no level to compare "
            f"with; give a file with --probes, or have {max(16, least)} made, say, with "
            f"--generate-probes (probes, generate_probes in a file); this design needs at least "
            f"{least}. {ASSUMES}"
        )
    sets["probe"] = generated_probes(sets["forget"], request.generate_probes, sets["retain"])
    return sets, True, [*remarks, ASSUMES]


def _models(request: AuditRequest) -> tuple[Asked, ...]:
    references = zip(request.reference_names, request.references)
    return (
        Asked("base", "base", request.base),
        Asked("injected", "injected", request.injected),
        *(Asked(name, "reference", place) for name, place in references),
        *(Asked(name, "candidate", place) for name, place in request.candidates),
    )


def _outlines(request: AuditRequest, models: tuple[Asked, ...]) -> Outline:
    """Give the base on paper, after every other model was compared with it on paper."""
    under = request.adapter_base
    for model in models:
        _check_weights(model)
    base = outline(request.base, base=under)
    for model in models[1:]:
        try:
            check_compatible(base, outline(model.place, base=under))
        except ModelError as error:
            raise ModelError(f"{model.role} {model.name}: {error}") from error
    return base


def _check_weights(model: Asked) -> None:
    """Read the headers of a checkpoint on this disk: a missing or pickled one is refused now."""
    try:
        source = resolve(model.place)
        if source.path is not None and source.kind in ("folder", "pocket"):
            read_weights(source.path)
        elif source.path is not None and source.kind == "adapter":
            read_weights(source.path, ADAPTER_WEIGHTS)
    except ModelError as error:
        raise ModelError(f"{model.role} {model.name}: {error}") from error


def _repeated(models: tuple[Asked, ...]) -> Iterator[str]:
    """Give a sentence for every candidate whose weights are the injected model's or the base's."""
    for model in models:
        for known in models[1::-1] if model.role == "candidate" else ():
            if _same_weights(model, known):
                yield (
                    f"candidate {model.name} has the weights of {known.name}, byte for byte; "
                    "expected a model that unlearned something, unless it is there to compare with"
                )
                break


def _same_weights(one: Asked, other: Asked) -> bool:
    """Tell whether two models have the same files of weights; reads up to the first difference."""
    mine, theirs = _weight_files(one), _weight_files(other)
    if one.place == other.place or not mine or mine.keys() != theirs.keys():
        return one.place == other.place
    return all(filecmp.cmp(mine[name], theirs[name], shallow=False) for name in mine)


def _weight_files(model: Asked) -> dict[str, Path]:
    source = resolve(model.place)
    if source.path is None or source.kind not in ("folder", "pocket", "gguf"):
        return {}
    if source.kind == "gguf":
        return {"gguf": source.path}
    return {file.name: file for file in source.path.glob("*.safetensors")}


def _supported(sets: Mapping[str, tuple[Fact, ...]], setting: Setting) -> Sheet | None:
    """Give the held-out questions of forget facts with evidence, the evidence before the prompt."""
    evidence = {fact.id: " ".join(_sentences(fact)) for fact in sets["forget"] if fact.evidence}
    # An interval needs two facts; with fewer the headroom is not asked.
    if len(evidence) < 2:
        return None
    told = [
        replace(question, prompt=f"{evidence[question.fact]} {question.prompt}")
        for question in setting.facts.questions
        if question.set == "forget" and question.pool == "evaluation" and question.fact in evidence
    ]
    plan = setting.cell.plan
    return make_sheet(
        setting.tokenizer,
        told,
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
