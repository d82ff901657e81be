"""One cell of a TOFU study: a testbed cell whose facts are TOFU's and whose models may be given.

Beside the steps of every cell there is the headroom: the base is asked the held-out forget
questions after similar questions and answers of authors that stay, which is what a retrained model
has to infer from.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from palimpsest.criteria.headroom import read_headroom
from palimpsest.criteria.ranktest import rank_test
from palimpsest.errors import ModelError
from palimpsest.methods.context import State
from palimpsest.models.load import check_compatible, load, state_digest
from palimpsest.run.store import Cell
from palimpsest.scoring.answers import Floats, Scores, item_columns, score
from palimpsest.study.audit_cell import headroom_values
from palimpsest.study.cell import CellRun, Progress
from palimpsest.study.setting import Setting
from palimpsest.study.tofu_request import Prepared, TofuInputs

Step = tuple[str, Callable[[], None]]


class TofuCell(CellRun):
    """Does the steps of one cell that are not done yet."""

    def __init__(
        self, prepared: Prepared, inputs: TofuInputs, store: Cell, progress: Progress
    ) -> None:
        self.given = prepared.request.given()
        self.inputs = inputs
        self._prepared = prepared
        draws = prepared.request.draws if prepared.request.train else len(self.given) - 1
        super().__init__(inputs.cell, store, draws=draws, progress=progress)

    def steps(self) -> list[Step]:
        """Give the steps of a cell, the headroom after its models were scored."""
        named = super().steps()
        if self.inputs.told is not None:
            place = [name for name, _ in named].index("models") + 1
            named.insert(place, ("headroom", self._headroom))
        return named

    @cached_property
    def setting(self) -> Setting:
        return self.inputs.setting

    def state(self, name: str) -> State:
        """Give a model's weights: of the checkpoint that was given, or of the step that trained."""
        if name not in self.given:
            return super().state(name)
        engine = self.plan.plan.engine
        other = load(self.given[name], dtype=engine.dtype, device=engine.device)
        check_compatible(self.loaded, other)
        return {key: value.detach() for key, value in other.model.state_dict().items()}

    def _streams(self) -> dict[str, Any]:
        streams = super()._streams()
        return {name: stream for name, stream in streams.items() if name not in self.given}

    def _score_models(self) -> None:
        """Score base, injected and references; all but base go through the round trip."""
        draws = [f"reference-{n}" if n else "reference" for n in range(self.draws)]
        states = {"base": self.base} | {name: self.state(name) for name in ("injected", *draws)}
        _refuse_twins(states, draws, self.given)
        digests = {name: state_digest(state) for name, state in states.items()}
        made = self._through(states, round_trip=[name for name in states if name != "base"])
        self.store.put("models", made.tables(), {"digests": digests})

    def _headroom(self) -> None:
        """Ask the base with evidence in context; put beside it what the models said without."""
        told = self.inputs.told
        assert told is not None
        items = self.store.get("models")[0]["items"]
        asked = {question.fact for question in told.questions}
        plain = (
            (items["stage"] == "forward")
            & (items["set"] == "forget")
            & (items["pool"] == "evaluation")
            & np.isin(items["model"], ["base", "injected", "reference"])
            & np.isin(items["fact"], list(asked))
        )
        alone = {name: values[plain] for name, values in items.items()}
        scores = score(self.nets([self.base]), told)[0]
        with_evidence = item_columns("evidence", "forward", told, scores)
        both = {
            name: [*values.tolist(), *with_evidence[name]]
            if values.dtype == object
            else np.concatenate([values, with_evidence[name]])
            for name, values in alone.items()
        }
        self.store.put("headroom", {"headroom": both})

    def _goes_back(self, names: Sequence[str], forward: Sequence[Scores]) -> bool:
        """Spare the round trip to candidates that the screen is sure to exclude.

        Holm rejects every p-value of at most alpha over the number of candidates, so whoever
        survives lies above that.
        """
        known = {"injected", *(name for name in names if name.startswith("reference"))}
        if self._prepared.request.round_trip == "all" or known & set(names):
            return True
        level = self.plan.plan.rules.alpha / len(self.methods)
        return any(self._p_value(scores) > level for scores in forward)

    def _p_value(self, scores: Scores) -> float:
        sheet = self.setting.sheet
        deltas = (scores.nll_sum - self._base_nll) / np.array(sheet.tokens)
        held_out = [
            question.set if question.pool == "evaluation" else "" for question in sheet.questions
        ]
        of = np.array(held_out)
        return float(rank_test(deltas[of == "forget"], deltas[of == "probe"]).p_value)

    @cached_property
    def _base_nll(self) -> Floats:
        """The base's sums of NLL in the sheet's order of questions."""
        items = self.store.get("models")[0]["items"]
        mine = (items["model"] == "base") & (items["stage"] == "forward")
        return np.asarray(items["nll_sum"][mine], np.float64)

    def _summary(self) -> dict[str, Any]:
        found = None
        if self.inputs.told is not None:
            table = self.store.get("headroom")[0]["headroom"]
            found = read_headroom(table, self.plan.plan.rules)
        return super()._summary() | {
            "headroom": None if found is None else headroom_values(found),
        }


def _refuse_twins(
    states: Mapping[str, State], draws: Sequence[str], given: Mapping[str, str]
) -> None:
    """Refuse a reference that is the full model under another name: it never left anything out."""
    for name in draws:
        if all(torch.equal(value, states[name][key]) for key, value in states["injected"].items()):
            raise ModelError(
                f"{given.get(name, name)}: has the very weights of the full model; expected one "
                "that was taught without the forget authors; check the download, or make both "
                "with --train"
            )
