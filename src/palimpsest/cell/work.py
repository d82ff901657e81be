"""The work of a study's cell: measure the known models, references, controls, candidates, panel."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from palimpsest.cell.bench import Bench, Roles, candidate_role
from palimpsest.cell.graph import (
    PANEL,
    Costs,
    Task,
    chunks,
    control_name,
    descendants,
    reference_name,
)
from palimpsest.cell.measure import (
    Instrument,
    Measured,
    Teachers,
    injected_teachers,
    reference_teacher,
    tables,
)
from palimpsest.cell.sources import Given, State, save_weights
from palimpsest.challenge import Entry, Schedule, Unavailable, Workshop, chosen, interpolated
from palimpsest.challenge.models import Interpolated
from palimpsest.criteria.catalogue import measures_of
from palimpsest.errors import MethodError, TrainingDiverged
from palimpsest.facts.elicitation import ASKED
from palimpsest.facts.sealed import AuditPool, Commitment, builtin_pool, verify
from palimpsest.methods.context import Method
from palimpsest.methods.running import Failure
from palimpsest.models.load import state_digest
from palimpsest.models.train import TextBatch
from palimpsest.plan import CellPlan
from palimpsest.run.graph import Step
from palimpsest.run.store import Cell
from palimpsest.scoring.answers import Scores, Sheet
from palimpsest.scoring.elicitation import Elicitation
from palimpsest.scoring.exam import Exam
from palimpsest.scoring.measures import Measurer

DESCRIBED = ("family", "gated", "parameters", "revision")
"""What is recorded of a cell's base beside its digest."""

FROM_PARTS = ("forget_only", "general_only")
"""Models trained on a part of the stream, which methods may use."""


