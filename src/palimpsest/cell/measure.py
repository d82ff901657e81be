"""Measuring models: one forward pass over the questions, then the round trip, as table rows.

Every model of a cell, an audit or a TOFU study is measured here: base, references, controls,
candidates and known-label models by the same code. A model that cannot be measured has a
``Failed`` with its kind; whether that ends the cell is the caller's decision.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from palimpsest.cell.setting import Setting
from palimpsest.errors import ScoreError, TrainingDiverged
from palimpsest.facts.questions import TRAINED_POOLS
from palimpsest.models.net import Net
from palimpsest.scoring.answers import Scores, Sheet, item_columns, score
from palimpsest.scoring.divergence import Teacher, record
from palimpsest.scoring.roundtrip import curve_columns, in_residual, reacquire

Columns = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a model has no scores.

    kind: ``not_applicable``, ``diverged``, ``raised``, ``not_finite``, ``other_architecture``,
    ``model_error`` or, for a control that cannot be built, ``unavailable``.
    step: the training step at which it diverged.
    """

    kind: str
    reason: str
    step: int | None = None

    def values(self) -> dict[str, str]:
        """Return what ``cell.json`` keeps of it."""
        return {"kind": self.kind, "reason": self.reason}


@dataclass(frozen=True)
class Teachers:
    """Log-probabilities of the frozen models that others are compared with."""

    injected: Teacher
    """On all questions of the cell."""
    way_back: Teacher
    """The injected model's on the questions that are asked again during re-acquisition."""
    reference: Teacher | None = None


def injected_teachers(net: Net, setting: Setting) -> tuple[Teacher, Teacher]:
    """Return the injected model's log-probabilities on all questions and on the way back."""
    sheets = (setting.sheet, setting.way_back)
    return record(net, sheets[0], in_residual), record(net, sheets[1], in_residual)


def reference_teacher(net: Net, setting: Setting) -> Teacher:
    """Return the reference's log-probabilities at the trained answers."""
    return record(
        net,
        setting.sheet,
        lambda q: q.set in ("forget", "retain") and q.pool in TRAINED_POOLS,
    )


@dataclass
class Measured:
    """The rows of one model, or why it has none."""

    name: str
    items: list[Columns] = field(default_factory=list)
    curves: list[Columns] = field(default_factory=list)
    measures: dict[str, float] = field(default_factory=dict)
    """Further measures, by name."""
    failure: Failed | None = None

    def check(self) -> None:
        """Raise if the model failed: for models that a cell cannot do without."""
        if self.failure is None:
            return
        if self.failure.step is not None:
            raise TrainingDiverged(self.failure.step, f"{self.name}: {self.failure.reason}")
        raise ScoreError(f"{self.name}: {self.failure.reason}")


class Instrument:
    """Measures models of one cell, alone or in a stack."""

    def __init__(
        self,
        setting: Setting,
        teachers: Teachers,
        gauge: Callable[[Net], Sequence[dict[str, float]]] | None = None,
    ) -> None:
        """gauge: takes the further measures of a net's members, and leaves their weights alone."""
        self.setting = setting
        self.teachers = teachers
        self.gauge = gauge

    def measure(
        self,
        names: Sequence[str],
        net: Net,
        *,
        round_trip: bool | Callable[[Sequence[Scores]], bool] = True,
        also: Sequence[Sheet] = (),
    ) -> list[Measured]:
        """Score the members of a net, then send them through the round trip, which trains them.

        round_trip: whether to, or what decides it from the members' scores.
        also: further sheets to score before the round trip, without teachers.
        """
        results = [Measured(name) for name in names]
        scores = self.forward(results, net)
        for sheet in also:
            self.forward(results, net, sheet)
        if round_trip is not False:
            self.further(results, net)
        if round_trip(scores) if callable(round_trip) else round_trip:
            self.back(results, net)
        return results

    def forward(
        self, results: Sequence[Measured], net: Net, sheet: Sheet | None = None
    ) -> list[Scores]:
        """Score the members on every question, or on another sheet without teachers; adds rows."""
        teachers = self.teachers if sheet is None else None
        sheet = self.setting.sheet if sheet is None else sheet
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

    def further(self, results: Sequence[Measured], net: Net) -> None:
        """Take the further measures of the members, where any are asked for."""
        for result, values in zip(results, [] if self.gauge is None else self.gauge(net)):
            result.measures = values

    def back(self, results: Sequence[Measured], net: Net) -> None:
        """Re-acquire the forget set with every member; adds the rows of the way back."""
        plan, sheet = self.setting.cell.plan.round_trip, self.setting.way_back
        returns = reacquire(
            net,
            self.setting.way_back_steps,
            chunks=plan.chunks,
            learning_rate=plan.learning_rate * self.setting.rate,
            sheet=sheet,
            injected=self.teachers.way_back,
            optimiser=self.setting.optimiser,
        )
        for result, back in zip(results, returns):
            if result.failure is not None:
                continue
            if back.diverged is not None:
                result.failure = Failed(
                    "diverged",
                    f"re-acquisition diverged at step {back.diverged}; a learning rate below "
                    f"{plan.learning_rate:g} may help, if the forget set was learned with a "
                    "smaller one",
                    back.diverged,
                )
                continue
            result.failure = not_finite(back.scores)
            result.items.append(item_columns(result.name, "reacquired", sheet, back.scores))
            result.curves.append(curve_columns(result.name, back.curve))


def not_finite(scores: Scores) -> Failed | None:
    """Return the failure of a model one of whose scores is not finite, None if all are."""
    kl = np.concatenate([scores.kl_reference, scores.kl_injected])  # NaN where nobody asked
    if np.isfinite(scores.nll_sum).all() and not np.isinf(kl).any():
        return None
    return Failed(
        "not_finite",
        "gives a score that is not finite on at least one question; expected finite "
        "log-probabilities; check how the model was saved, or load it with dtype float32",
    )


def tables(results: Iterable[Measured]) -> dict[str, Columns]:
    """Return the tables ``items``, ``curves`` and ``measures`` of all models that did not fail."""
    sound = [result for result in results if result.failure is None]
    rows = {
        "items": [row for result in sound for row in result.items],
        "curves": [row for result in sound for row in result.curves],
        "measures": [measure_columns(r.name, r.measures) for r in sound if r.measures],
    }
    return {name: stacked(columns) for name, columns in rows.items() if columns}


def measure_columns(model: str, values: Mapping[str, float]) -> Columns:
    """Return the rows of ``measures.parquet`` for one model, as columns."""
    numbers = np.array(list(values.values()), dtype=np.float64)
    return {"model": [model] * len(values), "measure": list(values), "value": numbers}


def stacked(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Return many models' columns as one table, in order."""
    whole: Columns = {}
    for name, first in rows[0].items():
        if isinstance(first, list):
            whole[name] = [value for row in rows for value in row[name]]
        else:
            whole[name] = np.concatenate([row[name] for row in rows])
    return whole
