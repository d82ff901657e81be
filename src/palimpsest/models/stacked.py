"""Several pocket-sized models evaluated at once.

A pocket model is so small that a ``transformers`` step spends most of its time between kernels.
``StackedNet`` keeps the parameters of ``stack`` models of one configuration side by side, each
under its transformers name with a leading stack axis, and runs the forward of ``forward.py`` on
them. Whatever ``supports`` refuses goes through ``WholeNet``.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from palimpsest.errors import ModelError
from palimpsest.models.forward import HEAD, Forward, supports
from palimpsest.models.net import Batch
from palimpsest.models.tape import Params

__all__ = ["StackedNet", "supports"]


class StackedNet:
    """Models of one pocket-sized configuration, side by side."""

    models: tuple[Any, ...] = ()

    def __init__(
        self, config: Any, states: Sequence[Params], device: torch.device | None = None
    ) -> None:
        if not supports(config):
            kind = getattr(config, "model_type", type(config).__name__)
            raise ModelError(f"{kind} with these settings cannot be stacked; use WholeNet")
        self.config = config
        self.stack = len(states)
        self._forward = Forward(config)
        self.params = _stacked(states, HEAD if self._forward.tied else None, device)
        for value in self.params.values():
            value.requires_grad_()

    @property
    def device(self) -> torch.device:
        return self.params[self._forward.family.embedding].device

    def state(self, member: int = 0) -> dict[str, Tensor]:
        state = {name: value.detach()[member].clone() for name, value in self.params.items()}
        if self._forward.tied:
            state[HEAD] = state[self._forward.family.embedding]
        return state

    def logits(self, batch: Batch, params: Params | None = None) -> Tensor:
        given = self.params if params is None else {**self.params, **params}
        return self._forward(given, batch.tree)


def _stacked(
    states: Sequence[Params], without: str | None, device: torch.device | None
) -> dict[str, Tensor]:
    """Return the float32 parameters of all members, stacked, leaving out a tied head."""
    if not states:
        raise ModelError("no state to stack; give at least one")
    shapes = [{name: state[name].shape for name in state if name != without} for state in states]
    for member, other in enumerate(shapes):
        if other != shapes[0]:
            odd = min(name for name, _ in other.items() ^ shapes[0].items())
            raise ModelError(f"states 0 and {member} differ in {odd}; stack models of one shape")
    members = {
        name: [state[name].detach().to(device, torch.float32) for state in states]
        for name in shapes[0]
    }
    return {name: torch.stack(values) for name, values in members.items()}
