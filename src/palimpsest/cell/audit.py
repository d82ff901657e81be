"""An audit of your own models: everything is checked on paper, then measured as one cell.

A refusal here costs nothing and leaves nothing behind. What passes is fixed: the questions, which
models will be asked, and what is drawn from the beacon.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from palimpsest.cell.beacon import Beacon
from palimpsest.cell.checkpoints import find_checkpoints, read_record, same_place
from palimpsest.cell.frame import Frame, find_frame
from palimpsest.cell.plan import CellPlan, Given, Mixed, SourcedModel, sourced
from palimpsest.cell.planned import AUDIT as CELL
from palimpsest.cell.planned import Listed, planned_cell
from palimpsest.cell.task import CellTask
from palimpsest.cell.texts import CellTexts, own_facts
from palimpsest.config.commands import AuditConfig, check_candidate_name
from palimpsest.config.load import as_dict
from palimpsest.config.sections import Engine, General, Reacquisition
from palimpsest.errors import FactsError, ModelError, PlanError
from palimpsest.facts.files import Fact, as_jsonl, check_sets, set_problems
from palimpsest.facts.general import general_pieces
from palimpsest.facts.probes import ASSUMES, generated_probes
from palimpsest.facts.questions import reversible
from palimpsest.models.checkpoint import (
    Digests,
    Outline,
    check_compatible,
    check_weights,
    checkpoint_digests,
    outline,
)
from palimpsest.models.device import check_lora, check_package
from palimpsest.models.encode import start_remark
from palimpsest.models.tokenizer import token_lengths
from palimpsest.run.files import canonical, digest
from palimpsest.run.store import Roster, Run, Terms
from palimpsest.stats.design import SHIFT, design_audit
from palimpsest.stats.models import Model, Role
from palimpsest.stats.multiplicity import Certifiability, certifiability
from palimpsest.stats.rules import Rules
from palimpsest.stats.words import count
from palimpsest.text import shown_path

if TYPE_CHECKING:
    from palimpsest.cell.estimate import Estimate

ONE_WAY = (
    "The axis reversed is not measured, because not every forget fact has the keys subject and "
    "relation; add both to measure it."
)


@dataclass(frozen=True)
class AuditTask(CellTask):
    """An audit checked on paper, from ``audit_task``."""

    config: AuditConfig
    beacon: Beacon
    candidates: Mapping[str, str]
    references: Mapping[str, str]
    """Where each is by its name, ordered by their weights: the order they are given in has no
    effect."""
    digests: Mapping[str, Digests]
    """Of every model, by where it is."""
    facts: Mapping[str, tuple[Fact, ...]]
    """By set, as the files have them."""
    general: tuple[str, ...]
    """The pieces of general text that are scored."""
    notes: tuple[str, ...] = ()
    """What is allowed in the models but worth knowing."""
    rate_reference: str = ""
    """Name of the reference on which the learning rate of re-acquisition is chosen."""

    kind: ClassVar[str] = "audit"

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.config.out)

    @property
    def engine(self) -> Engine:
        """How numbers are computed."""
        return self.config.engine

    def check(self) -> list[str]:
        """Return what is worth knowing of the audit and its models."""
        return [*self.remarks, *self.notes]

    def build(self, cell: str) -> CellPlan:
        """Return the plan of the one cell."""
        config = self.config
        plan = sourced(
            planned_cell(*self.fixed, cell),
            self._source,
            base=Given(config.base, self.digests[config.base], config.adapter_base),
            setting=self.setting,
            choose_rate_on=self.rate_reference,
            facts=tuple(
                (name, tuple((fact.id, fact.relation) for fact in facts))
                for name, facts in self.sets.items()
            ),
        )
        return replace(plan, models=tuple(map(self._recorded, plan.models)))

    def _source(self, model: Model) -> Given | Mixed:
        """Return where a model of the audit comes from."""
        if model.role is Role.CONTROL:
            return Mixed(model.of, model.share or 0.0)
        path = self.paths[model.name]
        return Given(path, self.digests[path], self.config.adapter_base)

    def _recorded(self, entry: SourcedModel) -> SourcedModel:
        """Return a given model with what its files and the record beside them say."""
        model, source = entry.model, entry.source
        if not isinstance(source, Given):
            return entry
        model = replace(model, weights=source.digests.weights)
        if model.role is not Role.CANDIDATE:
            model = replace(model, recipe=_recipe(source.place))
        return SourcedModel(model, source)

    @cached_property
    def paths(self) -> dict[str, str]:
        """Where each given model but the base is, by its name."""
        return {"injected": self.config.injected, **self.references, **self.candidates}

    # -- facts and questions ---------------------------------------------------------------------

    @cached_property
    def sets(self) -> dict[str, tuple[Fact, ...]]:
        """The facts: forget, retain and probe, which are generated where no file has them."""
        sets, count = dict(self.facts), self.config.generated_probes
        if not count:
            return sets
        key = self.beacon.key("probes")
        return sets | {"probe": generated_probes(sets["forget"], count, sets["retain"], key)}

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
    def setting(self) -> CellTexts:
        """What the models are asked and re-acquired on."""
        config = self.config
        rate = config.learning_rate or Reacquisition.learning_rate
        return CellTexts(
            seed_key=CELL,
            general_train=(),
            general_scored=self.general,
            reacquisition=Reacquisition(
                steps=config.steps, items=config.items, chunks=config.chunks, learning_rate=rate
            ),
            general=General(
                source=config.general,
                train_pieces=1,
                scored_pieces=config.scored_pieces,
                piece_tokens=config.piece_tokens,
            ),
            # A step per model, so that one more candidate is one more step.
            engine=replace(config.engine, stack=1),
            beacon=self.beacon,
            **own_facts(self.sets, self.beacon, self.frame),
        )

    @cached_property
    def frame(self) -> Frame | None:
        """The text around questions and answers, where the settings ask for one."""
        return find_frame(self.outline.tokenizer, self.config.prompt)

    @cached_property
    def bound(self) -> Certifiability:
        """Whether the screen has enough probes to exclude a candidate."""
        sets, count = self.sets, len(self.candidates)
        return certifiability(len(sets["forget"]), len(sets["probe"]), count, self.rules.alpha)

    def preview(self, estimate: "Estimate", workers: int) -> list[str]:
        """Return what the audit would do, take and be able to notice."""
        config, sets = self.config, self.sets
        candidates, references = len(self.candidates), len(self.references) - len(config.exclude)
        rate = f"learning rate {config.learning_rate or Reacquisition.learning_rate:g}"
        if self.rate_reference:
            rate = f"a learning rate that is chosen on {self.rate_reference}"
        alpha, size = self.rules.alpha, (len(sets["forget"]), len(sets["probe"]))
        design = design_audit(*size, candidates, alpha, SHIFT, references=references)
        return [
            f"audit in {config.out}: {estimate.line(workers)}",
            f"{count(candidates, 'candidate', 'candidates')}, {references} references, "
            f"{len(self.setting.facts.questions)} questions; re-acquisition of {config.steps} "
            f"steps of {config.items} sentences at {rate}.",
            estimate.reference.line(),
            *design.lines(),
        ]

    # -- what is fixed ---------------------------------------------------------------------------

    def fix(self) -> tuple[Terms, Roster]:
        """Return what is fixed, without the paths of files, and the candidates and references."""
        config = as_dict(self.config)
        paths = ("base", "injected", "forget", "retain", "probes", "general", "out")
        lists = ("candidates", "candidates_folder", "references", "references_folder")
        for key in (*paths, *lists, "adapter_base", "rules", "beacon"):
            config.pop(key)
        facts = {name: len(facts) for name, facts in self.sets.items()}
        config |= {
            "drawn": self.beacon.record(),
            "fact_counts": facts,
            "remarks": list(self.remarks),
        }
        config["rate_reference"] = self.rate_reference
        config["prompt"].pop("prompt_file")
        config["template"] = None if self.frame is None else self.frame.text
        places = {"base": self.config.base, "injected": self.config.injected}
        inputs = {name: self.digests[place].files for name, place in places.items()}
        inputs |= {f"{name} facts": digest(as_jsonl(facts)) for name, facts in self.sets.items()}
        inputs["general text"] = digest(canonical(list(self.setting.general_scored)))
        if self.config.adapter_base:
            inputs["adapter base"] = checkpoint_digests(self.config.adapter_base).files
        heldout = [
            [q.id, q.prompt, q.answer]
            for q in self.setting.facts.questions
            if q.pool == "evaluation"
        ]
        terms = Terms(
            kind=self.kind,
            config=config,
            rules=as_dict(self.rules),
            seal={"commitment": digest(canonical(heldout)), "pool": "held-out questions"},
            inputs=inputs,
            cells=(CELL,),
        )
        named = [(name, Role.REFERENCE, place) for name, place in self.references.items()]
        named += [(name, Role.CANDIDATE, place) for name, place in self.candidates.items()]
        found = [(name, role, self.digests[place]) for name, role, place in named]
        return terms, [
            Listed(Model(name, role, source=d.files, weights=d.weights)).to_json()
            for name, role, d in found
        ]

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """What is allowed but weakens the measurement, whatever models are handed in."""
        return tuple(self._remarks())

    def _remarks(self) -> Iterator[str]:
        config = self.config
        if config.generated_probes:
            yield ASSUMES
        if self.rules != config.rules:
            yield ONE_WAY
        files = _fact_files(config)
        for problem in set_problems(files):
            text = str(problem)
            for name, file in files.items():  # the terms of a run hold no paths
                text = text.replace(shown_path(file), f"{name} facts")
            yield text
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


def audit_task(config: AuditConfig, *, resumed: str = "") -> AuditTask:
    """Return the audit checked whole: what costs nothing first, the weights last.

    resumed: a run whose draw is kept: of the run folder itself, or one that is reused.
    """
    check_lora(config.engine.lora)
    candidates, references = _candidates(config), _references(config)
    places = {"base": config.base, "injected": config.injected}
    places |= {**references, **candidates}
    if unknown := sorted(set(config.exclude) - set(references)):
        known = ", ".join(references)
        raise PlanError(f"{unknown[0]!r} found; expected some of {known}", key="exclude")
    facts = _read_facts(config, len(candidates))
    general = general_pieces(config.general, config.scored_pieces, f"{CELL}/general")
    outlines = _check_outlines(config, places)
    digests = {p: checkpoint_digests(p, config.adapter_base or None) for p in places.values()}
    notes = [*_check_copies(config, references, candidates, digests)]
    notes += [*_broken(config, places, candidates), *_swapped_roles(config, references)]
    notes += _left_out(config)
    # By the tensors alone: a note beside the weights must not give another draw.
    handed_in = {name: digests[place].weights for name, place in (candidates | references).items()}
    earlier = _earlier_config(config.out) or _earlier_config(resumed)
    record = earlier.get("drawn")
    beacon = Beacon(config.beacon, handed_in)
    if record is not None and record["beacon"] == config.beacon:
        beacon = Beacon(record["beacon"], record["bound"])
    ordered = sorted(references.items(), key=lambda named: digests[named[1]].weights)
    rate_reference = ""
    if config.chooses_rate:
        named = earlier.get("rate_reference")
        rate_reference = named if named in references else ordered[0][0]
    task = AuditTask(
        config,
        beacon,
        candidates,
        dict(ordered),
        digests,
        facts,
        general,
        tuple(notes),
        rate_reference,
    )
    _check_texts(task, outlines)
    return task


def _earlier_config(path: str) -> dict[str, Any]:
    """Return what an earlier run fixed: models that are added later are measured by its draw."""
    run = Run.find(path) if path else None
    return {} if run is None else run.terms.config


def _candidates(config: AuditConfig) -> dict[str, str]:
    """Return the place of each candidate by its name."""
    candidates = dict(config.candidates)
    taken = [config.base, config.injected, *config.references, *candidates.values()]
    if config.candidates_folder:
        found = find_checkpoints(config.candidates_folder, "candidates_folder")
        for name, place in found.items():
            if not any(same_place(place, other) for other in taken):
                check_candidate_name(name)
                candidates.setdefault(name, place)
    return candidates


def _left_out(config: AuditConfig) -> Iterator[str]:
    """Yield which models of the candidates' folder are no candidates, because of another role."""
    if not config.candidates_folder:
        return
    others = [(config.base, "base"), (config.injected, "injected")]
    others += [(place, "a reference") for place in config.references]
    for name, place in find_checkpoints(config.candidates_folder, "candidates_folder").items():
        for other, role in others:
            if same_place(place, other):
                yield f"{name} in the candidates folder is given as {role}: it is not a candidate."


