"""What each model of a cell is: its role, its truth where that is known, and what became of it.

Nothing is ever read out of a model's name. ``cell.json`` holds one record per model.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Role(StrEnum):
    """What a model is in its cell."""

    BASE = "base"
    INJECTED = "injected"
    FORGET_ONLY = "forget_only"
    GENERAL_ONLY = "general_only"
    REFERENCE = "reference"
    """A retraining that candidates are compared with."""
    RETRAINING = "retraining"
    """A further retraining, judged as if it were a candidate."""
    CONTROL = "control"
    """A reference with a share of the injected weights mixed in."""
    KNOWN_LABEL = "known_label"
    CANDIDATE = "candidate"


@dataclass(frozen=True, slots=True)
class ModelFailure:
    """Why a model has no scores.

    kind: ``not_applicable``, ``diverged``, ``raised``, ``not_finite``, ``other_architecture``,
    ``model_error`` or, for a control that cannot be built, ``unavailable``.
    """

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Cost:
    """What making a candidate took; a retraining is the unit of the last two."""

    steps: int
    tokens: int
    """Seen by a forward and a backward pass."""
    scored_tokens: int
    """Seen by a forward pass alone."""
    flops: float
    retrainings: float
    shared_retrainings: float
    """The part that went into models or vectors which other candidates use too."""


@dataclass(frozen=True, slots=True)
class Model:
    """One model of a cell."""

    name: str
    role: Role
    digest: str = ""
    """Of its weights; empty where there are none."""
    source: str = ""
    """Digest of the files it was loaded from; empty for a model made here."""
    weights: str = ""
    """Digest of a given checkpoint's tensors alone, whatever else its files say."""
    seed_no: int | None = None
    """Number among the models of its role."""
    same_draw: bool = False
    """Trained on the injected model's own draw: not exchangeable with the other references."""
    excluded: bool = False
    """A reference that the terms of the run leave out of the comparison."""
    share: float | None = None
    """Share of the injected weights left, of a mixture; of noise, where the label is graded."""
    of: str = ""
    """The reference that a mixture is made of."""
    method: str = ""
    knobs: Mapping[str, Any] = field(default_factory=dict)
    aim: str = ""
    """What the author of the method aims at: restores, suppresses or other."""
    truth: str = ""
    """Of a known-label model: suppressed, partial, graded or restored."""
    knows: tuple[str, ...] = ()
    """What a known-label model knows of the audit."""
    wrapper: bool = False
    """It is more than a checkpoint: code around one."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """How it was trained, where its folder or the command says so."""
    cost: Cost | None = None
    failure: ModelFailure | None = None
    diverged: int | None = None
    """The step at which re-acquisition diverged, of a model judged on its forward scores alone."""
    roster: str = ""
    """Digest of the candidate list that it was measured under."""

    def to_json(self) -> dict[str, Any]:
        """Return the record of ``cell.json``: what differs from the defaults."""
        plain = asdict(self)
        return {name: value for name, value in plain.items() if not _is_default(value)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Model":
        """Return the model that a record describes."""
        values = dict(record)
        values["role"] = Role(values["role"])
        values["knows"] = tuple(values.get("knows", ()))
        for key, kind in (("failure", ModelFailure), ("cost", Cost)):
            if values.get(key) is not None:
                values[key] = kind(**values[key])
        return cls(**values)


def _is_default(value: object) -> bool:
    # By identity where it matters: 0 equals False, and a seed_no or a share may be 0.
    return value is None or value is False or value in ("", {}, ())


def models_from_json(records: object) -> dict[str, Model]:
    """Return the models of a cell by name, in the order of its records."""
    assert isinstance(records, list)
    return {model.name: model for model in map(Model.from_json, records)}
