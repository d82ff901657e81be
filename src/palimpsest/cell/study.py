"""A study: one cell per model and seed of a plan, trained and measured from base to verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from palimpsest import known
from palimpsest.cell.beacon import Beacon
from palimpsest.cell.estimate import Estimate
from palimpsest.cell.frame import Frame, find_frame
from palimpsest.cell.launch import Task
from palimpsest.cell.plan import CellPlan, Given, sourced, trained_source
from palimpsest.cell.planned import known_label_model, listed_methods, planned_cell
from palimpsest.cell.texts import CellTexts, own_facts, used_questions
from palimpsest.config.load import as_dict
from palimpsest.config.plan import Plan, model_title
from palimpsest.errors import PlanError, SealError
from palimpsest.facts.files import Fact, as_jsonl, check_sets
from palimpsest.facts.general import general_pieces, text_digest
from palimpsest.facts.questions import Testbed, draw_testbed, reversible
from palimpsest.facts.sealed import AuditPool, builtin_pool, check_commitment, read_pool, verify
from palimpsest.methods import candidates, plugin_digests
from palimpsest.models.checkpoint import Digests, checkpoint_digests, outline
from palimpsest.models.device import check_lora
from palimpsest.models.encode import start_remark
from palimpsest.models.sources import Kind, find_kind
from palimpsest.plugins import source_digest
from palimpsest.run.files import digest
from palimpsest.run.store import Roster, Terms
from palimpsest.scoring.measures import find_measures
from palimpsest.stats.words import count


@dataclass(frozen=True)
class StudyTask(Task):
    """A plan whose cells are trained here, and where they are stored."""

    config: Plan
    folder: Path = Path("runs")
    pool_file: str = ""
    """File of a sealed pool of the user's."""

    carried: ClassVar[tuple[str, ...]] = ("fixed", "bases", "sets")
    kind: ClassVar[str] = "study"

    def check(self) -> list[str]:
        """Raise for whatever can be known to be wrong before anything is trained."""
        config = self.config
        check_lora(config.engine.lora)
        known.chosen(config.known_label)
        _ = self.methods, self.measure_plugins, self.sealed if config.known_label else None
        for cell in config.cell_ids():  # whether there are names, texts and templates enough
            self.plan(cell)
        models = {n: outline(n) for n in config.models if find_kind(n) is not Kind.POCKET}
        remarks = {n: start_remark(m.tokenizer, m.config.model_type) for n, m in models.items()}
        return [f"{model_title(name)}: {text}" for name, text in remarks.items() if text]

    def build(self, cell: str) -> CellPlan:
        """Return the plan of a cell."""
        config, planned = self.config, planned_cell(*self.fixed, cell)
        place, _ = config.cell_ids()[cell]
        return sourced(
            planned,
            trained_source,
            base=Given(place, self.bases[place]),
            texts=self.texts(cell),
            methods=self.methods,
            plugins=tuple(self.plugins.items()),
            unlearning=config.unlearning,
            known_label=config.known_label,
            sealed_pool=self.sealed if config.known_label else None,
            oracle="reference",
            measure_plugins=tuple(self.measure_plugins.items()),
        )

    def fix(self) -> tuple[Terms, Roster]:
        """Return what the study fixes before it starts, and the list of its candidates."""
        config = as_dict(self.config)
        config.pop("methods")
        rules = self.config.rules
        inputs = {name: digests.files for name, digests in self.bases.items()}
        counts = config["facts"] | {"probe": config["facts"]["probes"]}
        if self.sets:
            inputs |= {f"{name} facts": digest(as_jsonl(f)) for name, f in self.sets.items()}
            counts = {name: len(facts) for name, facts in self.sets.items()}
            config["prompt"].pop("prompt_file")
            config["template"] = None if self.frame is None else self.frame.text
            if not reversible(self.sets["forget"]):
                rules = rules.without("reversed")
                config["rules"] = as_dict(rules)
        if self.config.general.source != "pocket":
            inputs["general text"] = text_digest(self.config.general.source)
        for name in filter(known.is_plugin, self.config.known_label):
            inputs[name] = self.plugins[name]
        entries = known.chosen(self.config.known_label)
        config["known_label_models"] = [known_label_model(entry).to_json() for entry in entries]
        config["fact_counts"] = {name: counts[name] for name in ("forget", "retain", "probe")}
        terms = Terms(
            kind=self.kind,
            config=config,
            rules=as_dict(rules),
            seal={
                "commitment": self.commitment,
                "pool": "own" if self.config.seal else "built-in",
            },
            inputs=inputs,
            cells=tuple(self.config.cell_ids()),
        )
        return terms, listed_methods(self.methods, self.plugins)

    def preview(self, estimate: Estimate, workers: int) -> list[str]:
        """Return what the study takes."""
        cells = count(len(self.config.cell_ids()), "cell", "cells")
        return [f"{cells} in {self.folder}: {estimate.line(workers)}"]

    # -- what cells are made of ------------------------------------------------------------------

    @cached_property
    def bases(self) -> Mapping[str, Digests]:
        """The digests of every model of the plan, by its name."""
        return {name: checkpoint_digests(name) for name in self.config.models}

    @cached_property
    def sets(self) -> Mapping[str, tuple[Fact, ...]]:
        """The facts of the user's files by set; empty where facts are invented."""
        files = self.config.facts.files
        named = {"probe" if name == "probes" else str(name): path for name, path in files}
        return check_sets(named) if named else {}

    def texts(self, cell: str, facts: Testbed | None = None) -> CellTexts:
        """Return the texts of a cell; too few names or too short a text is an error here.

        facts: of an experiment's own, in the place of those that the plan draws.
        """
        plan, counts = self.config, self.config.facts
        beacon = Beacon(plan.beacon, {"cell": cell}) if plan.beacon else None
        more: dict[str, Any] = {}
        if facts is None and self.sets:
            more = own_facts(self.sets, beacon, self.frame)
            more["trains_first_prompts"] = any(len(f.trained) < 2 for f in self.sets["retain"])
        else:
            facts = facts or draw_testbed(
                cell,
                counts.forget,
                counts.retain,
                counts.probes,
                counts.phrasings,
                probe_key=None if beacon is None else beacon.key("probes"),
            )
            more["facts"] = replace(facts, questions=used_questions(facts.questions, beacon))
        train, scored = plan.general.train_pieces, plan.general.scored_pieces
        pieces = general_pieces(plan.general.source, train + scored, f"{cell}/general")
        return CellTexts(
            seed_key=cell,
            general_train=pieces[:train],
            general_scored=pieces[train:],
            injection=plan.injection,
            reacquisition=plan.reacquisition,
            general=plan.general,
            engine=plan.engine,
            beacon=beacon,
            **more,
        )

    @cached_property
    def frame(self) -> Frame | None:
        """The text around questions and answers, where the plan asks for one."""
        (base, *_) = self.config.models
        return find_frame(outline(base).tokenizer, self.config.prompt)

    # -- methods, measures and the sealed pool ---------------------------------------------------

    @cached_property
    def methods(self) -> tuple[Any, ...]:
        """The methods of the plan with their knobs set."""
        return candidates(self.config.methods)

    @cached_property
    def plugins(self) -> dict[str, str]:
        """Digest of the source of every plug-in, by the name of the method or as it is named."""
        named = self.config.known_label
        return plugin_digests(self.config.methods) | known.plugin_digests(named)

    @cached_property
    def measure_plugins(self) -> dict[str, str]:
        """Digest of the source of every plug-in that takes measures, as the plan names it."""
        return {name: source_digest(find_measures(name)) for name in self.config.measures}

    @cached_property
    def commitment(self) -> str:
        """The seal: the user's, or that of the built-in pool."""
        seal = self.config.seal
        return check_commitment(seal) if seal else builtin_pool().commitment()

    @cached_property
    def sealed(self) -> tuple[AuditPool, str]:
        """The pool that known-label models are scored on, checked against the seal."""
        if not self.config.seal:
            if self.pool_file:
                raise PlanError(
                    "a pool file was given, but the plan has no seal; put what `palimpsest facts "
                    "seal` prints under this key before the run is created",
                    key="seal",
                )
            return builtin_pool(), self.commitment
        if not self.pool_file:
            raise SealError(
                "the plan seals a pool of your own; give its file with --pool to score "
                "known-label models on it"
            )
        return verify(read_pool(self.pool_file), self.commitment), self.commitment
