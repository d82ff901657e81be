"""A model as its evaluation log shows it, and the groups within which models are compared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
"""One number per question, (questions,); NaN where a log has none that is finite."""


def median(values: Values) -> float:
    """Return the median of the finite values; NaN if there is none."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else np.nan


class Role(StrEnum):
    """What a model was trained on: nothing, the retain questions, all, or all and unlearned."""

    PRETRAINED = "pretrained"
    RETRAINED = "retrained"
    FULL = "full"
    CANDIDATE = "candidate"


class Outcome(StrEnum):
    """What the scores of one model show."""

    STILL_KNOWS = "still knows"
    OVER_FORGOTTEN = "over-forgotten"
    DAMAGED = "damaged"
    NOT_TOLD_APART = "not told apart by these scores"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True, eq=False)
class Model:
    """One model: what its log says, its screen, and the outcome."""

    path: Path
    name: str  # of the run folder
    checkpoint: int | None
    benchmark: str
    base: str
    split: str
    role: Role | None
    template: Mapping[str, str]  # settings of the prompt; empty where no configuration gives them
    scores: Mapping[str, Mapping[str, Values]]  # by score: forget and holdout; only with both
    losses: Mapping[str, Values]  # of further questions that unlearning should leave alone
    medians: Mapping[str, float]  # of every set of questions, for reading beside the retrained
    levels: Mapping[str, float]  # aggregate value of every metric
    reason: str = ""  # one that is there before the screen says why not to compare the model
    outcome: Outcome = Outcome.NOT_JUDGED
    score: str = ""
    anchor: Role | None = None
    p_below: float | None = None
    p_above: float | None = None  # None with raw scores, which also differ by difficulty
    median_forget: float | None = None
    median_holdout: float | None = None
    left_out: int = 0  # questions without a finite score in the log or its anchor's
    shifts: Mapping[str, float] = field(default_factory=dict)  # from the retrained, in spreads
    retraining_p: float | None = None  # of being one more of five or more retrainings

    @property
    def label(self) -> str:
        """The name without what all models of a group share."""
        label = self.name.removeprefix(f"{self.benchmark.lower()}_{self.base}_")
        label = label.removeprefix(f"{self.split}_")
        return label if self.checkpoint is None else f"{label}-{self.checkpoint}"

    @property
    def position(self) -> tuple[int, str, float]:
        """What orders the models of a group: references first, checkpoints in order."""
        checkpoint = np.inf if self.checkpoint is None else self.checkpoint
        return [*Role, None].index(self.role), self.name, checkpoint

    @property
    def sets(self) -> dict[str, Values]:
        """Scores of forget and holdout questions, and the losses."""
        return {**self.scores[self.score], **self.losses}

    @property
    def distance(self) -> float | None:
        """Distance from the retrained model: the largest shift of forget, holdout and retain."""
        keys = {"forget", "holdout", "retain"} & self.shifts.keys()
        return max((abs(self.shifts[key]) for key in keys), default=None)


@dataclass(frozen=True)
class Group:
    """Models of one benchmark, base model and split."""

    title: str
    models: tuple[Model, ...]

    @property
    def nearest(self) -> list[Model]:
        """The checkpoint nearest to the retrained model, of every run with several."""
        known = [model for model in self.models if model.distance is not None]
        runs = [list(run) for _, run in groupby(known, lambda model: model.name)]
        return [min(run, key=lambda model: model.distance or 0) for run in runs if len(run) > 1]


@dataclass(frozen=True)
class LogReport:
    """What was found in a set of logs."""

    groups: tuple[Group, ...]
    problems: tuple[str, ...]
