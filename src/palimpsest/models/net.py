"""One or several causal language models of one shape, as a function of their parameters.

Everything that trains or scores talks to a ``Net``: it takes a batch of token ids and the
positions somebody asked about, and returns log-probabilities there and nowhere else. Two nets
exist: ``WholeNet`` (here) wraps any ``transformers`` model; ``StackedNet`` in ``stacked.py``
evaluates several pocket-sized models at once. Both carry a leading *stack* axis, so a loss is
written once.

Position ``t`` predicts token ``t + 1``. Batches are right-padded: under causal attention a padded
token can only reach positions behind it, which nobody scores, so no mask is needed.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from palimpsest.models.forward import Forward, supports
from palimpsest.models.module import (
    EVERYWHERE,
    Finish,
    checkpoint,
    device_of,
    head_finish,
    substituted,
)
from palimpsest.models.tree import Tree, tree_of


@dataclass(frozen=True)
class Encoded:
    """One text as token ids, with the span somebody scores.

    ``ids[start:]`` are the scored tokens; ``start`` is at least 1 because the first token of a text
    has no prediction.
    """

    ids: tuple[int, ...]
    start: int

    @property
    def scored(self) -> int:
        return len(self.ids) - self.start


@dataclass(frozen=True)
class Batch:
    """Texts side by side and the positions at which they are scored.

    ids: (rows, width) int64, right-padded.
    rows, columns: (scored,) int64; logits at ``[rows, columns]`` predict ``targets``.
    targets: (scored,) int64.
    """

    ids: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor

    @property
    def scored(self) -> int:
        return len(self.targets)

    @cached_property
    def tree(self) -> Tree:
        """The texts up to their last scored position, with what they share only once."""
        return tree_of(self.ids, self.rows, self.columns)

    def to(self, device: torch.device) -> "Batch":
        if self.ids.device == device:
            return self  # with its tree
        parts = (self.ids, self.rows, self.columns, self.targets)
        return Batch(*(part.to(device) for part in parts))


def collate(texts: Sequence[Encoded], pad: int = 0) -> Batch:
    """Return the batch of these texts, scored tokens in text order."""
    width = max(len(text.ids) for text in texts)
    ids = np.array([[*text.ids, *[pad] * (width - len(text.ids))] for text in texts])
    rows = np.repeat(np.arange(len(texts)), [text.scored for text in texts])
    columns = np.concatenate([np.arange(text.start - 1, len(text.ids) - 1) for text in texts])
    parts = (ids, rows, columns, ids[rows, columns + 1])
    return Batch(*(torch.from_numpy(part) for part in parts))


class Net(Protocol):
    """Models of one shape; ``stack`` of them side by side."""

    stack: int
    models: tuple[Any, ...]
    """The modules inside, whose layers adapters can be put on; a stacked net has none."""
    params: dict[str, Tensor]
    """Trainable leaves under their transformers names; a stacked net has a leading stack axis."""

    def logits(self, batch: Batch, params: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return float32 logits (stack, scored, vocabulary) at the batch's scored positions."""

    def state(self, member: int = 0) -> dict[str, Tensor]:
        """Return the transformers state dict of one member, detached."""

    @property
    def device(self) -> torch.device:
        """Return the device the parameters live on."""


