"""An audit as a cell of stored steps: each model is loaded, asked, re-acquired and dropped in turn.

One model is in memory at a time, whatever the number of candidates; beside it only the injected
model's and the reference's log-probabilities at the asked positions. Each model is a step of the
run store, so an interrupted audit goes on with the model it had reached.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np

from palimpsest.criteria.headroom import Headroom, read_headroom
from palimpsest.criteria.measures import measure_cell
from palimpsest.criteria.screen import screen_candidates
from palimpsest.errors import ModelError, ScoreError, TrainingDiverged
from palimpsest.facts.questions import TRAINED_POOLS
from palimpsest.models.load import Loaded, check_compatible, load
from palimpsest.models.net import WholeNet
from palimpsest.run.store import Cell
from palimpsest.scoring.answers import Scores, Sheet, item_columns, make_sheet, score
from palimpsest.scoring.divergence import Teacher, record
from palimpsest.scoring.roundtrip import curve_columns, in_residual, reacquire
from palimpsest.study.audit_inputs import Asked, Inputs
from palimpsest.study.cell import Progress, Scored, stacked

BOTH = "scoring and re-acquiring"


class AuditCell:
    """Does the steps of an audit that are not done yet."""

    def __init__(self, inputs: Inputs, store: Cell, progress: Progress) -> None:
        self.inputs = inputs
        self.store = store
        self.setting = inputs.setting
        self._progress = progress
        self._order: list[str] = []
        self._total = len(inputs.models) + (inputs.told is not None)

    def run(self) -> Headroom | None:
        """Do what is left; give the headroom, if the facts carry evidence.

        The cell is left unfinished when the headroom says that no verdict is possible.
        """
        headroom = None
        if self.inputs.told is not None:
            self._do("headroom", "asking base and injected about evidence", self._headroom)
            headroom = self.headroom()
            if headroom is not None and headroom.regime == "inferable":
                return headroom
        for model in self.inputs.models:
            if model.role != "candidate":
                words = f"{'scoring' if model.role == 'base' else BOTH} {model.name}"
                self._do(f"model-{model.name}", words, partial(self._known, model))
        candidates = self.inputs.of("candidate")
        scoring = "scoring" if self.inputs.request.round_trip == "survivors" else BOTH
        for n, model in enumerate(candidates):
            self._do(_step("candidate", n), f"{scoring} {model.name}", partial(self._forward, n))
        back = self._going_back()
        self._total += len(back)
        for n in back:
            words = f"re-acquiring {candidates[n].name}"
            self._do(_step("return", n), words, partial(self._return, n))
        self._progress("putting the scores together", len(self._order), self._total)
        self._refuse_none_left()
        self.store.finish(self._summary(headroom), self._order)
        return headroom

    def headroom(self) -> Headroom | None:
        """Give the headroom from its stored step."""
        table, _ = self.store.get("headroom")
        return read_headroom(table["headroom"], self.inputs.plan.rules)

    def _do(self, name: str, words: str, action: Callable[[], None]) -> None:
        """Do a step unless it is stored; ``words`` tell the user what is being done."""
        if not self.store.done(name):
            self._progress(words, len(self._order), self._total)
            action()
            gc.collect()
        self._order.append(name)

    # -- the steps ---------------------------------------------------------------------------

    def _headroom(self) -> None:
        """Ask the base with and without evidence, and the injected model without."""
        told = self.inputs.told
        assert told is not None
        keys = {question.id for question in told.questions}
        plain = self._sheet([q for q in self.setting.facts.questions if q.id in keys])
        rows = []
        base, injected = self.inputs.models[:2]
        with self._model(base) as (_, net):
            for name, sheet in (("base", plain), ("evidence", told)):
                scores = score(net, sheet)[0]
                _check_finite(base, scores)
                rows.append(item_columns(name, "forward", sheet, scores))
        with self._model(injected) as (_, net):
            scores = score(net, plain)[0]
            _check_finite(injected, scores)
            rows.append(item_columns("injected", "forward", plain, scores))
        self.store.put("headroom", {"headroom": stacked(rows)})

    def _known(self, model: Asked) -> None:
        """Score base, injected or a reference; all but base go through the round trip."""
        made = Scored([], [])
        self._teachers()
        with self._model(model) as (loaded, net):
            self._ask(model, net, made)
            if model.role != "base":
                self._back(model, net, made)
            told = _told(loaded)
        self.store.put(f"model-{model.name}", made.tables(), {"models": {model.name: told}})

    def _forward(self, number: int) -> None:
        """Score a candidate; with it goes the round trip, unless that waits for the screen."""
        model = self.inputs.of("candidate")[number]
        made = Scored([], [])
        values: dict[str, Any] = {"candidates": [model.name]}
        self._teachers()
        try:
            with self._model(model) as (loaded, net):
                values["models"] = {model.name: _told(loaded)}
                self._ask(model, net, made)
                if self.inputs.request.round_trip == "all":
                    self._back(model, net, made)
        except (ModelError, ScoreError, TrainingDiverged) as error:
            made = Scored([], [])
            values["failed"] = {model.name: str(error)}
        self.store.put(_step("candidate", number), made.tables(), values)

    def _return(self, number: int) -> None:
        """Send a candidate that survived the screen through the round trip."""
        model = self.inputs.of("candidate")[number]
        made = Scored([], [])
        values: dict[str, Any] = {}
        self._teachers()
        try:
            with self._model(model) as (_, net):
                self._back(model, net, made)
        except (ModelError, ScoreError, TrainingDiverged) as error:
            made = Scored([], [])
            values["failed"] = {model.name: str(error)}
        self.store.put(_step("return", number), made.tables(), values)

    def _going_back(self) -> list[int]:
        """Give which candidates' round trips wait for the screen: those it does not exclude."""
        if self.inputs.request.round_trip == "all":
            return []
        failed = self._failed()
        names = [model.name for model in self.inputs.of("candidate")]
        scored = [name for name in names if name not in failed]
        if not scored:
            return []
        rules = self.inputs.plan.rules
        tables = [self.store.get(step)[0] for step in self._order if step != "headroom"]
        items = stacked([table["items"] for table in tables if "items" in table])
        measures = measure_cell(items, pool=rules.screen_pool)
        survivors = screen_candidates(measures, scored, rules).survivors
        return [number for number, name in enumerate(names) if name in survivors]

    # -- measuring ---------------------------------------------------------------------------

    def _ask(self, model: Asked, net: WholeNet, made: Scored) -> None:
        sheet = self.setting.sheet
        found = score(net, sheet, reference=self._reference, injected=self._injected[0])[0]
        _check_finite(model, found)
        made.items.append(item_columns(model.name, "forward", sheet, found))

    def _back(self, model: Asked, net: WholeNet, made: Scored) -> None:
        plan, sheet = self.inputs.plan.round_trip, self.setting.way_back
        back = reacquire(
            net,
            self.setting.way_back_steps,
            chunks=plan.chunks,
            learning_rate=plan.learning_rate,
            sheet=sheet,
            injected=self._injected[1],
        )[0]
        if back.diverged is not None:
            raise TrainingDiverged(
                back.diverged,
                f"re-acquisition of {model.name}; a learning rate below {plan.learning_rate:g} may "
                "help, if the forget set was learned with a smaller one",
            )
        _check_finite(model, back.scores)
        made.items.append(item_columns(model.name, "reacquired", sheet, back.scores))
        made.curves.append(curve_columns(model.name, back.curve))

    def _sheet(self, questions: Any) -> Sheet:
        plan = self.inputs.plan
        return make_sheet(
            self.setting.tokenizer,
            questions,
            piece_tokens=plan.general.piece_tokens,
            batch_tokens=plan.engine.batch_tokens,
            pad=self.setting.pad,
        )

    @contextmanager
    def _model(self, model: Asked) -> Iterator[tuple[Loaded, WholeNet]]:
        """Give a model ready to score and train; it is gone when the block ends."""
        request = self.inputs.request
        loaded = load(
            model.place, dtype=request.dtype, device=request.device, base=request.adapter_base
        )
        check_compatible(self.inputs.outline, loaded)
        loaded.model.requires_grad_(True)
        try:
            yield loaded, WholeNet(loaded.model)
        finally:
            # A module holds references to itself; without this the next one is loaded beside it.
            loaded.model.zero_grad(set_to_none=True)
            del loaded
            gc.collect()

    def _teachers(self) -> None:
        """Record what the frozen models say, before another model takes their place in memory."""
        _ = self._injected, self._reference

    @cached_property
    def _injected(self) -> tuple[Teacher, Teacher]:
        """The injected model on all questions, and on those asked along the way back."""
        with self._model(self.inputs.models[1]) as (_, net):
            sheets = (self.setting.sheet, self.setting.way_back)
            return record(net, sheets[0], in_residual), record(net, sheets[1], in_residual)

    @cached_property
    def _reference(self) -> Teacher | None:
        references = self.inputs.of("reference")
        if not references:
            return None
        with self._model(references[0]) as (_, net):
            return record(
                net,
                self.setting.sheet,
                lambda q: q.set in ("forget", "retain") and q.pool in TRAINED_POOLS,
            )

    # -- pieces ------------------------------------------------------------------------------

    def _values(self) -> Iterator[dict[str, Any]]:
        for step in self._order:
            yield self.store.get(step)[1]

    def _failed(self) -> dict[str, str]:
        failed: dict[str, str] = {}
        for values in self._values():
            failed |= values.get("failed", {})
        return failed

    def _refuse_none_left(self) -> None:
        failed = self._failed()
        candidates = self.inputs.of("candidate")
        if len(failed) == len(candidates):
            first = candidates[0].name
            raise ModelError(
                f"none of the {len(candidates)} candidates could be scored; the first, {first}: "
                f"{failed[first]}"
            )

    def _summary(self, headroom: Headroom | None) -> dict[str, Any]:
        """Give what is stored in ``cell.json``: what a study's cells have, and what was asked."""
        models: dict[str, dict[str, Any]] = {}
        for values in self._values():
            models |= values.get("models", {})
        failed = self._failed()
        base = models["base"]
        return {
            "model": "audit",
            "seed": 0,
            "family": base["family"],
            "gated": base["gated"],
            "parameters": base["parameters"],
            "base_digest": base["digest"],
            "revision": base["revision"],
            "draws": len(self.inputs.of("reference")),
            "candidates": [m.name for m in self.inputs.of("candidate") if m.name not in failed],
            "failed": failed,
            "digests": {name: told["digest"] for name, told in models.items()},
            "headroom": None if headroom is None else headroom_values(headroom),
            "facts": {
                name: [[fact.id, fact.subject, fact.relation, fact.answer] for fact in facts]
                for name, facts in self.inputs.sets.items()
            },
        }


def headroom_values(headroom: Headroom) -> dict[str, Any]:
    """Give the headroom as plain values."""
    return {
        "facts": headroom.facts,
        "estimate": headroom.estimate.estimate,
        "low": headroom.estimate.low,
        "high": headroom.estimate.high,
        "taught": headroom.taught,
        "regime": headroom.regime,
        "reason": headroom.reason,
    }


def _step(kind: str, number: int) -> str:
    return f"{kind}-{number:03d}"


def _told(loaded: Loaded) -> dict[str, Any]:
    return {
        key: getattr(loaded, key)
        for key in ("digest", "family", "gated", "parameters", "revision", "source")
    }


def _check_finite(model: Asked, scores: Scores) -> None:
    kl = np.concatenate([scores.kl_reference, scores.kl_injected])
    if not np.isfinite(scores.nll_sum).all() or np.isinf(kl).any():
        raise ModelError(
            f"{model.place}: gives a score that is not finite on at least one question; expected "
            "finite log-probabilities; check how it was saved, or load it with dtype float32"
        )
