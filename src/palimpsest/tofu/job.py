"""One cell of a TOFU study: a study's cell whose facts are TOFU's and whose models may be given.

Beside the steps of every cell there is the headroom: the base is asked the held-out forget
questions after similar questions and answers of retained authors, which is what a retrained model
has to infer from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from palimpsest.audit.inputs import CellInputs
from palimpsest.audit.job import headroom_values
from palimpsest.cell.graph import Task
from palimpsest.cell.setting import Setting
from palimpsest.cell.work import StudyWork
from palimpsest.criteria.headroom import read_headroom
from palimpsest.criteria.ranktest import rank_test
from palimpsest.run.graph import Step
from palimpsest.run.store import Cell
from palimpsest.scoring.answers import Floats, Scores, item_columns, score
from palimpsest.tofu.request import Prepared

KNOWN = "score-known"
REFERENCES = "score-references-00"
"""The steps that measure base and injected, and the first references."""


@dataclass(frozen=True)
class TofuJob:
    """The work of a TOFU study, for whichever process does it."""

    prepared: Prepared

    def cell(self, cell_id: str) -> "TofuWork":
        inputs = next(cell for cell in self.prepared.cells if cell.id == cell_id)
        return TofuWork(self.prepared, inputs)


class TofuWork(StudyWork):
    """The steps of one cell."""

    def __init__(self, prepared: Prepared, inputs: CellInputs) -> None:
        self.request = prepared.request
        self.tofu = inputs
        super().__init__(
            inputs.setting.cell, draws=prepared.request.references, given=prepared.request.sources()
        )

    def tasks(self) -> list[Task]:
        """Return the steps of a cell, with the headroom after its models were measured."""
        tasks = []
        for task in super().tasks():
            if task.step.name.startswith("candidates-"):  # the screen compares them with base
                task = replace(task, step=replace(task.step, needs=(*task.step.needs, KNOWN)))
            tasks.append(task)
            if task.step.name == REFERENCES and self.tofu.with_evidence is not None:
                words = "scoring base with evidence"
                tasks.append(Task(Step("headroom", words, (KNOWN, REFERENCES)), self._headroom))
        return tasks

    @cached_property
    def setting(self) -> Setting:
        return self.tofu.setting

    def finish(self, cell: Cell) -> dict[str, Any]:
        headroom = None
        if self.tofu.with_evidence is not None:
            table = cell.get("headroom")[0]["headroom"]
            headroom = headroom_values(read_headroom(table, self.plan.plan.rules))
        return super().finish(cell) | {"headroom": headroom}

    def _headroom(self, step: str) -> None:
        """Ask the base with evidence in context; put beside it the scores without."""
        sheet = self.tofu.with_evidence
        assert sheet is not None
        asked = {question.fact for question in sheet.questions}
        scores = score(self.nets([self.base]), sheet)[0]
        with_evidence = item_columns("evidence", "forward", sheet, scores)
        whole: dict[str, list[Any]] = {name: [] for name in with_evidence}
        for known in (KNOWN, REFERENCES):
            items = self.cell.get(known)[0]["items"]
            plain = (
                (items["stage"] == "forward")
                & (items["set"] == "forget")
                & (items["pool"] == "evaluation")
                & np.isin(items["model"], ["base", "injected", "reference"])
                & np.isin(items["fact"], list(asked))
            )
            for name in whole:
                whole[name] += items[name][plain].tolist()
        columns = {
            name: [*values, *with_evidence[name]]
            if isinstance(with_evidence[name], list)
            else np.array([*values, *with_evidence[name]], with_evidence[name].dtype)
            for name, values in whole.items()
        }
        self.cell.put(step, {"headroom": columns})

    def goes_back(self, scores: Sequence[Scores]) -> bool:
        """Return False for candidates that the screen is sure to exclude.

        Holm rejects every p-value of at most alpha over the number of candidates, so whatever
        survives lies above that.
        """
        if self.request.round_trip == "all":
            return True
        level = self.plan.plan.rules.alpha / len(self.methods)
        return any(self._p_value(each) > level for each in scores)

    def _p_value(self, scores: Scores) -> float:
        sheet = self.setting.sheet
        deltas = (scores.nll_sum - self._base_nll) / np.array(sheet.tokens)
        sets = np.array([q.set if q.pool == "evaluation" else "" for q in sheet.questions])
        return float(rank_test(deltas[sets == "forget"], deltas[sets == "probe"]).p_value)

    @cached_property
    def _base_nll(self) -> Floats:
        """The base's sums of NLL in the sheet's order of questions."""
        items = self.cell.get(KNOWN)[0]["items"]
        mine = (items["model"] == "base") & (items["stage"] == "forward")
        return np.asarray(items["nll_sum"][mine], np.float64)
