"""Optimisers of re-acquisition that a beacon may draw; one learning rate serves all of them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from palimpsest.models.train import AdamW

LENGTH = 0.35
"""Of a step, as a share of AdamW's: a step along the gradient goes further."""


class Momentum(AdamW):
    """Gradient descent with momentum, each tensor's step of a length set by the rate.

    Δ = 0.35 · rate · √size · m / ‖m‖ with m ← β m + g, tensor by tensor and member by member.
    """

    beta = 0.9

    def _update(self, known: Sequence[int], grads: list[Tensor]) -> None:
        for n, grad in zip(known, grads):
            moment = self.first[n].mul_(self.beta).add_(grad)
            flat = moment.reshape(self.stack, -1)
            length = torch.linalg.vector_norm(flat, dim=1, keepdim=True).clamp(min=1e-12)
            step = flat / length * (LENGTH * self.learning_rate * flat.shape[1] ** 0.5)
            self.masters[n].sub_(step.reshape(moment.shape))


class Descent(Momentum):
    """The same without memory."""

    beta = 0.0


OPTIMISERS: Mapping[str, type[AdamW]] = {
    "adamw": AdamW,
    "momentum": Momentum,
    "descent": Descent,
}
"""By the names of ``criteria/beacon.py``, and AdamW."""
