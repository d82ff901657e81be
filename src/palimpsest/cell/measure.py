"""Measuring models: one forward pass over the questions, then re-acquisition, as table rows.

Every model is measured here: base, references, controls, candidates and known-label models by the
same code. A model that cannot be measured has a failure; whether that ends the cell is the caller's
decision.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from palimpsest.cell.texts import CellTexts
from palimpsest.errors import ScoreError, TrainingDiverged
from palimpsest.facts.questions import TRAINED_POOLS
from palimpsest.models.net import Net
from palimpsest.scoring.answers import Scores, Sheet, Teacher, item_columns, record, score
from palimpsest.scoring.generation import Answerer
from palimpsest.scoring.measures import Take, take_all
from palimpsest.scoring.reacquisition import curve_columns, in_residual, reacquire
from palimpsest.stats.models import ModelFailure

Columns = dict[str, Any]


@dataclass(frozen=True)
class Teachers:
    """Log-probabilities of the frozen models that others are compared with."""

    injected: Teacher
    """At the questions of the residual, before and during re-acquisition."""
    reference: Teacher | None = None


def injected_teacher(net: Net, texts: CellTexts) -> Teacher:
    """Return the injected model's log-probabilities at the questions of the residual."""
    return record(net, texts.sheet, in_residual)


def reference_teacher(net: Net, texts: CellTexts) -> Teacher:
    """Return a reference's log-probabilities at the trained answers."""
    return record(
        net,
        texts.sheet,
        lambda q: q.set in ("forget", "retain") and q.pool in TRAINED_POOLS,
    )


@dataclass
class Measured:
    """The rows of one model, or why it has none."""

    name: str
    items: list[Columns] = field(default_factory=list)
    curves: list[Columns] = field(default_factory=list)
    measures: Mapping[str, float] = field(default_factory=dict)
    """Further measures, by name."""
    answers: Columns | None = None
    failure: ModelFailure | None = None
    diverged: int | None = None
    """The step at which re-acquisition diverged."""

    def check(self) -> None:
        """Raise if the model failed: for models that a cell cannot do without."""
        if self.failure is None:
            return
        if self.diverged is not None:
            raise TrainingDiverged(self.diverged, f"{self.name}: {self.failure.reason}")
        raise ScoreError(f"{self.name}: {self.failure.reason}")


@dataclass(frozen=True)
class Scorer:
    """Measures models of one cell, alone or in a stack."""

    texts: CellTexts
    teachers: Teachers
    further: Mapping[str, Take] = field(default_factory=dict)
    """What takes further measures, by what asks for it."""
    base_scales: Mapping[str, float] | None = None
    answerer: Answerer | None = None

    def measure(
        self,
        names: Sequence[str],
        net: Net,
        *,
        reacquired: bool = True,
        also: Sequence[Sheet] = (),
        asked: bool = False,
    ) -> list[Measured]:
        """Score the members of a net, then re-acquire the forget set, which trains them.

        also: further sheets to score before that, without teachers.
        asked: whether the members answer a few questions in words.
        """
        results = [Measured(name) for name in names]
        before = self.score(results, net)
        for sheet in also:
            self.score(results, net, sheet)
        if asked and self.answerer is not None:
            for result, answers in zip(results, self.answerer.ask(names, net)):
                result.answers = answers
        if reacquired:
            for result, values in zip(results, take_all(self.further, net)):
                result.measures = values
            self.reacquire(results, net, before)
        return results

    def score(
        self, results: Sequence[Measured], net: Net, sheet: Sheet | None = None
    ) -> list[Scores]:
        """Score the members on every question, or on another sheet without teachers."""
        teachers = self.teachers if sheet is None else None
        sheet = self.texts.sheet if sheet is None else sheet
        scores = score(
            net,
            sheet,
            reference=None if teachers is None else teachers.reference,
            injected=None if teachers is None else teachers.injected,
        )
        for result, values in zip(results, scores):
            result.failure = result.failure or not_finite(values)
            result.items.append(item_columns(result.name, "forward", sheet, values))
        return scores

    def reacquire(self, results: Sequence[Measured], net: Net, before: Sequence[Scores]) -> None:
        """Re-acquire the forget set with every member; adds the rows of its course.

        before: the members' scores on every question.
        """
        texts, sheet = self.texts, self.texts.reacquired_sheet
        again, beacon = texts.reacquisition, texts.beacon
        courses = reacquire(
            net,
            texts.reacquisition_steps,
            chunks=again.chunks,
            learning_rate=again.learning_rate * (1.0 if beacon is None else beacon.rate),
            sheet=sheet,
            injected=self.teachers.injected,
            before=[scores.first(len(sheet.questions)) for scores in before],
            optimizer="adamw" if beacon is None else beacon.optimizer,
            base_scales=self.base_scales,
        )
        for result, course in zip(results, courses):
            if result.failure is not None:
                continue
            if course.diverged is not None:
                result.diverged = course.diverged
                result.failure = ModelFailure(
                    "diverged",
                    f"re-acquisition diverged at step {course.diverged}; a learning rate below "
                    f"{again.learning_rate:g} may help, if the forget set was learned with a "
                    "smaller one",
                )
                continue
            result.failure = not_finite(course.scores)
            result.items.append(item_columns(result.name, "reacquired", sheet, course.scores))
            result.curves.append(curve_columns(result.name, course.curve))


def not_finite(scores: Scores) -> ModelFailure | None:
    """Return the failure of a model one of whose scores is not finite, None if all are."""
    kl = np.concatenate([scores.kl_reference, scores.kl_injected])  # NaN where it was not asked
    if np.isfinite(scores.nll_sum).all() and not np.isinf(kl).any():
        return None
    return ModelFailure(
        "not_finite",
        "gives a score that is not finite on at least one question; expected finite "
        "log-probabilities; check how the model was saved, or load it with dtype float32",
    )


def result_tables(results: Iterable[Measured]) -> dict[str, Columns]:
    """Return the tables ``items``, ``curves``, ``measures`` and ``answers`` of sound models."""
    sound = [result for result in results if result.failure is None]
    rows = {
        "items": [row for result in sound for row in result.items],
        "curves": [row for result in sound for row in result.curves],
        "measures": [_measure_columns(r.name, r.measures) for r in sound if r.measures],
        "answers": [result.answers for result in sound if result.answers is not None],
    }
    return {name: stack_columns(columns) for name, columns in rows.items() if columns}


def _measure_columns(model: str, values: Mapping[str, float]) -> Columns:
    numbers = np.array(list(values.values()), dtype=np.float64)
    return {"model": [model] * len(values), "measure": list(values), "value": numbers}


def stack_columns(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Return many models' columns as one table, in order."""
    whole: Columns = {}
    for name, first in rows[0].items():
        if isinstance(first, list):
            whole[name] = [value for row in rows for value in row[name]]
        else:
            whole[name] = np.concatenate([row[name] for row in rows])
    return whole
