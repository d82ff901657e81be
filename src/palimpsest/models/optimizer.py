"""The optimizers of the training loop, on float32 master weights.

A step of AdamW is smaller than the spacing of bfloat16 numbers, so weights that are not float32
are trained through float32 copies of them. Moments are float32 and lie beside the weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

LENGTH = 0.35
"""Of a step along the gradient, as a fraction of AdamW's: it goes further."""


class AdamW:
    """torch's fused AdamW without weight decay, and without its search through groups each step.

    stack: number of models in a leaf.
    scales: one per leaf; a step is taken on leaf / scale, whose gradient is the leaf's times scale,
        so that two models which differ only in how their weights are scaled are trained alike.
    """

    def __init__(
        self,
        leaves: Sequence[Tensor],
        learning_rate: float,
        stack: int = 1,
        scales: Sequence[Tensor] = (),
    ) -> None:
        self.leaves, self.learning_rate, self.stack = leaves, learning_rate, stack
        self.scales = scales
        # The leaf itself where it is float32 already.
        self.masters = [
            leaf if leaf.dtype == torch.float32 else leaf.detach().float() for leaf in leaves
        ]
        if scales:
            self.masters = [leaf.detach().float() / scale for leaf, scale in zip(leaves, scales)]
        self.first = [torch.zeros_like(master, requires_grad=False) for master in self.masters]
        self.second = [torch.zeros_like(moment) for moment in self.first]
        self.steps = [0] * len(leaves)

    @torch.no_grad()
    def step(self) -> None:
        grads = {n: leaf.grad for n, leaf in enumerate(self.leaves) if leaf.grad is not None}
        for n in grads:
            self.steps[n] += 1
        if plain := [n for n in grads if self.masters[n].dtype == self.leaves[n].dtype]:
            self._update(plain, [grads[n] for n in plain])
            for n in plain if self.scales else ():
                torch.mul(self.masters[n], self.scales[n], out=self.leaves[n])
        # The others one at a time, so that only one float32 gradient exists at a time.
        for n, grad in grads.items():
            if n not in plain:
                self._update([n], [grad.float()])
                scaled = self.masters[n] * self.scales[n] if self.scales else self.masters[n]
                self.leaves[n].copy_(scaled)

    def _update(self, known: Sequence[int], grads: list[Any]) -> None:
        """Take a step on the masters of these leaves."""
        masters, first, second = (
            [row[n] for n in known] for row in (self.masters, self.first, self.second)
        )
        # Most leaves have taken the same number of steps: one tensor says it for all of them.
        counts = {
            number: torch.tensor(float(number), device=masters[0].device)
            for number in {self.steps[n] for n in known}
        }
        steps = [counts[self.steps[n]] for n in known]
        settings: dict[str, Any] = {"lr": self.learning_rate, "beta1": 0.9, "beta2": 0.999}
        settings |= {"weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}
        torch._fused_adamw_(masters, grads, first, second, [], steps, **settings)


class Momentum(AdamW):
    """Gradient descent with momentum, each tensor's step of a length set by the rate.

    Δ = 0.35 · rate · √size · m / ‖m‖ with m ← β m + g, tensor by tensor and member by member, so
    that one learning rate serves it and AdamW.
    """

    beta = 0.9

    def _update(self, known: Sequence[int], grads: list[Any]) -> None:
        for n, grad in zip(known, grads):
            moment = self.first[n]
            flat = moment.mul_(self.beta).add_(grad).reshape(self.stack, -1)
            length = torch.linalg.vector_norm(flat, dim=1, keepdim=True).clamp(min=1e-12)
            step = flat / length * (LENGTH * self.learning_rate * flat.shape[1] ** 0.5)
            self.masters[n].sub_(step.reshape(moment.shape))


class Descent(Momentum):
    """The same without memory."""

    beta = 0.0


OPTIMIZERS: Mapping[str, type[AdamW]] = {
    "adamw": AdamW,
    "momentum": Momentum,
    "descent": Descent,
}
"""AdamW, and those that a beacon may draw for re-acquisition."""
