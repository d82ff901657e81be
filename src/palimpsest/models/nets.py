"""Nets of one architecture made out of state dicts: stacked where that is faster, else one student.

Pocket-sized models of a known family become a ``StackedNet``. Anything else is trained and scored
in one module whose weights are exchanged, so memory does not grow with the number of candidates.
"""

import copy
import weakref
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from palimpsest.models.fast import StackedNet, supports
from palimpsest.models.load import Loaded
from palimpsest.models.net import Net, WholeNet

STACKED_PARAMETERS = 5_000_000
"""Above this size a step is bound by arithmetic and stacking gains nothing."""


class Nets:
    """Makes nets that share the loaded model's architecture."""

    def __init__(
        self, loaded: Loaded, *, stack: int = 4, checkpointing: bool = False, lora: int = 0
    ) -> None:
        self.loaded, self._checkpointing, self._lora = loaded, checkpointing, lora
        self._student: WholeNet | None = None
        self._lent: weakref.ref[WholeNet] | None = None
        weight = next(iter(loaded.weights.values()))
        self.device = weight.device
        # A stack is float32, and adapters belong to one model.
        fits = loaded.parameters <= STACKED_PARAMETERS and supports(loaded.config) and not lora
        self.stacked = fits and stack > 1 and weight.dtype == torch.float32
        self.stack = stack if self.stacked else 1

    def __call__(self, states: Sequence[Mapping[str, Tensor]]) -> Net:
        """Return a trainable net of these weights; a whole net is valid until the next call."""
        if self.stacked:
            return StackedNet(self.loaded.config, list(states), device=self.device)
        if len(states) != 1:
            raise ValueError(f"{len(states)} states for a net of one; check Nets.stack first")
        return self.whole(states[0])

    def whole(self, state: Mapping[str, Tensor]) -> WholeNet:
        """Return the one ``transformers`` student with these weights in it."""
        if self._student is None:
            self._student = self._wrapped()
        return _filled(self._student, state)

    def another(self, state: Mapping[str, Tensor]) -> Net:
        """Return a net that stays valid beside others, for models made of two.

        The student itself while it is free, so that no idle weights are on the device.
        """
        if self.stacked:
            return StackedNet(self.loaded.config, [state], device=self.device)
        net, self._student = self._student or self._wrapped(), None
        if net.model is self.loaded.model:
            self._lent = weakref.ref(net)
        return _filled(net, state)

    def _wrapped(self) -> WholeNet:
        """Return a net of the loaded module, or of a copy while that one is lent."""
        free = self._lent is None or self._lent() is None
        model = self.loaded.model if free else copy.deepcopy(self.loaded.model)
        return WholeNet(model, checkpointing=self._checkpointing, lora=self._lora)


@torch.no_grad()
def _filled(net: WholeNet, state: Mapping[str, Tensor]) -> WholeNet:
    """Return the net with these weights, taken one by one: they may lie in a file."""
    for parameter in net.params.values():
        parameter.grad = None
        parameter.requires_grad_(True)
    own = net.model.state_dict()
    if own.keys() != state.keys() or any(own[name].shape != state[name].shape for name in own):
        net.model.load_state_dict(dict(state), strict=True)  # says what does not fit
        return net
    for name, value in own.items():
        value.copy_(state[name])
    return net
