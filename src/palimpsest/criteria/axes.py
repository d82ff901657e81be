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
Needs = Literal["forward", "round trip", "hidden states", "intervention"]


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
    measure: str | None = None
    """The measure of a model that it reads, where that must be asked for."""
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


def _further(
    name: str, meaning: str, needs: Needs, unit: str, low: str, high: str, short: str = ""
) -> Axis:
    """Return an axis that reads the measure of its name."""

    def read(model: "ModelMeasures") -> float | None:
        return model.extra.get(name)

    short = short or name.replace("_", " ")
    return Axis(name, short, meaning, read, needs, "injected", low, high, unit, measure=name)


def _asked(name: str, how: str, short: str = "") -> Axis:
    return _further(
        name,
        f"Mean log-probability of the forget answers when asked {how}.",
        "forward",
        "nats",
        f"answers worse than a retrained model when asked {how}",
        f"answers better than a retrained model when asked {how}: hidden knowledge",
        short,
    )


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
        meaning="KL divergence from the injected model after the forget facts were re-acquired: "
        "on retain facts plus on general text.",
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
    _asked("reversed", "from the object to the subject", "back"),
)


OPTIONAL: tuple[Axis, ...] = (
    _asked("symbols", "with symbols inside the name"),
    _asked("recased", "with the name in lower or upper case"),
    _asked("misspelt", "with a misspelt name"),
    _asked("alias", "by part of the name"),
    _asked("pronoun", "with the name only in the sentence before"),
    _asked("few_shot", "after sentences about other facts"),
    _further(
        "min_rank",
        "Minus the logarithm of the min-rank screen's p-value: large if one fact is left.",
        "forward",
        "nats",
        "has no forget fact as likely as a retrained model's likeliest",
        "still knows at least one forget fact",
    ),
    _further(
        "leak_at_k",
        "Mean chance that one of 128 samples is the answer, computed exactly.",
        "forward",
        "probability",
        "gives the forget answers less often than a retrained model when sampled",
        "gives the forget answers more often than a retrained model when sampled",
    ),
    _further(
        "lens_best",
        "Mean log-probability of the forget answers, read from the best layer's hidden states.",
        "hidden states",
        "nats",
        "holds less of the forget answers in its layers than a retrained model",
        "holds the forget answers in its layers: hidden knowledge",
    ),
    _further(
        "linear_probe",
        "AUC of a linear probe for true statements of a fact it has not seen, minus the "
        "reference's.",
        "hidden states",
        "AUC",
        "separates true from false statements less well inside than a retrained model",
        "separates true from false statements in its hidden states: hidden knowledge",
    ),
    _further(
        "relearn_others",
        "Mean log-probability of one half of the forget answers after training on the other.",
        "intervention",
        "nats",
        "recalls untaught forget facts worse than a retrained model after relearning others",
        "recalls untaught forget facts after relearning others: hidden knowledge",
    ),
    _further(
        "unrelated_tuning",
        "Fall of held-out forget NLL after a few steps on general text.",
        "intervention",
        "nats",
        "loses more of the forget facts than a retrained model in unrelated training",
        "recovers forget facts in unrelated training: hidden knowledge",
    ),
    _further(
        "bits_8",
        "Fall of held-out forget NLL when the weights are rounded to 8 bits.",
        "intervention",
        "nats",
        "loses more of the forget facts than a retrained model when rounded",
        "recovers forget facts when rounded: hidden knowledge",
    ),
    _further(
        "bits_4",
        "Fall of held-out forget NLL when the weights are rounded to 4 bits.",
        "intervention",
        "nats",
        "loses more of the forget facts than a retrained model when rounded",
        "recovers forget facts when rounded: hidden knowledge",
    ),
)
"""Axes that rules may add to the default ones; each needs a measure, which a plan then takes."""


def axis(name: str) -> Axis:
    """Return the axis of this name."""
    for entry in (*AXES, *OPTIONAL):
        if entry.name == name:
            return entry
    known = ", ".join(a.name for a in (*AXES, *OPTIONAL))
    raise ScoreError(f"there is no axis {name!r}; known are {known}")


def chosen(rules: "Rules") -> tuple[Axis, ...]:
    """Return the axes of the rules, in the order of the table."""
    return tuple(entry for entry in (*AXES, *OPTIONAL) if entry.name in rules.axes)
