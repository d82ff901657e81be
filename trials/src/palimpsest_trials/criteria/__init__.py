"""Published criteria of unlearning, put to trial on models whose truth is known.

``catalogue.toml`` lists them. A criterion gives one score per model, turned so that **larger means
less restored**. Most are measured on the model itself (``cache.py`` takes the measure of the same
name); the others are read from the scores that every model has anyway. Numbers are those of
``docs/results.md``. ``trial.py`` judges every criterion by the models it accepts, ``page.py``
writes that down. Only taking measures needs torch.
"""

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from palimpsest.stats.measures import CellMeasures, ModelMeasures
from palimpsest.stats.models import Role
from palimpsest.stats.ranktest import rank_test

Read = Callable[[ModelMeasures, CellMeasures], float | None]

INPUTS = {
    "C": "the candidate alone",
    "B": "the base model",
    "I": "the injected model",
    "R": "a retrained reference",
    "P": "never-learned probes",
    "G": "sampling or decoding",
    "T": "training",
    "W": "weights and states",
}


@dataclass(frozen=True, slots=True)
class Criterion:
    """One published criterion, or a negative control."""

    name: str
    group: str
    number: int
    """In the catalogue; 0 for a negative control."""
    inputs: str
    """Letters of ``INPUTS``."""
    turn: str
    """How the source's value became a score that is larger the less a model is restored."""
    cost: str
    """What it takes: nothing (free), a forward pass, states, gradients, weights or training."""
    formula: str
    source: str
    own: Read | None = None
    """Reads the score; None where it is the measure of the same name."""
    measure: str | None = None
    """The measure that ``own`` needs, where it needs one."""

    @property
    def needed(self) -> str | None:
        """The measure that must be taken; None where the usual scores suffice."""
        return self.name if self.own is None else self.measure

    def read(self, model: ModelMeasures, cell: CellMeasures) -> float | None:
        """Return the score of a model; None where it was not measured or is not a number."""
        value = model.extra.get(self.name) if self.own is None else self.own(model, cell)
        return None if value is None or not math.isfinite(value) else float(value)


def find_teacher(cell: CellMeasures) -> ModelMeasures:
    """Return the reference that criteria may use: the first of those with draws of their own, which
    mixtures and adversaries are not made of."""
    return cell[(cell.references or cell.of_role(Role.REFERENCE))[0]]


def _screen(model: ModelMeasures, cell: CellMeasures) -> float:
    return -math.log(rank_test(model.forget_deltas, model.probe_deltas).p_value)


def _fall(model: ModelMeasures, cell: CellMeasures) -> float | None:
    return None if model.curve is None else model.curve.first_fall


def _anamnesis(model: ModelMeasures, cell: CellMeasures) -> float | None:
    """1 − steps(model) / steps(reference) to come half-way from the reference to injected."""
    mine, theirs = model.curve, find_teacher(cell).curve
    if mine is None or theirs is None:
        return None
    goal = 0.5 * (float(theirs.forget_heldout_nll[0]) + cell.injected.forget_nll)
    steps, needed = (
        first_reached(curve.step.tolist(), curve.forget_heldout_nll.tolist(), goal)
        for curve in (mine, theirs)
    )
    return 1 - steps / needed if needed > 0 else None


def first_reached(steps: Sequence[float], values: Sequence[float], goal: float) -> float:
    """Return the step, interpolated, at which a curve falls to ``goal``, the last if never."""
    for n, value in enumerate(values):
        if value <= goal:
            if n == 0:
                return float(steps[0])
            share = (values[n - 1] - goal) / (values[n - 1] - value)
            return float(steps[n - 1] + share * (steps[n] - steps[n - 1]))
    return float(steps[-1])


def _recovered(model: ModelMeasures, cell: CellMeasures) -> float:
    """Share of the way from the reference to the injected model, each after the same training."""
    models = (model, find_teacher(cell), cell.injected)
    mine, low, high = (some.extra.get("relearn_others", math.nan) for some in models)
    return (mine - low) / (high - low) if high != low else math.nan


def _beyond(name: str) -> Read:
    """The measure minus the reference's."""

    def read(model: ModelMeasures, cell: CellMeasures) -> float:
        return model.extra.get(name, math.nan) - find_teacher(cell).extra.get(name, math.nan)

    return read


OWN: dict[str, tuple[Read, str | None]] = {
    "screen": (_screen, None),
    "trained_kl": (lambda model, cell: model.oracle_kl, None),
    "relearn_fall": (_fall, None),
    "anamnesis": (_anamnesis, None),
    "round_trip": (lambda model, cell: model.residual, None),
    "rtt": (_recovered, "relearn_others"),
    "quantised_4": (_beyond("bits_4"), "bits_4"),
    "quantised_8": (_beyond("bits_8"), "bits_8"),
    "reversed": (lambda model, cell: model.extra.get("reversed"), None),  # an axis, so always taken
    "retain_nll": (lambda model, cell: model.retain_nll, None),
    "general_nll": (lambda model, cell: model.general_nll, None),
}
"""Criteria that are not simply the measure of their name: how they are read, and from which."""

CRITERIA: tuple[Criterion, ...] = tuple(
    Criterion(name, group, *values, *OWN.get(name, ()))
    for group, table in tomllib.loads(
        Path(__file__).with_name("catalogue.toml").read_text("utf-8")
    ).items()
    for name, values in table.items()
)
"""In the order of their numbers, negative controls last."""
MEASURES = tuple(dict.fromkeys(c.needed for c in CRITERIA if c.needed is not None))
"""Every measure that some criterion needs."""
