"""Whether a recipe teaches the forget data as well as the injected model knows them.

A vector subtracts what learning the forget data does. Learned at too low a rate, or from texts that
are not those of the injected model, it takes too little away, and nothing else would show it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from palimpsest.cell.texts import CellTexts
from palimpsest.errors import MethodError
from palimpsest.models.net import Encoded, Net, collate

ENOUGH = 0.5
"""Share of the way from base to the injected model that a model made for a vector must come."""
KNOWN = 0.05
"""Nats per token by which the injected model must know the forget data better than base."""


@dataclass(frozen=True)
class TrainingFit:
    """Mean NLL of the answers of the forget data, in nats per token, of three models."""

    base: float
    injected: float
    made: float

    @property
    def reached(self) -> float:
        """The share of the way from base to the injected model."""
        return (self.base - self.made) / max(self.base - self.injected, 1e-9)

    def __str__(self) -> str:
        return (
            f"NLL of the forget data per token: base {self.base:.2f}, injected "
            f"{self.injected:.2f}, this one {self.made:.2f}"
        )


@torch.no_grad()
def mean_nll(net: Net, texts: Sequence[Encoded], rows: int = 16) -> float:
    """Return the mean NLL of the scored tokens of these texts under a net of one member."""
    total = 0.0
    for start in range(0, len(texts), rows):
        batch = collate(texts[start : start + rows]).to(net.device)
        logits = net.logits(batch)[0]
        total += float(functional.cross_entropy(logits, batch.targets, reduction="sum"))
    return total / sum(text.scored for text in texts)


def check_known(dose: TrainingFit) -> None:
    """Refuse an injected model that does not know the forget data."""
    if dose.base - dose.injected < KNOWN:
        raise MethodError(
            f"the injected model knows the forget data no better than base ({dose.injected:.2f} "
            f"against {dose.base:.2f} nats per token); expected the texts it was trained on; give "
            "them as it saw them, and check --base and --injected"
        )


def check_reached(setting: CellTexts, dose: TrainingFit) -> None:
    """Refuse a model that learned too little of what the injected model knows."""
    check_known(dose)
    if not dose.reached >= ENOUGH:
        steps = len(setting.stream().steps)
        raise MethodError(
            f"the model trained for the vector came {dose.reached:.0%} of the way from base to the "
            f"injected model ({dose}); expected at least {ENOUGH:.0%}; {steps} steps at "
            f"{setting.learning_rate:g} are not the recipe of the injected model: give its "
            "--learning-rate and --steps or --epochs"
        )
