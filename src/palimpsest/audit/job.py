"""An audit as a graph of steps: each model is loaded, scored, re-acquired and dropped.

A worker has one model in memory at a time, whatever the number of candidates; beside it only the
log-probabilities of the injected model and of the first reference. Each model is a step, so an
interrupted audit resumes with the models that are left, and several workers share them.

::

    headroom -> dose -> model-injected, model-reference…, control-50…, candidate-NNN -> return-NNN

``headroom`` exists where forget facts carry evidence, ``dose`` where the learning rate of
re-acquisition is chosen on a reference, ``return-NNN`` where only survivors of the screen are sent
through the round trip.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from palimpsest.audit.inputs import AuditModel, Inputs, sheet_of
from palimpsest.audit.request import LADDER
from palimpsest.cell.graph import Task, TaskWork, control_name
from palimpsest.cell.measure import (
    Instrument,
    Measured,
    Teachers,
    injected_teachers,
    not_finite,
    reference_teacher,
    stacked,
    tables,
)
from palimpsest.cell.setting import Setting
from palimpsest.cell.sources import mixed_net
from palimpsest.cell.work import DESCRIBED
from palimpsest.challenge import Unavailable
from palimpsest.criteria.axes import chosen
from palimpsest.criteria.headroom import Headroom, read_headroom
from palimpsest.criteria.measures import measure_cell
from palimpsest.criteria.screen import screen_candidates
from palimpsest.errors import ModelError, ScoreError, TrainingDiverged
from palimpsest.facts.elicitation import ASKED
from palimpsest.models.load import Loaded, resolve, state_digest
from palimpsest.models.net import WholeNet
from palimpsest.plan import CellPlan
from palimpsest.run.graph import Halt, Step
from palimpsest.run.store import Cell
from palimpsest.scoring.answers import Sheet, item_columns, score
from palimpsest.scoring.elicitation import Elicitation
from palimpsest.scoring.roundtrip import reacquire, summary

SPARE = 0.1
"""How much further than ``rules.dose_fraction`` the first reference must come when the learning
rate is chosen on it: the other references may come less far."""
TRIP = 4.0
"""Expected time of a round trip, in forward passes over the questions."""


@dataclass(frozen=True)
class AuditJob:
    """The work of an audit, for whichever process does it."""

    inputs: Inputs

    def cell(self, cell_id: str) -> "AuditWork":
        return AuditWork(self.inputs)


class AuditWork(TaskWork):
    """The steps of an audit."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.rules = inputs.plan.rules
        self.device = inputs.request.device
        super().__init__()

    def tasks(self) -> list[Task]:
        """Return the steps in plan order."""
        inputs, tasks, first = self.inputs, [], tuple[str, ...]()
        everybody = inputs.request.round_trip == "all"

        def add(
            name: str, words: str, needs: tuple[str, ...], cost: float, action: Callable[..., None]
        ) -> tuple[str, ...]:
            tasks.append(Task(Step(name, words, needs, cost), action))
            return (name,)

        if inputs.with_evidence is not None:
            words = "scoring base and injected with evidence"
            first = add("headroom", words, (), 1.0, self._headroom)
        rate = first
        if inputs.request.chooses_rate:
            words = "choosing the learning rate of re-acquisition"
            rate = add("dose", words, first, 1 + len(LADDER) * TRIP / 2, self._dose)
        both = "scoring and re-acquiring"
        for model in inputs.models:
            if model.role != "candidate":
                action = partial(self._known, model)
                add(f"model-{model.name}", f"{both} {model.name}", rate, 1 + TRIP, action)
        for share in self.rules.control_shares if inputs.of("reference") else ():
            words = f"{both} the control with {share:.0%} of the injected weights"
            add(control_name(share), words, rate, 1 + TRIP, partial(self._control, share))
        candidates = inputs.of("candidate")
        screened: tuple[str, ...] = ("model-base",)
        for number, model in enumerate(candidates):
            words = f"{both if everybody else 'scoring'} {model.name}"
            needs, cost = (rate, 1 + TRIP) if everybody else (first, 1.0)
            action = partial(self._candidate, model, everybody)
            screened += add(_numbered("candidate", number), words, needs, cost, action)
        for number, model in enumerate(() if everybody else candidates):
            words = f"re-acquiring {model.name}, if it survived the screen"
            action = partial(self._return, model)
            add(_numbered("return", number), words, (*rate, *screened), TRIP, action)
        return tasks

    def finish(self, cell: Cell) -> dict[str, Any]:
        """Return what ``cell.json`` says: the models with their roles, and what was asked."""
        roles = self.roles(cell)
        self._refuse_copies(roles)
        self._refuse_none_left(roles)
        base = roles["base"]
        described = {key: base.pop(key) for key in DESCRIBED}
        return described | {
            "model": "audit",
            "seed": 0,
            "base_digest": base["digest"],
            "models": roles,
            "dose": cell.get("dose")[1] if "dose" in self._tasks else None,
            "headroom": headroom_values(stored_headroom(self.inputs, cell)),
            "facts": {
                name: [[fact.id, fact.subject, fact.relation, fact.answer] for fact in facts]
                for name, facts in self.inputs.sets.items()
            },
        }

    # -- the steps ---------------------------------------------------------------------------

    def _headroom(self, step: str) -> None:
        """Score base with and without evidence, and injected without."""
        sheet = self.inputs.with_evidence
        assert sheet is not None
        keys = {question.id for question in sheet.questions}
        setting = self.inputs.setting
        plain = sheet_of(setting, [q for q in setting.facts.questions if q.id in keys])
        base, injected = self.inputs.models[:2]
        rows = []
        with self.inputs.net(base) as (_, net):
            rows.append(self._asked(base, "base", net, plain))
            rows.append(self._asked(base, "evidence", net, sheet))
        with self.inputs.net(injected) as (_, net):
            rows.append(self._asked(injected, "injected", net, plain))
        self.cell.put(step, {"headroom": stacked(rows)})
        headroom = stored_headroom(self.inputs, self.cell)
        if headroom is not None and headroom.regime == "inferable":
            raise Halt(f"not_identifiable: {headroom.reason}", headroom_values(headroom) or {})

    def _dose(self, step: str) -> None:
        """Choose the smallest learning rate that brings the first reference far enough."""
        reference = self.inputs.of("reference")[0]
        teacher, sheet = self.teachers.way_back, self.inputs.setting.way_back
        with self.inputs.net(self.inputs.models[1]) as (_, net):
            level = summary(sheet, score(net, sheet, injected=teacher)[0])["forget_heldout_nll"]
        tried: list[dict[str, Any]] = []
        for rate in LADDER:
            with self.inputs.net(reference) as (_, net):
                back = reacquire(
                    net,
                    self.inputs.setting.way_back_steps,
                    chunks=self.inputs.request.chunks,
                    learning_rate=rate,
                    sheet=sheet,
                    injected=teacher,
                    optimiser=self.inputs.setting.optimiser,
                )[0]
            if back.diverged is not None:
                break
            before, after = (back.curve[n]["forget_heldout_nll"] for n in (0, -1))
            reached = (before - after) / (before - level) if before > level else 0.0
            tried.append({"learning_rate": rate, "reached": reached})
            if reached >= self.rules.dose_fraction + SPARE or before <= level:
                break
        if not tried:
            raise TrainingDiverged(
                back.diverged or 0,
                f"re-acquisition of {reference.place} at learning rate {rate:g}, the smallest "
                "tried; give one with --learning-rate",
            )
        best = max(tried, key=lambda entry: entry["reached"])
        values = {"learning_rate": best["learning_rate"], "tried": tried, "of": reference.name}
        self.cell.put(step, values=values)

    def _known(self, model: AuditModel, step: str) -> None:
        """Measure base, injected or a reference, with which every other model is compared."""
        result = Measured(model.name)
        with self._measuring(model) as (instrument, loaded, net):
            role = self._role(model, loaded)
            instrument.forward([result], net)
            instrument.further([result], net)
            if result.failure is None:
                instrument.back([result], net)
        self._check(model, result)
        self.cell.put(step, tables([result]), {"models": {model.name: role}})

    def _control(self, share: float, name: str) -> None:
        """Measure the first reference with a share of the injected weights mixed in."""
        reference, injected = self.inputs.of("reference")[0], self.inputs.models[1]
        role: dict[str, Any] = {"role": "control", "share": share, "of": reference.name}
        result = Measured(name)
        instrument = self._instrument()
        try:
            for model in (reference, injected):
                if resolve(model.place).kind == "gguf":
                    raise Unavailable(f"{model.place} is a .gguf file, whose weights are quantised")
            given = (self.inputs.given(reference), self.inputs.given(injected))
            with mixed_net(*given, share, self.inputs.outline) as (loaded, net):
                role["digest"] = state_digest(loaded.model.state_dict())
                instrument.forward([result], net)
                instrument.further([result], net)
                instrument.back([result], net)
            if result.failure is not None:
                role["failure"] = result.failure.values()
        except Unavailable as error:
            role["failure"] = {"kind": "unavailable", "reason": str(error)}
        self.cell.put(name, tables([result]), {"models": {name: role}})

    def _candidate(self, model: AuditModel, round_trip: bool, step: str) -> None:
        """Score a candidate; with it goes the round trip, unless that waits for the screen."""
        values, results = self._attempt(model, forward=True, back=round_trip)
        self.cell.put(step, tables(results), values)

    def _return(self, model: AuditModel, step: str) -> None:
        """Send a candidate through the round trip, if the screen did not exclude it."""
        values: dict[str, Any] = {}
        results: list[Measured] = []
        if model.name in self._survivors():
            values, results = self._attempt(model, forward=False, back=True)
        self.cell.put(step, tables(results), values)

    def _attempt(
        self, model: AuditModel, *, forward: bool, back: bool
    ) -> tuple[dict[str, Any], list[Measured]]:
        """Measure a candidate; what makes that impossible is its failure and ends nothing."""
        result = Measured(model.name)
        role = {"role": "candidate", "method": None, "knobs": None, "kind": "other"}
        failure: Mapping[str, Any] | None = None
        try:
            with self._measuring(model) as (instrument, loaded, net):
                role |= self._role(model, loaded)
                if forward:
                    instrument.forward([result], net)
                    instrument.further([result], net)
                if back and result.failure is None:
                    instrument.back([result], net)
            failure = None if result.failure is None else result.failure.values()
        except (ModelError, ScoreError) as error:
            failure = {"kind": "model_error", "reason": str(error)}
        if failure is not None:
            return {"models": {model.name: role | {"failure": failure}}}, []
        return {"models": {model.name: role}}, [result]

    def _survivors(self) -> tuple[str, ...]:
        """Return the candidates that the screen does not exclude."""
        candidates = self.inputs.of("candidate")
        steps = [_numbered("candidate", number) for number in range(len(candidates))]
        rows = [self.cell.get(step)[0].get("items") for step in ("model-base", *steps)]
        scored = [model.name for model, items in zip(candidates, rows[1:]) if items is not None]
        if not scored:
            return ()
        items = stacked([table for table in rows if table is not None])
        measures = measure_cell(items, pool=self.rules.screen_pool)
        return screen_candidates(measures, scored, self.rules).survivors

    # -- measuring ---------------------------------------------------------------------------

    @contextmanager
    def _measuring(self, model: AuditModel) -> Iterator[tuple[Instrument, Loaded, WholeNet]]:
        instrument = self._instrument()  # the frozen models come first: one in memory at a time
        with self.inputs.net(model) as (loaded, net):
            yield instrument, loaded, net

    def _instrument(self) -> Instrument:
        return Instrument(self._setting(), self.teachers, self._gauge)

    def _setting(self) -> Setting:
        """Return the setting with the learning rate that was chosen, where one was."""
        setting = self.inputs.setting
        if "dose" not in self._tasks or not self.cell.done("dose"):
            return setting
        rate = self.cell.get("dose")[1]["learning_rate"]
        chosen = replace(setting, cell=CellPlan("audit", 0, self.inputs.request.plan(rate)))
        for name in ("sheet", "way_back", "way_back_steps"):  # they do not depend on the rate
            chosen.__dict__[name] = getattr(setting, name)
        return chosen

    @cached_property
    def _gauge(self) -> Elicitation | None:
        """What asks for the forget facts in the other ways that the axes of the rules need."""
        wanted = {axis.measure for axis in chosen(self.rules)}
        sheet = self.inputs.setting.elicited([kind for kind in ASKED if kind in wanted])
        return Elicitation(sheet) if sheet.questions else None

    @cached_property
    def teachers(self) -> Teachers:
        """What the injected model and the first reference say, recorded once per worker."""
        with self.inputs.net(self.inputs.models[1]) as (_, net):
            injected = injected_teachers(net, self.inputs.setting)
        references = self.inputs.of("reference")
        if not references:
            return Teachers(*injected)
        with self.inputs.net(references[0]) as (_, net):
            return Teachers(*injected, reference_teacher(net, self.inputs.setting))

    def _asked(self, model: AuditModel, name: str, net: WholeNet, sheet: Sheet) -> dict[str, Any]:
        scores = score(net, sheet)[0]
        self._check(model, Measured(name, failure=not_finite(scores)))
        return item_columns(name, "forward", sheet, scores)

    def _role(self, model: AuditModel, loaded: Loaded) -> dict[str, Any]:
        role: dict[str, Any] = {"role": model.role, "digest": loaded.digest}
        if model.role == "reference":
            role["draw"] = self.inputs.of("reference").index(model)
        elif model.role == "base":
            role |= {key: getattr(loaded, key) for key in DESCRIBED}
        return role

    def _check(self, model: AuditModel, result: Measured) -> None:
        """Raise for a model that the audit cannot do without, with its name and place."""
        failure = result.failure
        if failure is None:
            return
        what = model.name if model.role != "reference" else f"{model.name} ({model.place})"
        if failure.step is not None:
            raise TrainingDiverged(failure.step, f"{what}: {failure.reason}")
        raise ModelError(f"{model.name}, {model.place}: {failure.reason}")

    # -- the end -----------------------------------------------------------------------------

    def _refuse_copies(self, roles: Mapping[str, Mapping[str, Any]]) -> None:
        """Refuse a reference whose tensors are another model's, in whatever files they came."""
        for reference in self.inputs.of("reference"):
            mine = roles[reference.name]["digest"]
            for name, role in roles.items():
                if name not in (reference.name, "base") and role.get("digest") == mine:
                    raise ModelError(
                        f"references: {reference.place} has the weights of {name}; expected an "
                        "independent retraining without the forget set; leave it out"
                    )

    def _refuse_none_left(self, roles: Mapping[str, Mapping[str, Any]]) -> None:
        names = [model.name for model in self.inputs.of("candidate")]
        if all("failure" in roles[name] for name in names):
            reason = roles[names[0]]["failure"]["reason"]
            raise ModelError(
                f"none of the {len(names)} candidates could be scored; the first, {names[0]}: "
                f"{reason}"
            )


def stored_headroom(inputs: Inputs, cell: Cell) -> Headroom | None:
    """Return the headroom from the stored scores, None where it was not measured."""
    if inputs.with_evidence is None:
        return None
    table = cell.table("headroom") if cell.ended() else cell.get("headroom")[0]["headroom"]
    return read_headroom(table, inputs.plan.rules)


def headroom_values(headroom: Headroom | None) -> dict[str, Any] | None:
    """Return the headroom as plain values, None where it was not measured."""
    if headroom is None:
        return None
    return {
        "facts": headroom.facts,
        "estimate": headroom.estimate.estimate,
        "low": headroom.estimate.low,
        "high": headroom.estimate.high,
        "true": None if headroom.true is None else headroom.true.estimate,
        "taught": headroom.taught,
        "regime": headroom.regime,
        "reason": headroom.reason,
    }


def _numbered(kind: str, number: int) -> str:
    return f"{kind}-{number:03d}"
