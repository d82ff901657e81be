"""An audit of your own models: everything is checked, then measured as one cell.

A refusal here costs nothing and leaves nothing behind. What passes is fixed: the questions, which
models will be asked, and what is drawn from the beacon.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from palimpsest.cell.beacon import Beacon
from palimpsest.cell.checkpoints import find_checkpoints, read_record, same_place
from palimpsest.cell.estimate import Estimate
from palimpsest.cell.frame import Frame, find_frame
from palimpsest.cell.launch import Task
from palimpsest.cell.plan import CellPlan, Given, Mixed, SourcedModel, sourced
from palimpsest.cell.planned import AUDIT as CELL
from palimpsest.cell.planned import Listed, planned_cell
from palimpsest.cell.texts import CellTexts, own_facts
from palimpsest.config.commands import AuditConfig, candidate_problems
from palimpsest.config.load import as_dict
from palimpsest.config.sections import General, Reacquisition
from palimpsest.errors import FactsError, ModelError, PlanError
from palimpsest.facts.files import Fact, as_jsonl, check_sets, set_problems
from palimpsest.facts.general import general_pieces
from palimpsest.facts.probes import ASSUMES, generated_probes
from palimpsest.facts.questions import reversible
from palimpsest.models.checkpoint import (
    Digests,
    Outline,
    Survey,
    check_compatible,
    checkpoint_digests,
    outline,
    survey,
)
from palimpsest.models.device import check_lora, check_package
from palimpsest.models.encode import start_remark
from palimpsest.models.tokenizer import token_lengths
from palimpsest.run.files import canonical, digest
from palimpsest.run.status import duration
from palimpsest.run.store import Roster, Run, Terms
from palimpsest.schema import joined
from palimpsest.stats.design import SHIFT, design_audit
from palimpsest.stats.models import Cost, Model, Role
from palimpsest.stats.multiplicity import Certifiability, certifiability
from palimpsest.stats.rules import Rules
from palimpsest.stats.words import count
from palimpsest.text import shown_path

ONE_WAY = (
    "The axis reversed is not measured, because not every forget fact has the keys subject and "
    "relation; add both to measure it."
)


@dataclass(frozen=True)
class AuditTask(Task):
    """An audit of given models, checked before any is measured."""

    config: AuditConfig
    resumed: str = ""
    """A run that is reused, whose draw is kept."""
    workers: int = 0
    """How many checkpoints are read at a time; 0 for as many as there are cores."""

    kind: ClassVar[str] = "audit"
    carried: ClassVar[tuple[str, ...]] = (
        *("fixed", "candidates", "references", "digests"),
        *("facts", "general", "beacon", "rate_reference"),
    )

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.config.out)

    def check(self) -> list[str]:
        """Return what is worth knowing of the audit and its models, if nothing is wrong."""
        notes = self.notes
        return [*self.remarks, *notes]

    def build(self, cell: str) -> CellPlan:
        """Return the plan of the one cell."""
        config = self.config
        plan = sourced(
            planned_cell(*self.fixed, cell),
            self._source,
            base=Given(config.base, self.digests[config.base], config.adapter_base),
            texts=self.texts,
            choose_rate_on=self.rate_reference,
        )
        return replace(plan, models=tuple(map(self._recorded, plan.models)))

    def _source(self, model: Model) -> Given | Mixed:
        """Return where a model of the audit comes from."""
        if model.role is Role.CONTROL:
            return Mixed(model.of, model.share or 0.0)
        place = self.places[model.name]
        return Given(place, self.digests[place], self.config.adapter_base)

    def _recorded(self, entry: SourcedModel) -> SourcedModel:
        """Return a given model with what its files and the record beside them say."""
        model, source = entry.model, entry.source
        if not isinstance(source, Given):
            return entry
        model = replace(model, weights=source.digests.weights)
        if model.role is Role.CANDIDATE:
            return SourcedModel(replace(model, cost=_cost(source.place)), source)
        return SourcedModel(replace(model, recipe=_recipe(source.place)), source)

    # -- models ----------------------------------------------------------------------------------

    @cached_property
    def candidates(self) -> dict[str, str]:
        """Where each candidate is, by its name."""
        config, given = self.config, dict(self.config.candidates)
        others = (config.base, config.injected, *config.references, *given.values())
        found = _in_folder(config.candidates_folder, "candidates_folder", others)
        if problems := [problem for name in found for problem in candidate_problems(name)]:
            raise joined(problems)
        return given | found | given

    @cached_property
    def places(self) -> dict[str, str]:
        """Where each model is, by its name; a reference has that of its folder, with a number where
        several have the same."""
        config = self.config
        places = {"base": config.base, "injected": config.injected, **self.candidates}
        others = (*places.values(), *config.references)
        found = _in_folder(config.references_folder, "references_folder", others)
        for place in dict.fromkeys((*config.references, *found.values())):
            folder = "".join(c if c.isalnum() or c in "._" else "-" for c in Path(place).name)[:60]
            name, number = f"reference-{folder.strip('-.') or 'model'}", 2
            while name in places:
                name, number = f"{name.partition('@')[0]}@{number}", number + 1
            places[name] = place
        return places

    @cached_property
    def references(self) -> dict[str, str]:
        """Where each reference is, ordered by their weights: the order they are given in has no
        effect."""
        others = ("base", "injected", *self.candidates)
        found = {name: place for name, place in self.places.items() if name not in others}
        return dict(sorted(found.items(), key=lambda named: self.digests[named[1]].weights))

    @cached_property
    def digests(self) -> dict[str, Digests]:
        """The digests of every model, by where it is."""
        return {place: seen.digests for place, seen in self.read.items()}

    @cached_property
    def read(self) -> dict[str, Survey]:
        """What one read of every model shows, by where it is."""
        return survey(self.places.values(), self.config.adapter_base or None, self.workers)

    @cached_property
    def outline(self) -> Outline:
        """The base without its weights; all models share its tokenizer and shape."""
        return outline(self.config.base, base=self.config.adapter_base or None)

    # -- what is drawn ---------------------------------------------------------------------------

    @cached_property
    def beacon(self) -> Beacon:
        """What is drawn: as in the run that is resumed, since models that are added later are
        measured by its draw."""
        record = self._earlier.get("drawn")
        if record is not None and record["beacon"] == self.config.beacon:
            return Beacon(record["beacon"], record["bound"])
        # By the tensors alone: a note beside the weights must not give another draw.
        handed_in = (self.candidates | self.references).items()
        return Beacon(self.config.beacon, {n: self.digests[p].weights for n, p in handed_in})

    @cached_property
    def rate_reference(self) -> str:
        """Name of the reference on which the learning rate of re-acquisition is chosen."""
        if not self.config.chooses_rate:
            return ""
        named = self._earlier.get("rate_reference")
        return str(named) if named in self.references else next(iter(self.references), "")

    @cached_property
    def _earlier(self) -> dict[str, Any]:
        """What the run that is resumed, or else reused, has fixed."""
        runs = (Run.find(path) for path in (self.config.out, self.resumed) if path)
        return next((run.terms.config for run in runs if run is not None), {})

    # -- facts and questions ---------------------------------------------------------------------

    @cached_property
    def facts(self) -> dict[str, tuple[Fact, ...]]:
        """The facts by set, as the files have them."""
        config, sets = self.config, check_sets(_fact_files(self.config))
        if "probe" not in sets and not config.generated_probes:
            count, alpha = len(self.candidates), config.rules.alpha
            least = certifiability(len(sets["forget"]), 1, count, alpha).min_probes
            raise PlanError(
                "none given; expected never-learned facts to compare the forget facts with; give "
                f"a file with --probes, or generate some with --probes {max(16, least)}; "
                f"this design needs at least {least}",
                key="probes",
            )
        return sets

    @cached_property
    def sets(self) -> dict[str, tuple[Fact, ...]]:
        """The facts: forget, retain and probe, which are generated where no file has them."""
        sets, count = self.facts, self.config.generated_probes
        if not count:
            return sets
        key = self.beacon.key("probes")
        return sets | {"probe": generated_probes(sets["forget"], count, sets["retain"], key)}

    @cached_property
    def general(self) -> tuple[str, ...]:
        """The pieces of general text that are scored."""
        return general_pieces(self.config.general, self.config.scored_pieces, f"{CELL}/general")

    @cached_property
    def rules(self) -> Rules:
        """The rules, without the axis that these facts cannot be asked for."""
        rules = self.config.rules
        asked = "reversed" in rules.axes and not reversible(self.sets["forget"])
        return rules.without("reversed") if asked else rules

    @cached_property
    def texts(self) -> CellTexts:
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

    def preview(self, estimate: Estimate, workers: int) -> list[str]:
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
            f"{len(self.texts.facts.questions)} questions; re-acquisition of {config.steps} "
            f"steps of {config.items} sentences at {rate}.",
            f"Measuring one more model takes about {duration(estimate.model)} on one worker.",
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
        config |= {
            "drawn": self.beacon.record(),
            "fact_counts": {name: len(facts) for name, facts in self.sets.items()},
            "remarks": list(self.remarks),
            "rate_reference": self.rate_reference,
            "template": None if self.frame is None else self.frame.text,
        }
        config["prompt"].pop("prompt_file")
        inputs = {name: self.digests[self.places[name]].files for name in ("base", "injected")}
        inputs |= {f"{name} facts": digest(as_jsonl(facts)) for name, facts in self.sets.items()}
        inputs["general text"] = digest(canonical(list(self.general)))
        if self.config.adapter_base:
            inputs["adapter base"] = checkpoint_digests(self.config.adapter_base).files
        questions = self.texts.facts.questions
        heldout = [[q.id, q.prompt, q.answer] for q in questions if q.pool == "evaluation"]
        terms = Terms(
            kind=self.kind,
            config=config,
            rules=as_dict(self.rules),
            seal={"commitment": digest(canonical(heldout)), "pool": "held-out questions"},
            inputs=inputs,
            cells=(CELL,),
        )
        roles = dict.fromkeys(self.references, Role.REFERENCE)
        roles |= dict.fromkeys(self.candidates, Role.CANDIDATE)
        found = [(name, role, self.digests[self.places[name]]) for name, role in roles.items()]
        return terms, [
            Listed(Model(name, role, source=d.files, weights=d.weights)).to_json()
            for name, role, d in found
        ]

    # -- checks and remarks ----------------------------------------------------------------------

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

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What is allowed in the models but worth knowing. Whatever is wrong is refused here, what
        costs nothing first, the weights last."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        check_lora(self.config.engine.lora)
        known = self.places.keys() - {"base", "injected", *self.candidates}
        if unknown := sorted(set(self.config.exclude) - known):
            several = ", ".join(sorted(known))
            raise PlanError(f"{unknown[0]!r} found; expected some of {several}", key="exclude")
        _ = self.facts, self.general
        outlines = self._outlines()
        yield from self._copies()
        yield from self._broken()
        roles = {"base": "base", "injected": "injected", **dict.fromkeys(known, "reference")}
        for name, role in roles.items():
            said = read_record(self.places[name]).get("role", role)
            if said != role:
                yield (
                    f"{shown_path(self.places[name])} was given as {role}, but its palimpsest.json "
                    f"says that it was made as {said}; check that models are not swapped."
                )
        self._check_texts(outlines)

    def _outlines(self) -> dict[str, Outline]:
        """Return every model without its weights, if architecture and vocabulary are the base's."""
        outlines: dict[str, Outline] = {}
        for name, place in self.places.items():
            with _named(name):
                here = outlines[name] = outline(place, base=self.config.adapter_base or None)
                check_compatible(self.outline, here, texts=())
                if here.adapter is not None:
                    check_package("peft", f"{shown_path(place)} is a LoRA adapter")
        return outlines

    def _copies(self) -> Iterator[str]:
        """Refuse an injected model or a reference that is another's copy, by its weights alone;
        yield the candidates that are."""
        seen: dict[str, str] = {}
        for name, place in self.places.items():
            label = f"candidate {name}" if name in self.candidates else name
            first = seen.setdefault(self.digests[place].weights, label)
            if first == label:
                continue
            if name not in self.candidates:
                raise PlanError(
                    f"{shown_path(place)} has the weights of {first}; expected a model that was "
                    "trained on its own; omit it, or give another",
                    key="injected" if name == "injected" else "references",
                )
            yield f"Candidate {name} has the weights of {first}."

    def _broken(self) -> list[str]:
        """Return the candidates that cannot be measured; refuse other broken models, or no sound
        one: one diverged training of many does not end an audit."""
        notes: list[str] = []
        for name, place in self.places.items():
            if problem := self.read[place].problem:
                if name not in self.candidates or len(notes) + 1 == len(self.candidates):
                    raise ModelError(f"{name}: {problem}")
                notes.append(f"Candidate {name} will be reported as failed: {problem}.")
        return notes

    def _check_texts(self, outlines: Mapping[str, Outline]) -> None:
        """Compare the tokenizers on the texts that are used, and these with what the base reads."""
        base, texts = self.outline, self.texts
        asked = (*texts.facts.questions, *(texts.asked_otherwise or ()), *texts.with_evidence)
        read = [*(question.text for question in asked), *texts.general_scored]
        with _named("base"):
            lengths = token_lengths(base.tokenizer, read)
        for name, here in outlines.items():
            with _named(name):
                check_compatible(base, here, read)
        limit = getattr(base.config, "max_position_embeddings", None)
        longest = max(lengths[: len(asked)])
        if isinstance(limit, int) and longest > limit:
            raise FactsError(
                f"a prompt with its answer has {longest} tokens; {base.name} reads at most "
                f"{limit}; shorten it, or its evidence"
            )


