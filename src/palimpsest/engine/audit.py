"""An audit of your own models: everything is checked on paper, then measured as one cell.

A refusal here costs nothing and leaves nothing behind. What passes is fixed: the questions, which
models will be asked, and what is drawn from the beacon.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from palimpsest.config.load import as_dict
from palimpsest.config.own import AuditConfig, check_candidate_name
from palimpsest.config.sections import General, Reacquisition
from palimpsest.engine.checkpoints import find_checkpoints, read_record, same_place
from palimpsest.engine.launch import CellJob, RunOptions, raise_failures, run_cells
from palimpsest.engine.setting import Setting, used_questions
from palimpsest.engine.spec import CellSpec, Given, SourcedModel, mixtures
from palimpsest.errors import FactsError, ModelError, PlanError
from palimpsest.facts.files import Fact, as_jsonl, check_sets, set_problems
from palimpsest.facts.general import general_pieces
from palimpsest.facts.probes import ASSUMES, generated_probes
from palimpsest.facts.questions import (
    ASKED,
    Question,
    Testbed,
    audit_questions,
    file_elicitations,
    reversible,
)
from palimpsest.facts.rows import shown_path
from palimpsest.models.checkpoint import Digests, checkpoint_digests
from palimpsest.models.encode import chat_prompt, start_remark
from palimpsest.models.load import Outline, check_compatible, outline
from palimpsest.run.disk import canonical, digest
from palimpsest.run.store import TERMS, Run, Terms
from palimpsest.stats.axes import chosen
from palimpsest.stats.beacon import Draw
from palimpsest.stats.headroom import Headroom, read_headroom
from palimpsest.stats.models import Model, Role
from palimpsest.stats.multiplicity import Certifiability, certifiability
from palimpsest.stats.rules import Rules

CELL = "audit"
"""The one cell of an audit's run; every random choice is derived from this name."""
ONE_WAY = (
    "Not every forget fact has a subject and a relation, so none is asked from the answer to the "
    "subject; add both keys to the forget facts to compare the axis reversed too."
)
SELF_DRAWN = (
    "Schedule and phrasings were drawn from the digests of candidates and references: whoever can "
    "try many digests can choose among draws; a text published later (--beacon) cannot be chosen."
)


