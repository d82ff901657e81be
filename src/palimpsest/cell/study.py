"""A study: one cell per model and seed of a plan, trained and measured from base to verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from palimpsest.cell.beacon import Beacon
from palimpsest.cell.launch import CellJob, RunOptions, raise_failures, run_cells
from palimpsest.cell.plan import CellPlan, Given, sourced, trained_source
from palimpsest.cell.planned import known_label_model, listed_methods, planned_cell
from palimpsest.cell.texts import CellTexts, used_questions
from palimpsest.config.load import as_dict
from palimpsest.config.plan import Plan
from palimpsest.errors import PlanError, SealError
from palimpsest.facts.files import as_jsonl, check_sets
from palimpsest.facts.general import general_pieces, text_digest
from palimpsest.facts.questions import (
    Question,
    Testbed,
    draw_testbed,
    elicitations,
    file_testbed,
)
from palimpsest.facts.sealed import AuditPool, builtin_pool, check_commitment, read_pool, verify
from palimpsest.known import chosen, is_plugin
from palimpsest.models.checkpoint import checkpoint_digests
from palimpsest.plugins import source_digest
from palimpsest.run.files import digest
from palimpsest.run.store import Run, Terms


@dataclass(frozen=True)
class StudySpecs:
    """Builds the spec of each cell of a plan, in whatever process it is needed."""

    plan: Plan
    pool_file: str = ""
    """File of a sealed pool of the user's."""

    def __call__(self, cell_id: str) -> CellPlan:
        plan = self.plan
        planned = planned_cell(*self.terms, cell_id)
        setting = study_setting(plan, cell_id)
        return CellPlan(
            id=cell_id,
            title=planned.title,
            seed=planned.seed,
            base=Given(plan.place(planned.title), checkpoint_digests(plan.place(planned.title))),
            setting=setting,
            rules=planned.rules,
            models=sourced(planned, trained_source),
            methods=self.methods,
            plugins=tuple(self.plugins.items()),
            unlearning=plan.unlearning,
            known_label=plan.known_label,
            sealed_pool=self.sealed if plan.known_label else None,
            oracle="reference",
            measures=planned.measures,
            measure_plugins=tuple(self.measure_plugins.items()),
            facts=tuple(
                (name, tuple((fact.id, fact.relation) for fact in facts))
                for name, facts in setting.facts.sets().items()
            ),
        )

    @cached_property
    def terms(self) -> tuple[Terms, list[dict[str, Any]]]:
        """What the study fixes before it starts, and the list of its candidates."""
        return study_terms(self.plan, self)

    @cached_property
    def methods(self) -> tuple[Any, ...]:
        from palimpsest.methods import candidates

        return candidates(self.plan.methods)

    @cached_property
    def plugins(self) -> dict[str, str]:
        """Digest of the source of every plug-in, by the name of the method or as it is named."""
        from palimpsest import known
        from palimpsest.methods import plugin_digests

        named = self.plan.known_label
        return plugin_digests(self.plan.methods) | known.plugin_digests(named)

    @cached_property
    def measure_plugins(self) -> dict[str, str]:
        from palimpsest.scoring.measures import find_measures

        return {name: source_digest(find_measures(name)) for name in self.plan.measures}

    @cached_property
    def sealed(self) -> tuple[AuditPool, str]:
        """The pool that known-label models are scored on, checked against the seal."""
        if not self.plan.seal:
            if self.pool_file:
                raise PlanError(
                    "a pool file was given, but the plan has no seal; put what `palimpsest facts "
                    "seal` prints under this key before the run is created",
                    key="seal",
                )
            return builtin_pool(), study_commitment(self.plan)
        if not self.pool_file:
            raise SealError(
                "the plan seals a pool of your own; give its file with --pool to score "
                "known-label models on it"
            )
        commitment = study_commitment(self.plan)
        return verify(read_pool(self.pool_file), commitment), commitment


