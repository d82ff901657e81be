"""A model as one evaluation log shows it, and the groups within which models are compared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from palimpsest.openunlearning.screening import Screen

Values = NDArray[np.float64]
"""One number per question, (questions,); NaN where a log has none that is finite."""


def median(values: Values) -> float:
    """Return the median of the finite values; NaN if there is none."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else np.nan


class Role(StrEnum):
    """What a model was trained on: nothing, all, the retain questions, or all and unlearned."""

    PRETRAINED = "pretrained"
    FULL = "full"
    RETRAINED = "retrained"
    CANDIDATE = "candidate"


class Outcome(StrEnum):
    """What the scores of one model show."""

    STILL_KNOWS = "still knows"
    STILL_KNOWS_DAMAGED = "still knows and damaged"
    OVER_FORGOTTEN = "over-forgotten"
    OVER_FORGOTTEN_DAMAGED = "over-forgotten and damaged"
    DAMAGED = "damaged"
    NOT_TOLD_APART = "not told apart by these scores"
    ANCHOR = "anchor"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True, eq=False)
class Model:
    """One model: what its log says, its screen, and the outcome."""

    path: Path
    name: str  # of the run folder
    role: Role | None
    scores: Mapping[str, Mapping[str, Values]]  # by score: forget and holdout; only with both
    losses: Mapping[str, Values]  # of further questions that unlearning should leave alone
    medians: Mapping[str, float]  # of every set of questions, for reading beside the retrained
    levels: Mapping[str, float]  # aggregate value of every metric
    benchmark: str = ""
    base: str = ""
    split: str = ""
    checkpoint: int | None = None
    template: Mapping[str, str] = field(default_factory=dict)  # of the prompt; empty if unknown
    reason: str = ""  # one that is there before the screen says why not to compare the model
    last: bool = True  # log of its run
    outcome: Outcome = Outcome.NOT_JUDGED
    score: str = ""
    anchor: Role | None = None  # None with raw scores
    anchor_logs: tuple[Path, ...] = ()
    reference_logs: tuple[Path, ...] = ()  # of the retrained models that shifts are from
    screen: Screen | None = None
    adjusted_below: float | None = None
    adjusted_above: float | None = None
    family: int = 0  # tests over which p-values are adjusted
    shifts: Mapping[str, float] = field(default_factory=dict)  # from the retrained, in spreads
    retraining_p: float | None = None  # of being one more of five or more retrainings

    @property
    def label(self) -> str:
        """The name without what all models of a group share."""
        label = self.name.removeprefix(f"{self.benchmark.lower()}_{self.base}_")
        label = label.removeprefix(f"{self.split}_")
        return label if self.checkpoint is None else f"{label}-{self.checkpoint}"

    @property
    def group(self) -> str:
        """The title of the group in which it is compared: one split of one base model."""
        return " ".join(filter(None, (self.benchmark, self.base, self.split)))

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
    def p_below(self) -> float | None:
        """P-value of forget questions below holdout questions; None if not screened."""
        return None if self.screen is None else self.screen.p_below

    @property
    def p_above(self) -> float | None:
        """The other side; None with raw scores too, which also differ by difficulty."""
        return self.screen.p_above if self.screen and self.screen.anchored else None

    @property
    def distance(self) -> float | None:
        """Distance from the retrained model: the largest shift of forget, holdout and retain."""
        keys = {"forget", "holdout", "retain"} & self.shifts.keys()
        return max((abs(self.shifts[key]) for key in keys), default=None)


@dataclass(frozen=True)
class Group:
    """Models of one benchmark, base model and split, references first, checkpoints in order."""

    title: str
    models: tuple[Model, ...]

    @property
    def runs(self) -> list[list[Model]]:
        """The logs of every run, the last one at the end."""
        return [list(run) for _, run in groupby(self.models, lambda m: (m.role, m.name))]

    @property
    def nearest(self) -> list[Model]:
        """The checkpoint nearest to the retrained model, of every run with several."""
        known = [[m for m in run if m.distance is not None] for run in self.runs]
        return [min(run, key=lambda m: m.distance or 0) for run in known if len(run) > 1]


@dataclass(frozen=True)
class LogReport:
    """What was found in a set of logs."""

    groups: tuple[Group, ...]
    problems: tuple[str, ...]

    def __repr__(self) -> str:
        models, problems = sum(len(group.models) for group in self.groups), len(self.problems)
        return f"<LogReport: {models} logs in {len(self.groups)} groups, {problems} problems>"