@dataclass(frozen=True)
class AuditInputs:
    """An audit checked on paper; builds its spec in whatever process it is needed."""

    config: AuditConfig
    drawn: Draw
    candidates: tuple[tuple[str, str], ...]
    references: tuple[tuple[str, str], ...]
    """Name and place of each, ordered by their weights: the order they are given in has no
    effect."""
    digests: tuple[tuple[str, Digests], ...]
    """Of every model, by place."""
    rate_reference: str = ""
    """Name of the reference on which the learning rate of re-acquisition is chosen."""

    def __call__(self, cell_id: str) -> CellSpec:
        config = self.config
        references = [
            SourcedModel(
                Model(
                    name,
                    Role.REFERENCE,
                    draw=n,
                    recipe=_recipe(place),
                    excluded=name in config.exclude,
                ),
                self._given(place),
            )
            for n, (name, place) in enumerate(self.references)
        ]
        injected = Model("injected", Role.INJECTED, recipe=_recipe(config.injected))
        models = [SourcedModel(injected, self._given(config.injected)), *references]
        models += mixtures(models, self.rules)
        models += [
            SourcedModel(Model(name, Role.CANDIDATE), self._given(place))
            for name, place in self.candidates
        ]
        return CellSpec(
            id=CELL,
            title="audit",
            seed=0,
            base=self._given(config.base),
            setting=self.setting,
            rules=self.rules,
            models=tuple(_with_digest(entry) for entry in models),
            measures=tuple(
                axis.measure
                for axis in chosen(self.rules)
                if axis.measure is not None and axis.measure in ASKED
            ),
            choose_rate_on=self.rate_reference,
            facts=tuple(
                (name, tuple((fact.id, fact.relation) for fact in facts))
                for name, facts in self.sets.items()
            ),
        )

    def _given(self, place: str) -> Given:
        return Given(place, dict(self.digests)[place], self.config.adapter_base)

    # -- facts and questions ---------------------------------------------------------------------

    @cached_property
    def sets(self) -> dict[str, tuple[Fact, ...]]:
        """The facts: forget, retain and probe."""
        config = self.config
        files = {"forget": config.forget, "retain": config.retain}
        files |= {"probe": config.probes} if config.probes else {}
        sets = check_sets(files)
        if config.probes:
            return sets
        if not config.generate_probes:
            count = len(self.candidates)
            least = certifiability(len(sets["forget"]), 1, count, config.rules.alpha).min_probes
            raise PlanError(
                "none given; expected never-learned facts to compare the forget facts with; give a "
                f"file with --probes, or generate some with --generate-probes {max(16, least)}; "
                f"this design needs at least {least}",
                key="probes",
            )
        key = self.drawn.key("probes")
        probes = generated_probes(sets["forget"], config.generate_probes, sets["retain"], key)
        return sets | {"probe": probes}

    @cached_property
    def rules(self) -> Rules:
        """The rules, without the axis that these facts cannot be asked for."""
        rules = self.config.rules
        asked = "reversed" in rules.axes and not reversible(self.sets["forget"])
        return rules.without("reversed") if asked else rules

    @cached_property
    def outline(self) -> Outline:
        """The base on paper; all models share its tokenizer and shape."""
        return outline(self.config.base, base=self.config.adapter_base or None)

    @cached_property
    def setting(self) -> Setting:
        """What the models are asked and re-acquired on."""
        config = self.config
        rate = config.learning_rate or Reacquisition.learning_rate
        pieces = general_pieces(config.general, config.scored_pieces, f"{CELL}/general")
        questions = used_questions(audit_questions(self.sets), self.drawn)
        return Setting(
            seed_key=CELL,
            facts=Testbed((), (), (), self._asked(questions)),
            general_train=(),
            general_scored=pieces,
            reacquisition=Reacquisition(config.steps, config.chunks, rate, config.items),
            general=General(config.general, 1, config.scored_pieces, config.piece_tokens),
            # A step per model, so that one more candidate is one more step.
            engine=replace(config.engine, stack=1),
            drawn=self.drawn,
            asked_otherwise=self._asked(file_elicitations(self.sets)),
            with_evidence=self._asked(tuple(self._evidence_questions(questions))),
            sealed=False,
        )

    def _asked(self, questions: Sequence[Question]) -> tuple[Question, ...]:
        """Return the questions as they are asked: plain, or as turns of the chat template."""
        if not self.config.chat:
            return tuple(questions)
        tokenizer = self.outline.tokenizer
        return tuple(replace(q, prompt=chat_prompt(tokenizer, q.prompt)) for q in questions)

    def _evidence_questions(self, questions: Sequence[Question]) -> Iterator[Question]:
        """Yield the held-out questions of forget facts with evidence, the evidence before them."""
        evidence = {
            fact.id: " ".join(t if t.endswith((".", "!", "?")) else f"{t}." for t in fact.evidence)
            for fact in self.sets["forget"]
            if fact.evidence
        }
        for q in questions if len(evidence) > 1 else ():  # an interval needs two facts
            if q.set == "forget" and q.pool == "evaluation" and q.fact in evidence:
                yield replace(q, prompt=f"{evidence[q.fact]} {q.prompt}")

    @cached_property
    def bound(self) -> Certifiability:
        """Whether the screen has enough probes to exclude a candidate."""
        sets, count = self.sets, len(self.candidates)
        return certifiability(len(sets["forget"]), len(sets["probe"]), count, self.rules.alpha)

    # -- what is fixed ---------------------------------------------------------------------------

    def terms(self) -> Terms:
        """Return what is fixed about the audit, without the paths of its files."""
        config = as_dict(self.config)
        paths = ("base", "injected", "forget", "retain", "probes", "general", "out")
        lists = ("candidates", "candidates_folder", "references", "references_folder")
        for key in (*paths, *lists, "adapter_base", "rules", "beacon"):
            config.pop(key)
        facts = {name: len(facts) for name, facts in self.sets.items()}
        config |= {"drawn": self.drawn.record(), "facts": facts, "remarks": list(self.remarks())}
        config["rate_reference"] = self.rate_reference
        places = {"base": self.config.base, "injected": self.config.injected}
        inputs = {name: dict(self.digests)[place].files for name, place in places.items()}
        inputs |= {f"{name} facts": digest(as_jsonl(facts)) for name, facts in self.sets.items()}
        inputs["general text"] = digest(canonical(list(self.setting.general_scored)))
        if self.config.adapter_base:
            inputs["adapter base"] = checkpoint_digests(self.config.adapter_base).files
        heldout = [
            [q.id, q.prompt, q.answer]
            for q in self.setting.facts.questions
            if q.pool == "evaluation"
        ]
        return Terms(
            kind="audit",
            config=config,
            rules=as_dict(self.rules),
            seal={"commitment": digest(canonical(heldout)), "pool": "held-out questions"},
            inputs=inputs,
            cells=(CELL,),
        )

    def roster(self) -> list[dict[str, Any]]:
        """Return the candidates and references, by name and digest."""
        digests = dict(self.digests)
        named = [(name, "reference", place) for name, place in self.references]
        named += [(name, "candidate", place) for name, place in self.candidates]
        return [
            {"name": name, "role": role, "files": digests[p].files, "weights": digests[p].weights}
            for name, role, p in named
        ]

    def remarks(self) -> Iterator[str]:
        """Yield what is allowed but weakens the measurement."""
        config = self.config
        if not config.probes:
            yield ASSUMES
        if self.rules != config.rules:
            yield ONE_WAY
        if not config.beacon:
            yield SELF_DRAWN
        files = {"forget": config.forget, "retain": config.retain}
        files |= {"probe": config.probes} if config.probes else {}
        yield from (str(problem) for problem in set_problems(files) if not problem.fatal)
        yield from self._copies()
        yield from _swapped_roles(self)
        if config.engine.dtype != "float32":
            yield (
                f"Weights stored in another precision are rounded to {config.engine.dtype}; use "
                "float32 to compare exact weights."
            )
        if config.engine.lora:
            yield (
                f"Every model is re-acquired by LoRA adapters of rank {config.engine.lora}; "
                "compare residual and relearning only with audits of the same rank."
            )
        if remark := start_remark(self.outline.tokenizer, self.outline.config.model_type):
            yield remark

    def _copies(self) -> Iterator[str]:
        digests = dict(self.digests)
        known = {digests[self.config.base].weights: "base"}
        known[digests[self.config.injected].weights] = "injected"
        for name, place in self.candidates:
            if (copied := known.get(digests[place].weights)) is not None:
                yield f"Candidate {name} has the weights of {copied}."

    def places(self) -> Iterator[tuple[str, str]]:
        """Yield name and place of every model."""
        yield "base", self.config.base
        yield "injected", self.config.injected
        yield from (*self.references, *self.candidates)