def study_setting(plan: Plan, cell_id: str, facts: Testbed | None = None) -> CellTexts:
    """Return the texts of a cell; too few names or too short a text is an error here.

    facts: of an experiment's own, in the place of those that the plan draws.
    """
    counts, files = plan.facts, {str(name): path for name, path in plan.facts.files}
    beacon = Beacon(plan.beacon, {"cell": cell_id}) if plan.beacon else None
    otherwise: tuple[Question, ...] = ()
    if facts is None and files:
        facts, sets = file_testbed(files), check_sets(_named(files))
        otherwise = elicitations(sets["forget"], sets["retain"])
    elif facts is None:
        facts = draw_testbed(
            cell_id,
            counts.forget,
            counts.retain,
            counts.probes,
            counts.phrasings,
            probe_key=None if beacon is None else beacon.key("probes"),
        )
    train, scored = plan.general.train_pieces, plan.general.scored_pieces
    pieces = general_pieces(plan.general.source, train + scored, f"{cell_id}/general")
    return CellTexts(
        seed_key=cell_id,
        facts=replace(facts, questions=used_questions(facts.questions, beacon)),
        general_train=pieces[:train],
        general_scored=pieces[train:],
        injection=plan.injection,
        reacquisition=plan.reacquisition,
        general=plan.general,
        engine=plan.engine,
        beacon=beacon,
        asked_otherwise=otherwise,
        sealed=not files,
    )


def study_commitment(plan: Plan) -> str:
    """Return the seal of a study: the user's, or that of the built-in pool."""
    return check_commitment(plan.seal) if plan.seal else builtin_pool().commitment()


def study_terms(plan: Plan, specs: StudySpecs) -> tuple[Terms, list[dict[str, Any]]]:
    """Return what a study fixes before it starts, and the list of its candidates."""
    config = as_dict(plan)
    config.pop("methods")
    digests = {name: checkpoint_digests(plan.place(name)).files for name in plan.models}
    files = _named(dict(plan.facts.files))
    counts = {"forget": plan.facts.forget, "retain": plan.facts.retain, "probe": plan.facts.probes}
    for name, facts in (check_sets(files) if files else {}).items():
        digests[f"{name} facts"] = digest(as_jsonl(facts))
        counts[name] = len(facts)
    if plan.general.source != "pocket":
        digests["general text"] = text_digest(plan.general.source)
    for name in filter(is_plugin, plan.known_label):
        digests[name] = specs.plugins[name]
    known = [known_label_model(entry).to_json() for entry in chosen(plan.known_label)]
    config |= {"fact_counts": counts, "known_label_models": known}
    pool = "own" if plan.seal else "built-in"
    terms = Terms(
        kind="study",
        config=config,
        rules=as_dict(plan.rules),
        seal={"commitment": study_commitment(plan), "pool": pool},
        inputs=digests,
        cells=tuple(plan.cell_ids()),
    )
    return terms, listed_methods(specs.methods, specs.plugins)


def run_study(
    plan: Plan, out: Path | str, *, pool: Path | str = "", options: RunOptions | None = None
) -> Run:
    """Run what is left of a study; StudyFailed names the cells that did not finish."""
    specs = StudySpecs(plan, str(pool and Path(pool).resolve()))
    check_study(plan, specs)
    terms, roster = specs.terms
    if specs.plugins or specs.measure_plugins:
        from palimpsest.cell.models import try_plugins

        try_plugins(specs(terms.cells[0]))
    run, outcome = run_cells(CellJob(specs), Path(out), terms, roster, options or RunOptions())
    raise_failures(run, outcome)
    return run


def check_study(plan: Plan, specs: StudySpecs) -> None:
    """Raise for whatever can be known to be wrong before anything is trained."""
    from palimpsest.models.device import check_lora

    check_lora(plan.engine.lora)
    _ = specs.methods, specs.measure_plugins, specs.sealed if plan.known_label else None
    chosen(plan.known_label)
    for cell_id in plan.cell_ids():  # whether there are names, texts and templates enough
        study_setting(plan, cell_id)


def _named(files: Mapping[str, str]) -> dict[str, str]:
    return {"probe" if name == "probes" else name: path for name, path in files.items()}