class WholeNet:
    """Any ``transformers`` causal language model, alone (a stack of one).

    On a CPU in float32, architectures that ``forward.py`` knows are evaluated by it, which skips
    padding, common beginnings and unscored positions; the module holds the parameters. Everything
    else, and a module with hooks in it, goes through the module's own forward. The output embedding
    is applied in float32, at scored positions only, whatever the model's dtype.

    optimizer: where AdamW's state is kept (``optimiser.py``).
    checkpointing: keep one activation a layer and compute the others again on the way back.
    lora: rank of the adapters that are trained in the place of the weights; 0 trains the weights.
    """

    def __init__(
        self, model: Any, *, checkpointing: bool = False, optimizer: str = "device", lora: int = 0
    ) -> None:
        self.model = model
        self.models: tuple[Any, ...] = (model,)
        self.stack = 1
        self.optimizer, self.lora = optimizer, lora
        self.spread = bool(getattr(model, "hf_device_map", None))
        self.params: dict[str, Tensor] = dict(model.named_parameters())
        self._head = model.get_output_embeddings()
        self._finish: Finish | None = None
        self._given: Mapping[str, Tensor] | None = None
        if checkpointing:
            checkpoint(model, self._recomputing)
        self._known = self._knowable()

    @property
    def device(self) -> torch.device:
        return device_of(self.params.values())

    def logits(self, batch: Batch, params: Mapping[str, Tensor] | None = None) -> Tensor:
        if self._known is None:
            self._known = self._agrees(batch)
        if self._known and not self._hooked():
            given = self.params if params is None else {**self.params, **params}
            return Forward(self.model.config)(
                {name: value.unsqueeze(0) for name, value in given.items()}, batch.tree
            )
        if params is None:
            return self._scored(batch)
        self._given = params
        try:
            with substituted(self.model, params):
                return self._scored(batch)
        finally:
            self._given = None

    def state(self, member: int = 0) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.model.state_dict().items()}

    def _scored(self, batch: Batch) -> Tensor:
        """Return the logits by the module's own forward."""
        if self._finish is None:
            self._finish = head_finish(self.model, self._head, batch.ids[:1, :8])
        if self._finish is EVERYWHERE:
            full = self.model(input_ids=batch.ids, use_cache=False).logits
            return full[batch.rows, batch.columns].float().unsqueeze(0)
        hidden = self.model.base_model(input_ids=batch.ids, use_cache=False)[0]
        hidden = hidden.to(batch.rows.device)[batch.rows, batch.columns].float()
        with self._head_here():
            weight, bias = self._head.weight, getattr(self._head, "bias", None)
            bias = None if bias is None else bias.float()
            scored = functional.linear(hidden, weight.float(), bias)
        return self._finish(scored).unsqueeze(0)

    def _head_here(self) -> AbstractContextManager[None]:
        """Have the head's weights on the net's device, where those of a spread model are not."""
        if not self.spread:
            return nullcontext()
        from accelerate.utils import align_module_device

        here: AbstractContextManager[None] = align_module_device(self._head, self.device)
        return here

    def _recomputing(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return what surrounds a checkpointed layer: now, and when it is computed again."""
        given = self._given
        again = nullcontext() if given is None else substituted(self.model, given)
        return nullcontext(), again

    def _knowable(self) -> bool | None:
        """Return False where the module's own forward is needed, None where it is not yet known."""
        config = getattr(self.model, "config", None)
        plain = all(
            value.dtype == torch.float32 and value.device.type == "cpu"
            for value in self.params.values()
        )
        resting = not self.model.training
        checkpointing = getattr(self.model, "is_gradient_checkpointing", False)
        plain = plain and not (self.lora or self.spread or checkpointing)
        return None if plain and resting and supports(config) else False

    @torch.no_grad()
    def _agrees(self, batch: Batch) -> bool:
        """Tell whether our forward gives the module's logits; on the start of one text, once."""
        row = batch.ids[:1, :8]
        columns = torch.arange(row.shape[1])
        tree = tree_of(row, torch.zeros_like(columns), columns)
        given = {name: value.unsqueeze(0) for name, value in self.params.items()}
        try:
            ours = Forward(self.model.config)(given, tree)[0]
        except (KeyError, RuntimeError):  # names or shapes that the configuration does not imply
            return False
        theirs = self.model(input_ids=row, use_cache=False).logits[0]
        return torch.allclose(ours, theirs, atol=1e-4, rtol=1e-3)

    def _hooked(self) -> bool:
        """Tell whether somebody listens inside the module, and so needs it to run."""
        return any(
            part._forward_hooks or part._forward_pre_hooks or part._backward_hooks
            for part in self.model.modules()
        )