def prepare_audit(config: AuditConfig, *, resumed: str = "") -> AuditInputs:
    """Return the audit checked whole; loads no weights.

    resumed: a run whose draw is kept: of the run folder itself, or one that is reused.
    """
    candidates = _candidates(config)
    places = _references(config)
    digests = {p: checkpoint_digests(p) for p in (config.base, config.injected)}
    digests |= {place: checkpoint_digests(place) for place in (*places, *dict(candidates).values())}
    _check_copies(config, places, candidates, digests)
    ordered = sorted(places, key=lambda place: digests[place].weights)
    references = tuple((name, place) for place in ordered for name in [places[place]])
    handed_in = {name: digests[place].files for name, place in (*candidates, *references)}
    earlier = _earlier_config(config.out) or _earlier_config(resumed)
    record = earlier.get("drawn")
    drawn = Draw(config.beacon, handed_in)
    if record is not None and record["beacon"] == config.beacon:
        drawn = Draw(record["beacon"], record["bound"])
    rate_reference = ""
    if config.chooses_rate:
        named = earlier.get("rate_reference")
        rate_reference = named if named in dict(references) else references[0][0]
    if unknown := sorted(set(config.exclude) - set(dict(references))):
        raise PlanError(
            f"{unknown[0]!r} found; expected names of references: {', '.join(dict(references))}",
            key="exclude",
        )
    inputs = AuditInputs(
        config, drawn, candidates, references, tuple(digests.items()), rate_reference
    )
    _check_on_paper(inputs)
    return inputs


def _earlier_config(path: str) -> dict[str, Any]:
    """Return what an earlier run fixed: models that are added later are measured by its draw."""
    if not path or not (Path(path) / TERMS).exists():
        return {}
    return Run.open(path).terms.config


def _candidates(config: AuditConfig) -> tuple[tuple[str, str], ...]:
    candidates = dict(config.candidates)
    taken = [config.base, config.injected, *config.references, *candidates.values()]
    if config.candidates_folder:
        found = find_checkpoints(config.candidates_folder, "candidates_folder")
        for name, place in found.items():
            if not any(same_place(place, other) for other in taken):
                check_candidate_name(name)
                candidates.setdefault(name, place)
    return tuple(candidates.items())