def _references(config: AuditConfig) -> dict[str, str]:
    """Return the place of each reference by its name: its folder's, told apart by a number."""
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
        while name in names:
            name, number = f"{name.partition('@')[0]}@{number}", number + 1
        names[name] = place
    return names


# -- checks, the cheap ones first ------------------------------------------------------------------


def _fact_files(config: AuditConfig) -> dict[str, str]:
    probes = "" if config.generated_probes else str(config.probes)
    files = {"forget": config.forget, "retain": config.retain, "probe": probes}
    return {name: file for name, file in files.items() if file}


def _read_facts(config: AuditConfig, candidates: int) -> dict[str, tuple[Fact, ...]]:
    sets = check_sets(_fact_files(config))
    if "probe" not in sets and not config.generated_probes:
        least = certifiability(len(sets["forget"]), 1, candidates, config.rules.alpha).min_probes
        raise PlanError(
            "none given; expected never-learned facts to compare the forget facts with; give a "
            f"file with --probes, or generate some with --probes {max(16, least)}; "
            f"this design needs at least {least}",
            key="probes",
        )
    return sets


def _check_outlines(config: AuditConfig, places: Mapping[str, str]) -> dict[str, Outline]:
    """Return every model on paper, if its architecture and vocabulary are the base's."""
    outlines: dict[str, Outline] = {}
    for name, place in places.items():
        with _named(name):
            here = outlines[name] = outline(place, base=config.adapter_base or None)
            check_compatible(outlines["base"], here, texts=())
            if here.adapter is not None:
                check_package("peft", f"{shown_path(place)} is a LoRA adapter")
    return outlines


