"""Optimisers of re-acquisition that a beacon may draw; rates mean the same to all of them.

Each step changes a weight by about the learning rate, as AdamW does, so that one dose serves all.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from palimpsest.models.train import AdamW

MOMENTUM = 0.9


class ShortAdamW(AdamW):
    """AdamW that forgets sooner."""

    betas = (0.7, 0.9)


class Momentum(AdamW):
    """Gradient descent with momentum; each tensor's step has the length AdamW's would have.

    Δ = rate · √size · m / ‖m‖ with m ← 0.9 m + g, tensor by tensor and member by member.
    """

    def _update(self, known: Sequence[int], grads: list[Tensor]) -> None:
        for n, grad in zip(known, grads):
            moment = self.first[n].mul_(MOMENTUM).add_(grad)
            flat = moment.reshape(self.stack, -1)
            length = torch.linalg.vector_norm(flat, dim=1, keepdim=True).clamp(min=1e-12)
            step = flat / length * (self.learning_rate * flat.shape[1] ** 0.5)
            self.masters[n].sub_(step.reshape(moment.shape))


OPTIMISERS: Mapping[str, type[AdamW]] = {
    "adamw": AdamW,
    "adamw_short": ShortAdamW,
    "momentum": Momentum,
}
"""By the names of ``criteria/beacon.py``."""