def _references(config: AuditConfig) -> dict[str, str]:
    """Return the name of each reference by its place: after its folder, told apart by a number."""
    places = dict.fromkeys(config.references)
    if config.references_folder:
        found = find_checkpoints(config.references_folder, "references_folder")
        others = [config.base, config.injected, *dict(config.candidates).values()]
        for place in found.values():
            if not any(same_place(place, other) for other in (*others, *places)):
                places[place] = None
    names: dict[str, str] = {}
    for place in places:
        folder = "".join(c if c.isalnum() or c in "._" else "-" for c in Path(place).name)[:60]
        name, number = f"reference-{folder.strip('-.') or 'model'}", 2
        while name in names.values():
            name, number = f"{name.partition('@')[0]}@{number}", number + 1
        names[place] = name
    return names


def _check_copies(
    config: AuditConfig,
    references: Mapping[str, str],
    candidates: Sequence[tuple[str, str]],
    digests: Mapping[str, Digests],
) -> None:
    """Refuse a reference that is another model's copy, by its weights alone."""
    seen = {digests[config.base].weights: "base", digests[config.injected].weights: "injected"}
    seen |= {digests[place].weights: f"candidate {name}" for name, place in candidates}
    for place in references:
        weights = digests[place].weights
        if weights in seen:
            raise PlanError(
                f"{shown_path(place)} has the weights of {seen[weights]}; expected an independent "
                "retraining without the forget set; leave it out, or give another",
                key="references",
            )
        seen[weights] = f"reference {shown_path(place)}"


def _check_on_paper(inputs: AuditInputs) -> None:
    """Compare every model's configuration and tokenizer with the base's, and read the facts."""
    base = inputs.outline
    for name, place in inputs.places():
        try:
            check_compatible(base, outline(place, base=inputs.config.adapter_base or None))
        except ModelError as error:
            raise ModelError(f"{name}: {error}") from error
    setting = replace(inputs.setting, tokenizer=base.tokenizer)
    sheets = [setting.sheet]
    if setting.with_evidence:
        sheets.append(setting.make_sheet(setting.with_evidence))
    limit = getattr(base.config, "max_position_embeddings", None)
    longest = max(page.batch.ids.shape[1] for sheet in sheets for page in sheet.pages)
    if isinstance(limit, int) and longest > limit:
        raise FactsError(
            f"a prompt with its answer has {longest} tokens; {base.name} reads at most {limit}; "
            "shorten it, or its evidence"
        )


def _swapped_roles(inputs: AuditInputs) -> Iterator[str]:
    """Yield each model given as something else than the record beside it says."""
    given = [("base", inputs.config.base), ("injected", inputs.config.injected)]
    given += [("reference", place) for _, place in inputs.references]
    for role, place in given:
        said = read_record(place).get("role", role)
        if said != role:
            yield (
                f"{shown_path(place)} was given as {role}, but its palimpsest.json says that it "
                f"was made as {said}; check that models are not swapped."
            )


def _recipe(place: str) -> dict[str, Any]:
    """Return how a model was trained, where the record beside it says so."""
    record = read_record(place)
    recipe = record.get("recipe")
    return dict(recipe) if isinstance(recipe, Mapping) else {}


def _with_digest(entry: SourcedModel) -> SourcedModel:
    if not isinstance(entry.source, Given):
        return entry
    return replace(entry, model=replace(entry.model, source=entry.source.digests.files))


def run_audit(inputs: AuditInputs, options: RunOptions) -> Run:
    """Measure what is left of an audit and return its run."""
    job = CellJob(inputs)
    run, outcome = run_cells(job, Path(inputs.config.out), inputs.terms(), inputs.roster(), options)
    raise_failures(run, outcome)
    return run


@dataclass(frozen=True)
class HeadroomSpec:
    """Builds the spec that only scores forget questions with and without evidence."""

    inputs: AuditInputs

    def __call__(self, cell_id: str) -> CellSpec:
        spec = self.inputs(cell_id)
        first = [entry.name for entry in spec.of(Role.REFERENCE)][:1]
        kept = tuple(entry for entry in spec.models if entry.name in ("injected", *first))
        oracle = first[0] if first else ""
        return replace(spec, models=kept, measured=False, choose_rate_on="", oracle=oracle)


def run_headroom(inputs: AuditInputs, options: RunOptions) -> Headroom:
    """Return the headroom of an audit's forget facts, without measuring anything else."""
    if not inputs.setting.with_evidence:
        raise FactsError(
            f"{inputs.config.forget}: fewer than two facts have evidence; headroom needs "
            '"evidence", the sentences of retained data that bear on a fact'
        )
    terms = replace(inputs.terms(), kind="headroom")
    job = CellJob(HeadroomSpec(inputs))
    run, outcome = run_cells(job, Path(inputs.config.out), terms, (), options)
    raise_failures(run, outcome)
    found = read_headroom(run.cell(CELL).table("headroom"), inputs.rules)
    assert found is not None
    return found