def _in_folder(folder: str, key: str, others: Iterable[str]) -> dict[str, str]:
    """Return the checkpoints in a folder that are not given as something else."""
    found = find_checkpoints(folder, key) if folder else {}
    return {n: p for n, p in found.items() if not any(same_place(p, other) for other in others)}


def _fact_files(config: AuditConfig) -> dict[str, str]:
    probes = "" if config.generated_probes else str(config.probes)
    files = {"forget": config.forget, "retain": config.retain, "probe": probes}
    return {name: file for name, file in files.items() if file}


@contextmanager
def _named(model: str) -> Iterator[None]:
    """Put the name of a model before what is wrong with it."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{model}: {error}") from error


def _cost(place: str) -> Cost | None:
    """Return what making a candidate cost, where the record beside it says so."""
    told = read_record(place).get("cost")
    if not isinstance(told, dict) or told.keys() != {item.name for item in fields(Cost)}:
        return None
    sound = all(type(n) in (int, float) and 0 <= n < math.inf for n in told.values())
    return Cost(**told) if sound else None


def _recipe(place: str) -> dict[str, Any]:
    """Return how and on which data a model was trained, where the record beside it says so."""
    record = read_record(place)
    recipe, inputs = record.get("recipe"), record.get("inputs")
    if not isinstance(recipe, Mapping):
        return {}
    data = {"data": dict(inputs)} if isinstance(inputs, Mapping) else {}
    return dict(recipe) | data | {"tokens": record.get("tokens")}
