"""The axes on which a model is compared with retrainings: one table, and everything reads it.

An axis turns a model's measures into one number. Verdict, controls, tables, figures and bundles
iterate over ``AXES`` (or over those that the rules choose); a further axis is one more entry here
and the code that measures it, whose numbers reach ``ModelMeasures.extra``.

Axes are two-sided by default, because a router and a collapsed model are given away by being too
good.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from palimpsest.errors import ScoreError

if TYPE_CHECKING:
    from palimpsest.criteria.measures import ModelMeasures
    from palimpsest.criteria.rules import Rules

Sides = Literal["two", "low", "high"]
Needs = Literal["forward", "round trip", "hidden states"]


@dataclass(frozen=True, slots=True)
class Axis:
    """One number per model, by the same code for candidates, references and controls."""

    name: str
    short: str
    """Heading of a narrow column."""
    meaning: str
    """One sentence for the glossary."""
    read: Callable[["ModelMeasures"], float | None]
    """Return the model's number, or None where it was not measured."""
    needs: Needs
    stake: Literal["injected", "base"]
    """What was at stake is the references' distance from this model."""
    low: str
    """What a model far below the retrainings did, to follow its name in a sentence."""
    high: str
    """The same for a model far above them."""
    unit: str = "nats"
    sides: Sides = "two"
    """Which side counts against a model: both, only below ("low") or only above ("high")."""
    stake_axis: str | None = None
    """The axis whose stake is used where this one has none of its own."""
    recipe: bool = False
    """The injected model shares the references' recipe and should lie near them here."""

    @property
    def title(self) -> str:
        """The name in words."""
        return self.name.replace("_", " ")


def _relearned(chunk: int) -> Callable[["ModelMeasures"], float | None]:
    def read(model: "ModelMeasures") -> float | None:
        return None if model.curve is None else float(model.curve.forget_heldout_nll[chunk])

    return read


AXES: tuple[Axis, ...] = (
    Axis(
        name="forget",
        short="forget",
        meaning="Median over forget facts of the held-out NLL minus base's.",
        read=lambda model: model.median_forget_delta,
        needs="forward",
        stake="injected",
        low="still knows the forget facts",
        high="knows less of the forget facts than a retrained model: over-forgetting",
    ),
    Axis(
        name="weakest",
        short="weakest",
        meaning="Smallest held-out NLL minus base's over the forget facts.",
        read=lambda model: float(model.forget_deltas.min()),
        needs="forward",
        stake="injected",
        low="still knows at least one forget fact",
        high="knows less of every forget fact than a retrained model",
    ),
    Axis(
        name="drift",
        short="drift",
        meaning="Median over never-learned probes of the held-out NLL minus base's.",
        read=lambda model: model.median_probe_delta,
        needs="forward",
        stake="injected",
        stake_axis="forget",
        recipe=True,
        low="answers never-learned probes better than a retrained model",
        high="answers never-learned probes worse than a retrained model: general damage",
    ),
    Axis(
        name="retain",
        short="retain",
        meaning="Mean NLL of the retain facts.",
        read=lambda model: model.retain_nll,
        needs="forward",
        stake="base",
        recipe=True,
        low="fits the retain facts better than a retrained model: trained further on them",
        high="lost retain facts",
    ),
    Axis(
        name="general",
        short="general",
        meaning="NLL per position of general text.",
        read=lambda model: model.general_nll,
        needs="forward",
        stake="base",
        recipe=True,
        low="models general text better than a retrained model: trained further on it",
        high="models general text worse than a retrained model",
    ),
    Axis(
        name="residual",
        short="residual",
        meaning="KL divergence from the injected model that is left after the forget facts were "
        "re-acquired: sum over retain facts and general text.",
        read=lambda model: model.residual,
        needs="round trip",
        stake="base",
        low="returns to the injected model more closely than a retrained model: its weights are "
        "still those of the injected model",
        high="does not return to the injected model: damage beside the forget facts",
    ),
    Axis(
        name="relearn_early",
        short="early",
        meaning="Held-out forget NLL after the first chunk of re-acquisition.",
        read=_relearned(1),
        needs="round trip",
        stake="injected",
        low="relearns the forget facts faster than a retrained model: latent knowledge",
        high="relearns the forget facts more slowly than a retrained model",
    ),
    Axis(
        name="relearn_late",
        short="late",
        meaning="Held-out forget NLL after the last chunk of re-acquisition.",
        read=_relearned(-1),
        needs="round trip",
        stake="injected",
        low="relearns the forget facts further than a retrained model: latent knowledge",
        high="relearns the forget facts less far than a retrained model",
    ),
)


def axis(name: str) -> Axis:
    """Return the axis of this name."""
    for entry in AXES:
        if entry.name == name:
            return entry
    raise ScoreError(f"there is no axis {name!r}; known are {', '.join(a.name for a in AXES)}")


def chosen(rules: "Rules") -> tuple[Axis, ...]:
    """Return the axes of the rules, in the order of the table."""
    return tuple(entry for entry in AXES if entry.name in rules.axes)