@contextmanager
def _named(model: str) -> Iterator[None]:
    """Put the name of a model before what is wrong with it."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{model}: {error}") from error


def _check_copies(
    config: AuditConfig,
    references: Mapping[str, str],
    candidates: Mapping[str, str],
    digests: Mapping[str, Digests],
) -> Iterator[str]:
    """Refuse an injected model or a reference that is another's copy, by its weights alone; yield
    the candidates that are."""
    seen = {digests[config.base].weights: "base"}
    given = {"injected": config.injected, **{f"candidate {n}": p for n, p in candidates.items()}}
    given |= {f"reference {shown_path(place)}": place for place in references.values()}
    for name, place in given.items():
        first = seen.setdefault(digests[place].weights, name)
        if first != name and name.startswith("candidate "):
            yield f"Candidate {name.partition(' ')[2]} has the weights of {first}."
        elif first != name:
            expected = "the model trained on the forget data"
            if name != "injected":
                expected = "an independent retraining without the forget set"
            raise PlanError(
                f"{shown_path(place)} has the weights of {first}; expected {expected}; omit it, or "
                "give another model",
                key="injected" if name == "injected" else "references",
            )


def _broken(
    config: AuditConfig, places: Mapping[str, str], candidates: Mapping[str, str]
) -> list[str]:
    """Return the candidates that cannot be measured; refuse other broken models, or no sound one.

    One diverged training of many does not end an audit.
    """
    notes: list[str] = []
    for name, place in places.items():
        try:
            check_weights(place, config.adapter_base or None)
        except ModelError as error:
            if name not in candidates or len(notes) + 1 == len(candidates):
                raise ModelError(f"{name}: {error}") from error
            notes.append(f"Candidate {name} will be reported as failed: {error}.")
    return notes


def _swapped_roles(config: AuditConfig, references: Mapping[str, str]) -> Iterator[str]:
    """Yield each model given as something else than the record beside it says."""
    given = [("base", config.base), ("injected", config.injected)]
    given += [("reference", place) for place in references.values()]
    for role, place in given:
        said = read_record(place).get("role", role)
        if said != role:
            yield (
                f"{shown_path(place)} was given as {role}, but its palimpsest.json says that it "
                f"was made as {said}; check that models are not swapped."
            )


def _check_texts(task: AuditTask, outlines: Mapping[str, Outline]) -> None:
    """Compare the tokenizers on the texts that are used, and these with what the base reads."""
    base, setting = task.outline, task.setting
    asked = (*setting.facts.questions, *(setting.asked_otherwise or ()), *setting.with_evidence)
    texts = [*(question.text for question in asked), *setting.general_scored]
    with _named("base"):
        lengths = token_lengths(base.tokenizer, texts)
    for name, here in outlines.items():
        with _named(name):
            check_compatible(base, here, texts)
    limit = getattr(base.config, "max_position_embeddings", None)
    longest = max(lengths[: len(asked)])
    if isinstance(limit, int) and longest > limit:
        raise FactsError(
            f"a prompt with its answer has {longest} tokens; {base.name} reads at most {limit}; "
            "shorten it, or its evidence"
        )


def _recipe(place: str) -> dict[str, Any]:
    """Return how and on which data a model was trained, where the record beside it says so."""
    record = read_record(place)
    recipe, inputs = record.get("recipe"), record.get("inputs")
    if not isinstance(recipe, Mapping):
        return {}
    data = {"data": dict(inputs)} if isinstance(inputs, Mapping) else {}
    return dict(recipe) | data
