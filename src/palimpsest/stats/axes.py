"""The axes on which a model is compared with retrainings: one table, and everything reads it.

An axis turns a model's measures into one number. Verdict, controls, tables, figures and bundles
iterate over ``AXES``; a further axis is one more entry here and the code that measures it, whose
numbers reach ``ModelMeasures.extra``. Both directions count, because a router and a collapsed model
are given away by being too good.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from palimpsest.errors import ScoreError

if TYPE_CHECKING:
    from palimpsest.stats.measures import ModelMeasures
    from palimpsest.stats.rules import Rules

NO_LOSS = ", which is a change but no loss"
"""Said of a model that is better than the retrainings at what unlearning should leave alone."""


class Sign(StrEnum):
    """What a model far from the retrainings shows there."""

    KNOWS = "suppressed"
    """It knows more of the forget facts than a retraining, openly or hidden."""
    FORGETS = "over-forgotten"
    """It knows less of them than a model that never saw them."""
    DAMAGES = "damaged"
    """Something other than the forget facts changed."""


@dataclass(frozen=True, slots=True)
class Side:
    """One direction of an axis: what it shows, and what a model there did, to follow its name."""

    sign: Sign
    words: str


@dataclass(frozen=True, slots=True)
class Axis:
    """One number per model, by the same code for candidates, references and controls."""

    name: str
    meaning: str
    """One sentence for the glossary."""
    read: Callable[["ModelMeasures"], float | None]
    """Return the model's number, or None where it was not measured."""
    low: Side
    """Of a model far below the retrainings."""
    high: Side
    """Of a model far above them."""
    reacquired: bool = False
    """Whether it is measured after or during re-acquisition."""
    stake: Literal["injected", "base"] = "injected"
    """What was at stake is the references' distance from this model."""
    stake_axis: str | None = None
    """The axis whose stake is used where this one has none of its own."""
    unit: str = "nats"
    measure: str | None = None
    """The measure of a model that it reads, where that must be asked for."""

    @property
    def title(self) -> str:
        """The name in words."""
        return self.name.replace("_", " ")

    def side(self, offset: float) -> Side:
        """Return the side of a model that lies this far above (or below) the retrainings."""
        return self.high if offset >= 0 else self.low


def _curve(name: str, chunk: Callable[[int], int]) -> Callable[["ModelMeasures"], float | None]:
    """Return a reader of the re-acquisition log after a chunk; ``chunk`` is given their number."""

    def read(model: "ModelMeasures") -> float | None:
        if model.curve is None:
            return None
        values = getattr(model.curve, name)
        return float(values[chunk(len(values) - 1)])

    return read


def _first(chunks: int) -> int:
    return 1


def _middle(chunks: int) -> int:
    """The second of five chunks: late ones sit on the floor, where models do not differ."""
    return max(1, chunks // 2)


AXES: tuple[Axis, ...] = (
    Axis(
        name="forget",
        meaning="Median over forget facts of the held-out NLL minus base's.",
        read=lambda model: model.median_forget_delta,
        low=Side(Sign.KNOWS, "still knows the forget facts"),
        high=Side(Sign.FORGETS, "knows less of the forget facts than a retraining"),
    ),
    Axis(
        name="weakest",
        meaning="Smallest held-out NLL minus base's over the forget facts.",
        read=lambda model: float(model.forget_deltas.min()),
        low=Side(Sign.KNOWS, "still knows at least one forget fact"),
        high=Side(Sign.FORGETS, "knows every forget fact less well than a retraining"),
    ),
    Axis(
        name="drift",
        meaning="Median over never-learned probes of the held-out NLL minus base's.",
        read=lambda model: model.median_probe_delta,
        stake_axis="forget",
        low=Side(Sign.DAMAGES, f"answers never-learned probes better than a retraining{NO_LOSS}"),
        high=Side(Sign.DAMAGES, "answers never-learned probes worse than a retraining"),
    ),
    Axis(
        name="retain",
        meaning="Mean NLL of the retain facts.",
        read=lambda model: model.retain_nll,
        stake="base",
        low=Side(Sign.DAMAGES, f"fits the retain facts better than a retraining{NO_LOSS}"),
        high=Side(Sign.DAMAGES, "fits the retain facts worse than a retraining"),
    ),
    Axis(
        name="general",
        meaning="NLL per position of general text.",
        read=lambda model: model.general_nll,
        stake="base",
        low=Side(Sign.DAMAGES, f"models general text better than a retraining{NO_LOSS}"),
        high=Side(Sign.DAMAGES, "models general text worse than a retraining"),
    ),
    Axis(
        name="residual",
        meaning="KL divergence from the injected model after re-acquisition, on retain facts plus "
        "general text.",
        read=lambda model: model.residual,
        reacquired=True,
        stake="base",
        low=Side(
            Sign.KNOWS, "comes closer to the injected model than a retraining after re-acquisition"
        ),
        high=Side(
            Sign.DAMAGES,
            "stays further from the injected model than a retraining after re-acquisition",
        ),
    ),
    Axis(
        name="relearn_early",
        meaning="Held-out forget NLL after the first chunk of re-acquisition.",
        read=_curve("forget_heldout_nll", _first),
        reacquired=True,
        low=Side(Sign.KNOWS, "relearns the forget facts faster than a retraining"),
        high=Side(Sign.FORGETS, "relearns the forget facts more slowly than a retraining"),
    ),
    Axis(
        name="relearn_mid",
        meaning="Held-out forget NLL halfway through re-acquisition.",
        read=_curve("forget_heldout_nll", _middle),
        reacquired=True,
        low=Side(
            Sign.KNOWS,
            "knows more of the forget facts than a retraining halfway through relearning",
        ),
        high=Side(
            Sign.FORGETS,
            "knows less of the forget facts than a retraining halfway through relearning",
        ),
    ),
    Axis(
        name="trained_mid",
        meaning="NLL of the forget facts in trained phrasings halfway through re-acquisition.",
        read=_curve("forget_trained_nll", _middle),
        reacquired=True,
        low=Side(Sign.KNOWS, "relearns trained phrasings faster than a retraining"),
        high=Side(Sign.FORGETS, "relearns trained phrasings more slowly than a retraining"),
    ),
    Axis(
        name="retain_mid",
        meaning="NLL of the retain facts halfway through re-acquisition.",
        read=_curve("retain_nll", _middle),
        reacquired=True,
        stake="base",
        low=Side(
            Sign.DAMAGES,
            f"keeps retain facts better during re-acquisition than a retraining{NO_LOSS}",
        ),
        high=Side(Sign.DAMAGES, "loses more retain facts during re-acquisition than a retraining"),
    ),
    Axis(
        name="reversed",
        meaning="Mean log-probability of the forget answers when asked from the object to the "
        "subject.",
        read=lambda model: model.extra.get("reversed"),
        measure="reversed",
        low=Side(
            Sign.FORGETS,
            "answers reversed questions worse than a retraining",
        ),
        high=Side(
            Sign.KNOWS,
            "answers reversed questions better than a retraining, which shows hidden knowledge",
        ),
    ),
)
"""A certificate leaves none of them out that could be measured."""


def axis(name: str) -> Axis:
    """Return the axis of this name."""
    for entry in AXES:
        if entry.name == name:
            return entry
    known = ", ".join(entry.name for entry in AXES)
    raise ScoreError(f"there is no axis {name!r}; known are {known}")


def chosen(rules: "Rules") -> tuple[Axis, ...]:
    """Return the axes of the rules, in the order of the table."""
    return tuple(entry for entry in AXES if entry.name in rules.axes)