class StudyWork(Bench):
    """A whole cell: everything that a verdict, a study's tables and the panel are made of."""

    def __init__(
        self,
        plan: CellPlan,
        *,
        draws: int = 1,
        retrainings: int = 0,
        given: Mapping[str, Given] | None = None,
        inputs: Mapping[str, str] | None = None,
        pool: AuditPool | None = None,
        commitment: Commitment | None = None,
    ) -> None:
        self.pool = pool or builtin_pool()
        self.commitment = commitment
        self.entries: tuple[Entry, ...] = ()
        if plan.plan.panel.enabled:
            self.entries = chosen(plan.plan.panel.models)
        super().__init__(plan, descendants(draws, retrainings), given, inputs)

    def tasks(self) -> list[Task]:
        """Return the steps of the cell in plan order."""
        plan = self.plan.plan
        cost, stack = Costs(plan), plan.engine.stack
        measuring = not set(measures_of(plan.measures, plan.rules)) <= set(ASKED)
        teachers = ("injected", "reference", *((self._teacher,) if measuring else ()))
        steps = super().tasks()

        def add(
            name: str,
            words: str,
            models: Sequence[str],
            expected: float,
            action: Callable[[str], None],
        ) -> None:
            needs = self.needs(*teachers, *models)
            steps.append(Task(Step(name, words, needs, expected), action))

        known = [name for name in ("injected", *FROM_PARTS) if name in self.sources]
        add(
            "score-known", "measuring base and injected model", known, 3 * cost.measure, self._known
        )
        for role in ("reference", "retraining"):
            names = [model.name for model in self.planned if model.role == role]
            for number, group in enumerate(chunks(names, stack)):
                words = f"measuring {', '.join(group)}"
                action = partial(self._several, group, role == "reference")
                expected = len(group) * cost.measure
                add(f"score-{role}s-{number:02d}", words, group, expected, action)
        shares = plan.rules.control_shares
        if shares:
            expected = len(shares) * cost.measure
            add("controls", "measuring the controls", (), expected, self._controls)
        for name, methods in self.method_groups("candidates"):
            words = f"{methods[0].name}: making and measuring {len(methods)}"
            expected = len(methods) * (cost.measure + cost.unlearn)
            add(name, words, FROM_PARTS, expected, partial(self._candidates, methods))
        if self.entries:
            models = [name for entry in self.entries for name in entry.needs]
            expected = len(self.entries) * cost.measure
            add("panel", "measuring the known-label models", models, expected, self._panel)
        return steps

    def finish(self, cell: Cell) -> dict[str, Any]:
        summary = super().finish(cell)
        base = summary["models"]["base"]
        summary |= {name: base.pop(name) for name in DESCRIBED}
        for role in summary["models"].values():
            role.pop("weights", None)  # the name of a step's file; the cell's is the model's
        facts = {
            name: [[fact.id, fact.subject, fact.relation, fact.object] for fact in triples]
            for name, triples in self.setting.facts.sets().items()
        }
        if self.setting.drawn is not None:
            summary["beacon"] = self.setting.drawn.record()
        return summary | {"base_digest": base["digest"], "facts": facts, "headroom": None}

    def keep(self) -> dict[str, tuple[str, str]]:
        kept = super().keep()
        for step in self.steps:
            for name, role in self.cell.get(step.name)[1].get("models", {}).items():
                if file := role.get("weights"):
                    kept[f"{name}.safetensors"] = (step.name, file)
        return kept

    # -- the steps ---------------------------------------------------------------------------

    def _known(self, step: str) -> None:
        """Measure base and injected; without round trip, the models that vectors are made of."""
        roles: Roles = {"base": {"role": "base", "digest": state_digest(self.base)}}
        roles["base"] |= {name: getattr(self.loaded, name) for name in DESCRIBED}
        roles |= self._given_roles(("injected",))
        results = self._through({name: self.state(name) for name in ("base", "injected")})
        parts = {name: self.state(name) for name in FROM_PARTS if name in self.sources}
        results += self._through(parts, round_trip=False)
        for result in results:
            result.check()
        self._store(step, results, roles)

    def _several(self, names: Sequence[str], needed: bool, step: str) -> None:
        """Measure references, which the cell needs, or fresh retrainings, which may fail."""
        roles = self._given_roles(names)
        results = self._through({name: self.state(name) for name in names})
        if needed:
            for result in results:
                result.check()
        self._store(step, results, roles)

    def _controls(self, step: str) -> None:
        """Measure the reference with known shares of the injected weights mixed in."""
        reference, injected = self.state("reference"), self.state("injected")
        roles: Roles = {}
        states: dict[str, State] = {}
        for share in self.plan.plan.rules.control_shares:
            name = control_name(share)
            roles[name] = {"role": "control", "share": share, "of": "reference"}
            state = interpolated(reference, injected, 1.0 - share)
            try:
                roles[name]["digest"] = state_digest(state)
                states[name] = state
            except Unavailable as error:
                roles[name]["failure"] = {"kind": "unavailable", "reason": str(error)}
        self._store(step, self._through(states), roles)

    def _candidates(self, group: Sequence[Method], step: str) -> None:
        """Make a group of candidates, measure them, and drop their weights."""
        roles: Roles = {}
        results: list[Measured] = []
        for made in self.made(group):
            states: dict[str, State] = {}
            for name, method, result in made:
                roles[name] = candidate_role(method)
                if isinstance(result, Failure):
                    roles[name]["failure"] = {"kind": result.kind, "reason": result.reason}
                else:
                    roles[name]["digest"] = state_digest(result)
                    states[name] = result
                    if self.plan.plan.engine.keep_candidates:
                        file = f"candidate_{len(roles)}.safetensors"
                        roles[name]["weights"] = file
                        self.cell.put_file(step, file, partial(save_weights, result))
                if (cost := self.cost(name)) is not None:
                    roles[name]["cost"] = cost
            del made, result
            results += self._through(states, round_trip=self.goes_back)
        self._store(step, results, roles)

    def goes_back(self, scores: Sequence[Scores]) -> bool:
        """Return whether candidates with these scores go through the round trip; here all do."""
        return True

    def _panel(self, step: str) -> None:
        """Open the sealed pool for the known-label models, then score them on it, once."""
        known = ("base", "injected", "reference")
        digests = {name: state_digest(self.state(name)) for name in known}
        roles: Roles = {}
        states: dict[str, State] = {}
        again: list[Entry] = []
        for entry in self.entries:
            roles[entry.model] = entry.role()
            try:
                built = entry.build(self.workshop)
            except (Unavailable, MethodError, TrainingDiverged) as error:
                roles[entry.model]["failure"] = {"kind": "unavailable", "reason": str(error)}
                continue
            if not isinstance(built, Mapping):
                roles[entry.model]["wrapper"] = True
            state = built if isinstance(built, Mapping) else built.state()
            digests[entry.model] = roles[entry.model]["digest"] = state_digest(state)
            if isinstance(built, Interpolated) or (self.nets.stacked and state is built):
                states[entry.model] = state
            else:  # built again when it is measured, so that one is in memory at a time
                again.append(entry)
            del built, state
        if self.commitment is not None:
            if self.commitment.nonce:  # one that its file keeps was checked when the file was read
                verify(self.pool, self.commitment)
            self.cell.open_seal(step, str(self.commitment), digests)
        sealed = self.setting.pool_sheet("audit", self.pool)
        results: list[Measured] = []
        for names in chunks(known, self.nets.stack):
            asked = [Measured(name) for name in names]
            net = self.nets([self.state(name) for name in names])
            self.instrument.forward(asked, net, sealed)
            results += asked
        for result in results:
            result.check()
        results += self._through(states, also=[sealed])
        for entry in again:
            built = entry.build(self.workshop)
            net = self.nets([built]) if isinstance(built, Mapping) else built
            results += self.instrument.measure([entry.model], net, also=[sealed])
        for result in results:
            if result.failure is not None and result.failure.kind == "diverged":
                # A known-label model too damaged to be trained is judged on its forward scores.
                roles[result.name]["diverged"] = result.failure.step
                result.failure = None
        self._store(step, results, roles)

    # -- pieces ------------------------------------------------------------------------------

    @cached_property
    def instrument(self) -> Instrument:
        """What measures the models; records first what the frozen models say."""
        reference = reference_teacher(self.nets([self.state("reference")]), self.setting)
        injected = injected_teachers(self.nets([self.state("injected")]), self.setting)
        return Instrument(self.setting, Teachers(*injected, reference), self.gauge)

    @property
    def _teacher(self) -> str:
        """The reference that criteria may use: the second, since mixtures are made of the first and
        the injected model shares its draw."""
        second = reference_name(1)
        return second if second in self.sources else "reference"

    @cached_property
    def gauge(self) -> Measurer | Elicitation | None:
        """What takes the plan's further measures; None where it asks for none."""
        plan, setting = self.plan.plan, self.setting
        wanted = measures_of(plan.measures, plan.rules)
        if not wanted:
            return None
        if set(wanted) <= set(ASKED):
            return Elicitation(setting.elicited(wanted))
        exam = Exam(
            tokenizer=self.loaded.tokenizer,
            facts=setting.facts,
            general=setting.general_train,
            seed_key=self.plan.id,
            pad=setting.pad,
            learning_rate=plan.round_trip.learning_rate,
            piece_tokens=plan.general.piece_tokens,
            net=self.nets,
            state=self.state,
            reference=self._teacher,
        )
        return Measurer(exam, wanted)

    @cached_property
    def workshop(self) -> Workshop:
        """What known-label models are built from."""
        tokens = {t for text in self.setting.lesson("forget") for t in text.ids[text.start :]}
        plan, sets = self.plan.plan, self.setting.facts.sets()
        return Workshop(
            state=self.state,
            nets=self.nets,
            tokenizer=self.loaded.tokenizer,
            facts={name: sets[name] for name in ("forget", "retain")},
            seen={name: self.setting.seen(name) for name in ("forget", "retain")},
            answers=tuple(sorted(tokens)),
            embedding=self.loaded.embedding,
            penalty=plan.panel.penalty,
            context=lambda: self.context,
            schedule=self._published,
            redrawn=self._redrawn,
            general=self.setting.general_train,
            piece_tokens=plan.general.piece_tokens,
            steps=plan.unlearning.steps,
            rate=plan.unlearning.learning_rate,
            injection_rate=plan.injection.learning_rate,
            seed_key=self.plan.id,
        )

    def _published(self) -> Schedule:
        """Return re-acquisition as an adversary knows it beforehand."""
        plan, setting = self.plan.plan.round_trip, replace(self.setting, drawn=None)
        return Schedule(setting.way_back_steps, plan.learning_rate, plan.chunks)

    def _redrawn(self) -> list[list[TextBatch]]:
        """Return the batches of a retraining that is no reference, for the panel."""
        stream = self.setting.stream(PANEL).without("forget")
        return self.setting.injection_steps(stream)

    def _through(
        self,
        states: dict[str, State],
        *,
        round_trip: bool | Callable[[Sequence[Scores]], bool] = True,
        also: Sequence[Sheet] = (),
    ) -> list[Measured]:
        """Measure models a stack at a time.

        ``states`` is emptied on the way: a large model's weights are not kept beside its net.
        """
        instrument = self.instrument  # before a net that shares the student is made
        results: list[Measured] = []
        for names in chunks(tuple(states), self.nets.stack):
            net = self.nets([states.pop(name) for name in names])
            results += instrument.measure(names, net, round_trip=round_trip, also=also)
        return results

    def _store(self, step: str, results: Sequence[Measured], roles: Roles) -> None:
        """Store the rows of the models that were measured, and why the others were not."""
        for result in results:
            if result.failure is not None:
                roles.setdefault(result.name, {})["failure"] = result.failure.values()
        self.cell.put(step, tables(results), {"models": roles})

    def _given_roles(self, names: Sequence[str]) -> Roles:
        """Return the roles of those of the models that were given; a training stores its own."""
        roles: Roles = {}
        for model in self.planned:
            if model.name in names and model.name in self.given:
                roles[model.name] = model.described(state_digest(self.state(model.name)))
        return roles
