"""Several pocket-sized models evaluated at once.

A pocket model is so small that a ``transformers`` step spends most of its time between kernels.
``StackedNet`` keeps the parameters of ``stack`` models of one configuration side by side, each
under its transformers name with a leading stack axis, and runs the forward of ``forward.py`` on
them. Whatever ``supports`` refuses goes through ``WholeNet``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from palimpsest.errors import ModelError
from palimpsest.models.fast.forward import HEAD, Forward, supports
from palimpsest.models.fast.tape import Params

if TYPE_CHECKING:
    from palimpsest.models.net import Batch


class StackedNet:
    """Models of one pocket-sized configuration, side by side."""

    models: tuple[Any, ...] = ()

    def __init__(
        self, config: Any, states: Sequence[Params], device: torch.device | None = None
    ) -> None:
        if not supports(config):
            kind = getattr(config, "model_type", type(config).__name__)
            raise ModelError(f"{kind} with these settings cannot be stacked; use WholeNet")
        self.config, self.stack, self.forward = config, len(states), Forward(config)
        self.params: dict[str, Tensor] = {}
        for name in states[0]:
            if name != HEAD or not self.forward.tied:
                members = [state[name].detach().to(device, torch.float32) for state in states]
                self.params[name] = torch.stack(members).requires_grad_()

    @property
    def device(self) -> torch.device:
        return self.params[self.forward.family.embedding].device

    def state(self, member: int = 0) -> dict[str, Tensor]:
        state = {name: value.detach()[member].clone() for name, value in self.params.items()}
        if self.forward.tied:
            state[HEAD] = state[self.forward.family.embedding]
        return state

    def logits(self, batch: "Batch", params: Params | None = None) -> Tensor:
        given = self.params if params is None else {**self.params, **params}
        return self.forward(given, batch.tree)
