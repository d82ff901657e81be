"""What the criteria look at: per-model measures of one cell, from its item and curve columns.

Columns come as ``dict[str, array]``, one entry per column of ``items.parquet`` and
``curves.parquet``. A fact's NLL in a pool is the mean over templates of nll_sum / tokens; deltas
are anchored to base. A missing or non-finite score is an error that names the model and the fact.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from palimpsest.errors import ScoreError
from palimpsest.stats.items import Columns, ItemTable, Values, require_columns
from palimpsest.stats.models import Model, Role

CURVE_COLUMNS = (
    "model",
    "chunk",
    "step",
    "forget_trained_nll",
    "forget_heldout_nll",
    "retain_nll",
    "residual_retain",
    "residual_general",
)
MEASURE_COLUMNS = ("model", "measure", "value")
TRAINED_POOLS = ("trained", "cloze")
"""Pools of the trained-probe criterion and of the residual's retain part."""


@dataclass(frozen=True, slots=True, eq=False)
class RelearningCurve:
    """A model's re-acquisition log: one value per chunk, chunk 0 before any step, (chunks,)."""

    step: NDArray[np.int64]
    forget_trained_nll: Values
    forget_heldout_nll: Values
    retain_nll: Values
    residual_retain: Values
    residual_general: Values

    @property
    def residual(self) -> Values:
        """Re-acquisition residual at every chunk: the sum of its two parts."""
        return self.residual_retain + self.residual_general

    @property
    def first_fall(self) -> float:
        """Fall of held-out forget NLL over the first chunk, in nats (positive: relearned)."""
        return float(self.forget_heldout_nll[0] - self.forget_heldout_nll[1])


@dataclass(frozen=True, eq=False)
class ModelMeasures:
    """One model's numbers in one cell; a measure that was not taken is None."""

    name: str
    forget_facts: tuple[str, ...]
    probe_facts: tuple[str, ...]
    forget_nlls: Values
    """(m,) NLL of each forget fact in the pool."""
    probe_nlls: Values
    """(n,) NLL of each probe fact in the pool."""
    forget_deltas: Values
    """(m,) forget NLL minus base's."""
    probe_deltas: Values
    """(n,) probe NLL minus base's."""
    retain_nll: float | None = None
    """Mean over retain facts of the cloze NLL."""
    general_nll: float | None = None
    """NLL per position of general text."""
    oracle_kl: float | None = None
    """Trained-probe KL(model || reference) per answer position of forget and retain facts."""
    residual: float | None = None
    """Re-acquisition residual: sum of the two parts below, as in the paper."""
    residual_retain: float | None = None
    residual_general: float | None = None
    curve: RelearningCurve | None = None
    extra: Mapping[str, float] = field(default_factory=dict)
    """Any further measure, by name."""

    def __post_init__(self) -> None:
        for facts, values in (
            (self.forget_facts, (self.forget_nlls, self.forget_deltas)),
            (self.probe_facts, (self.probe_nlls, self.probe_deltas)),
        ):
            for array in values:
                if array.shape != (len(facts),):
                    raise ScoreError(
                        f"model {self.name}: {array.shape} scores for {len(facts)} facts; "
                        "expected one per fact"
                    )
                wrong = np.flatnonzero(~np.isfinite(array))
                if len(wrong):
                    fact, value = facts[wrong[0]], array[wrong[0]]
                    raise ScoreError(
                        f"model {self.name}, fact {fact}: the score is {value}; expected a finite "
                        "number, so score it again or leave the model out"
                    )

    @property
    def forget_nll(self) -> float:
        """Mean over forget facts."""
        return float(self.forget_nlls.mean())

    @cached_property
    def median_forget_delta(self) -> float:
        return float(np.median(self.forget_deltas))

    @cached_property
    def median_probe_delta(self) -> float:
        return float(np.median(self.probe_deltas))

    @property
    def median_gap(self) -> float:
        """Median forget delta minus median probe delta: negative means knowledge is left."""
        return self.median_forget_delta - self.median_probe_delta

    def need(self, measure: str) -> float:
        """Return the named measure, or an error if it was not taken."""
        value = getattr(self, measure)
        if value is None:
            raise ScoreError(
                f"model {self.name} has no {measure}; score it for this model, or use a criterion "
                "that does not need it"
            )
        return float(value)

    def need_curve(self) -> RelearningCurve:
        """Return the relearning curve, or an error if there is none."""
        if self.curve is None:
            raise ScoreError(
                f"model {self.name} has no re-acquisition curve, which the relearn veto needs; "
                "re-acquire it, or set rules.relearn_veto to false"
            )
        return self.curve


