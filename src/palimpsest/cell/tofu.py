"""A TOFU study: cells whose facts are TOFU's questions and whose models are given or trained here.

TOFU is the paper's boundary case: never-learned questions that were generated in another style lie
above what retraining reaches, and then the screen cannot tell what a model remembers. Questions
about authors that no model was taught have no such fault and are used where there are any. The
comparison with retrainings is made and reported either way.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from palimpsest.cell.frame import Frame, find_frame
from palimpsest.cell.launch import CellJob, RunOptions, raise_failures, run_cells
from palimpsest.cell.plan import CellPlan, Given, SourcedModel, mixtures, trained_models
from palimpsest.cell.planned import Listed, listed_methods
from palimpsest.cell.texts import CellTexts
from palimpsest.config.commands import TofuConfig
from palimpsest.config.load import as_dict
from palimpsest.config.plan import cell_id
from palimpsest.config.presets import PAPER_POOL
from palimpsest.config.sections import General, Injection, MethodGrid, Reacquisition, Unlearning
from palimpsest.errors import PlanError
from palimpsest.facts.files import Fact, as_jsonl
from palimpsest.facts.general import general_pieces
from palimpsest.facts.nonce import Triple, key_number
from palimpsest.facts.probes import bare_question, kind_of, tofu_probes
from palimpsest.facts.questions import Question, Testbed, audit_questions
from palimpsest.facts.tofu import PLAIN, Items, Tofu, draw_items, read_tofu, read_untaught
from palimpsest.methods import candidates, plugin_digests
from palimpsest.models.checkpoint import Outline, check_compatible, checkpoint_digests, outline
from palimpsest.models.tokenizer import token_lengths
from palimpsest.run.files import canonical, digest
from palimpsest.run.store import Run, Terms
from palimpsest.stats.models import Model, Role

OFFICIAL = ("locuslab/tofu_ft_phi-1.5", "locuslab/tofu_ft_retain90_phi-1.5")
"""Full and retain model of Phi-1.5, the only official pair; for forget10."""
GENERATED = "generated"
EVIDENCE = 3
"""Retained questions put before a prompt when the headroom is measured."""


@dataclass(frozen=True)
class TofuInputs:
    """A TOFU study checked on paper; builds the spec of each seed."""

    config: TofuConfig

    def cells(self) -> dict[str, int]:
        """Return the seed of each cell by its id."""
        return {cell_id(self.title, seed): seed for seed in range(self.config.seeds)}

    @property
    def title(self) -> str:
        """The base's name in tables: its id, or the last part of its path."""
        path = Path(self.config.base)
        return path.resolve().name if path.exists() else self.config.base

    def __call__(self, cell: str) -> CellPlan:
        config, seed = self.config, self.cells()[cell]
        models = [*self._models()]
        models += mixtures(models, self.rules)
        models += [
            SourcedModel(Model(name, Role.CANDIDATE), _given(place))
            for name, place in config.candidates
        ]
        sets = self.sets(seed)
        return CellPlan(
            id=cell,
            title=self.title,
            seed=seed,
            base=_given(config.base),
            setting=self.setting(cell, seed),
            rules=self.rules,
            models=tuple(models),
            methods=self.methods,
            plugins=tuple(plugin_digests(self.grids).items()),
            unlearning=Unlearning(
                config.unlearning_steps, config.learning_rate, config.learning_rate / 4
            ),
            oracle="reference",
            # Ids and kinds only: what is stored about a cell must not carry a question.
            facts=tuple((n, tuple((f.id, f.relation) for f in sets[n])) for n in sets),
        )

    def _models(self) -> Iterator[SourcedModel]:
        config = self.config
        if config.train:
            wanted = {need for method in self.methods for need in method.needs}
            yield from trained_models(config.draws, 0, general_only="general_only" in wanted)
            return
        full, retain = self.given()
        yield SourcedModel(Model("injected", Role.INJECTED), _given(full))
        for n, place in enumerate(retain):
            name = f"reference-{n}" if n else "reference"
            yield SourcedModel(Model(name, Role.REFERENCE, seed_no=n), _given(place))

    def given(self) -> tuple[str, tuple[str, ...]]:
        """Return the checkpoints of the full and retain models."""
        config = self.config
        return config.full or OFFICIAL[0], config.retain or (OFFICIAL[1],)

    @cached_property
    def rules(self) -> Any:
        return self.config.rules.without("reversed")  # questions of TOFU name no relation

    @property
    def grids(self) -> tuple[MethodGrid, ...]:
        config = self.config
        if config.candidates and not config.methods:
            return ()
        return tuple(MethodGrid(name) for name in config.methods) or PAPER_POOL

    @cached_property
    def methods(self) -> tuple[Any, ...]:
        return candidates(self.grids)

    # -- questions -------------------------------------------------------------------------------

    @cached_property
    def frame(self) -> Frame | None:
        """The text around questions and answers, where the settings ask for one."""
        return find_frame(self.outline.tokenizer, self.config.prompt)

    @property
    def form(self) -> str:
        """What prompts are made of questions with; in a frame, the question stands alone."""
        return PLAIN if self.frame is None else "{}"

    @cached_property
    def tofu(self) -> Tofu:
        return read_tofu(self.config.data or None, self.config.split, self.form)

    def items(self, seed: int) -> Items:
        """Return the items of a seed, so that every base is asked the same ones."""
        config = self.config
        return draw_items(
            self.tofu,
            config.forget_items,
            config.retain_items,
            f"tofu/seed{seed}",
            longest=config.longest,
            evidence=EVIDENCE,
        )

    def sets(self, seed: int) -> dict[str, tuple[Fact, ...]]:
        """Return the forget, retain and never-learned questions of a seed."""
        items = self.items(seed)
        return {"forget": items.forget, "retain": items.retain, "probe": self.probes(seed)[1]}

    def probes(self, seed: int) -> tuple[str, tuple[Fact, ...]]:
        """Return where the never-learned questions of a seed come from, and the questions."""
        config, items, key = self.config, self.items(seed), f"tofu/seed{seed}/probes"
        if config.probes_file:
            found = shuffled(read_untaught(Path(config.probes_file), self.form), key)
            if len(found) < config.probes:
                raise PlanError(f"{config.probes} asked for; has {len(found)}", key="probes_file")
            return "a file", found[: config.probes]
        sources = {"TOFU's holdout questions": shuffled(self.tofu.holdout, key)}
        if config.train:
            sources["TOFU's questions about authors left out of training"] = items.untaught
        for source, facts in sources.items():
            if len(facts) >= config.probes:
                return source, facts[: config.probes]
        taken = self.tofu.words()
        return GENERATED, tofu_probes(items.forget, config.probes, key, taken, self.form)

    def setting(self, cell: str, seed: int) -> CellTexts:
        """Return what the models of a seed are trained on and asked."""
        config, sets = self.config, self.sets(seed)
        named = {
            name: tuple(
                Triple(fact.id, "", kind_of(bare_question(_asked(fact))), "") for fact in facts
            )
            for name, facts in sets.items()
        }
        plain = audit_questions(sets)
        evidence = tuple(self._with_evidence(plain, self.items(seed).evidence))
        asked = plain if self.frame is None else self.frame.put(plain)
        facts = Testbed(named["forget"], named["retain"], named["probe"], asked)
        general = General(source=config.general, train_pieces=1)
        return CellTexts(
            seed_key=cell,
            facts=facts,
            general_train=(),
            general_scored=general_pieces(config.general, general.scored_pieces, f"{cell}/general"),
            # TOFU's models are fine-tuned on questions and nothing else.
            injection=Injection(config.steps, config.learning_rate, config.items, 0),
            reacquisition=Reacquisition(
                steps=config.reacquisition_steps, learning_rate=config.learning_rate
            ),
            general=general,
            # Models of TOFU's size are measured one at a time, so that workers share them evenly.
            engine=replace(config.engine, stack=1),
            with_evidence=evidence if len(evidence) > 1 else (),
            trains_first_prompts=True,
            sealed=False,
        )

    def _with_evidence(
        self, questions: Sequence[Question], evidence: Mapping[str, tuple[str, ...]]
    ) -> Iterator[Question]:
        """Yield the held-out forget questions, each after as much evidence as the base reads."""
        base = self.outline
        limit = getattr(base.config, "max_position_embeddings", None)
        offers: list[Question] = []
        for question in questions:
            if question.set == "forget" and question.pool == "evaluation":
                shown = evidence[question.fact]
                offers += [
                    replace(question, prompt="\n".join((*shown[:count], question.prompt)))
                    for count in range(len(shown), 0, -1)
                ]
        if self.frame is not None:
            offers = list(self.frame.put(offers))
        taken: set[str] = set()
        sizes = token_lengths(base.tokenizer, [offer.text for offer in offers])
        for offer, size in zip(offers, sizes):
            fits = not isinstance(limit, int) or size <= limit
            if fits and offer.id not in taken:
                taken.add(offer.id)
                yield offer

    @cached_property
    def outline(self) -> Outline:
        return outline(self.config.base)

    def remarks(self) -> Iterator[str]:
        """Yield what the never-learned questions are."""
        sources = sorted({self.probes(seed)[0] for seed in self.cells().values()})
        yield f"Probes: {' or '.join(sources)}."
        if GENERATED in sources:
            yield (
                "Generated questions share TOFU's style only in part, so that a retrained model "
                "may do better on forget questions than on them; TOFU's own holdout questions do "
                "not have this fault."
            )

    # -- what is fixed ---------------------------------------------------------------------------

    def terms(self) -> tuple[Terms, list[dict[str, Any]]]:
        config = as_dict(self.config)
        paths = ("data", "base", "full", "retain", "probes_file", "general", "out")
        for key in (*paths, "candidates", "methods"):
            config.pop(key)
        config["prompt"].pop("prompt_file")
        config["template"] = None if self.frame is None else self.frame.text
        config["remarks"] = list(self.remarks())
        inputs, heldout = {}, []
        # Facts and methods before any weights: what is wrong with them is found in a second.
        for cell, seed in self.cells().items():
            for name, facts in self.sets(seed).items():
                inputs[f"{name} facts of {cell}"] = digest(as_jsonl(facts))
            setting = self.setting(cell, seed)
            questions = setting.facts.questions
            heldout += [
                [cell, q.id, q.prompt, q.answer] for q in questions if q.pool == "evaluation"
            ]
        _ = self.methods
        inputs["base"] = checkpoint_digests(self.config.base).files
        if not self.config.train:
            full, retain = self.given()
            for n, place in enumerate((full, *retain)):
                inputs[f"given {n}"] = checkpoint_digests(place).files
        roster: list[dict[str, Any]] = [
            Listed(Model(name, Role.CANDIDATE, source=checkpoint_digests(place).files)).to_json()
            for name, place in self.config.candidates
        ]
        roster += listed_methods(self.methods, plugin_digests(self.grids))
        terms = Terms(
            kind="tofu",
            config=config,
            rules=as_dict(self.rules),
            seal={"commitment": digest(canonical(heldout)), "pool": "held-out questions"},
            inputs=inputs,
            cells=tuple(self.cells()),
        )
        return terms, roster


def run_tofu(config: TofuConfig, options: RunOptions) -> Run:
    """Run what is left of a TOFU study."""
    inputs = TofuInputs(config)
    if not config.train:
        full, retain = inputs.given()
        for place in (full, *retain, *dict(config.candidates).values()):
            check_compatible(inputs.outline, outline(place))
    terms, roster = inputs.terms()
    if any(entry.get("plugin") for entry in roster):
        from palimpsest.cell.models import try_plugins

        try_plugins(inputs(terms.cells[0]))
    run, outcome = run_cells(CellJob(inputs), Path(config.out), terms, roster, options)
    raise_failures(run, outcome)
    return run


def _given(place: str) -> Given:
    return Given(place, checkpoint_digests(place))


def shuffled(facts: Sequence[Fact], key: str) -> tuple[Fact, ...]:
    """Return the facts in an order that the key gives."""
    return tuple(sorted(facts, key=lambda fact: key_number(f"{key}/{fact.id}")))


def _asked(fact: Fact) -> str:
    return (fact.trained or fact.heldout)[0]