@dataclass(frozen=True, eq=False)
class CellMeasures:
    """All models of one cell, scored on one pool and anchored to base."""

    pool: str
    forget_facts: tuple[str, ...]
    probe_facts: tuple[str, ...]
    models: Mapping[str, ModelMeasures] = field(repr=False)
    records: Mapping[str, Model] = field(default_factory=dict, repr=False)
    """What each model of the cell is, models without scores included."""

    def __getitem__(self, name: str) -> ModelMeasures:
        try:
            return self.models[name]
        except KeyError:
            known = ", ".join(self.models)
            raise ScoreError(
                f"no scores of model {name} on pool {self.pool}; there are scores of {known}"
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self.models

    def __iter__(self) -> Iterator[str]:
        return iter(self.models)

    @property
    def injected(self) -> ModelMeasures:
        return self["injected"]

    @property
    def floor(self) -> float:
        """The injected model's own residual."""
        return self.injected.need("residual")

    def of_role(self, role: Role) -> tuple[str, ...]:
        """Return the names of the models measured here that have this role, in cell order.

        A model that failed on the way, after its first scores, is not among them.
        """
        return tuple(
            name
            for name in self.models
            if name in self.records
            and self.records[name].role is role
            and self.records[name].failure is None
        )

    @cached_property
    def references(self) -> tuple[str, ...]:
        """Names of the references that candidates are compared with, in the order of their draws.

        Neither the one that shares the injected model's draw nor one that the terms exclude.
        """
        several = [
            self.records[name]
            for name in self.of_role(Role.REFERENCE)
            if not self.records[name].same_draw and not self.records[name].excluded
        ]
        return tuple(model.name for model in sorted(several, key=lambda m: m.seed_no or 0))


def measure_cell(
    items: Columns | ItemTable,
    curves: Columns | None = None,
    pool: str = "evaluation",
    models: Iterable[str] | None = None,
    *,
    records: Mapping[str, Model] | None = None,
    measures: Columns | None = None,
) -> CellMeasures:
    """Return the measures of every model with forget scores on ``pool`` (or of those named).

    ``records`` says what each model is; ``measures`` is the optional table of further numbers.
    """
    table = items if isinstance(items, ItemTable) else ItemTable(items)
    forget = table.fact_nlls("forget", pool)
    probe = table.fact_nlls("probe", pool)
    for which, scores in (("forget", forget), ("probe", probe)):
        if "base" not in scores.by_model:
            raise ScoreError(
                f"there are no scores of base for {which} facts on pool {pool}; deltas are "
                "anchored to base, so it must be scored too"
            )
    wanted = list(forget.by_model if models is None else models)
    for name in dict.fromkeys([*wanted, *(probe.by_model if models is None else ())]):
        for which, scores in (("forget", forget), ("probe", probe)):
            if name not in scores.by_model:
                raise ScoreError(
                    f"model {name} has no forward scores of {which} facts on pool {pool}; the "
                    "screen needs both forget and probe facts of every model"
                )
    retain = table.fact_nlls("retain", "cloze")
    general = table.rates("nll_sum", ("general",), ("general",), "forward")
    oracle_kl = table.rates("kl_reference", ("forget", "retain"), TRAINED_POOLS, "forward")
    residual_retain = table.rates("kl_injected", ("retain",), TRAINED_POOLS, "reacquired")
    residual_general = table.rates("kl_injected", ("general",), ("general",), "reacquired")
    curve = {} if curves is None else read_curves(curves)
    extra = {} if measures is None else read_extra(measures)

    measured = {}
    for name in wanted:
        parts = (residual_retain.get(name), residual_general.get(name))
        residual = None if None in parts else sum(part for part in parts if part is not None)
        forget_nlls, probe_nlls = forget.by_model[name], probe.by_model[name]
        measured[name] = ModelMeasures(
            name=name,
            forget_facts=forget.facts,
            probe_facts=probe.facts,
            forget_nlls=forget_nlls,
            probe_nlls=probe_nlls,
            forget_deltas=forget_nlls - forget.by_model["base"],
            probe_deltas=probe_nlls - probe.by_model["base"],
            retain_nll=retain.mean(name),
            general_nll=general.get(name),
            oracle_kl=oracle_kl.get(name),
            residual=residual,
            residual_retain=parts[0],
            residual_general=parts[1],
            curve=curve.get(name),
            extra=extra.get(name, {}),
        )
    return CellMeasures(pool, forget.facts, probe.facts, measured, records or {})


def read_extra(measures: Columns) -> dict[str, dict[str, float]]:
    """Return each model's further measures, by name; NaN where one could not be taken."""
    require_columns("measures", measures, MEASURE_COLUMNS)
    values: dict[str, dict[str, float]] = {}
    for model, measure, value in zip(*(measures[column] for column in MEASURE_COLUMNS)):
        mine = values.setdefault(str(model), {})
        if str(measure) in mine:
            raise ScoreError(f"measures: model {model} has two values of {measure}; expected one")
        mine[str(measure)] = float(value)
    return values


def read_curves(curves: Columns) -> dict[str, RelearningCurve]:
    """Return each model's re-acquisition log, by name."""
    require_columns("curves", curves, CURVE_COLUMNS)
    names = np.asarray(curves["model"], dtype=object)
    chunks = np.asarray(curves["chunk"], dtype=np.int64)
    by_model = {}
    for name in dict.fromkeys(names.tolist()):
        rows = np.flatnonzero(names == name)
        rows = rows[np.argsort(chunks[rows], kind="stable")]
        if len(rows) < 2 or not np.array_equal(chunks[rows], np.arange(len(rows))):
            raise ScoreError(
                f"re-acquisition curve of model {name} has chunks {chunks[rows].tolist()}; "
                "expected 0, 1, 2, … once each and at least two of them"
            )
        columns = {}
        for column in CURVE_COLUMNS[3:]:
            values = np.asarray(curves[column], dtype=np.float64)[rows]
            wrong = np.flatnonzero(~np.isfinite(values))
            if len(wrong):
                raise ScoreError(
                    f"re-acquisition curve of model {name}: {column} at chunk {wrong[0]} is "
                    f"{values[wrong[0]]}; expected a finite number"
                )
            columns[column] = values
        by_model[name] = RelearningCurve(
            np.asarray(curves["step"], dtype=np.int64)[rows], **columns
        )
    return by_model
