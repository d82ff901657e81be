"""One or several causal language models of one shape, as a function of their parameters.

Everything that trains or scores talks to a ``Net``: it takes a batch of token ids and positions,
and returns log-probabilities there and nowhere else. Two nets exist: ``WholeNet`` (here) wraps any
``transformers`` model; ``StackedNet`` in ``fast`` evaluates several pocket-sized models at once.
Both carry a leading *stack* axis, so a loss is written once.

Position ``t`` predicts token ``t + 1``. Batches are right-padded: under causal attention a padded
token can only reach positions behind it, which are not scored, so no mask is needed.

``Nets`` makes nets of one architecture out of state dicts. Pocket-sized models of a known family
become a ``StackedNet``. Anything else is trained and scored in one module whose weights are
exchanged, so memory does not grow with the number of candidates.
"""

import copy
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import stateless

from palimpsest.errors import ModelError
from palimpsest.models.checkpoint import Loaded
from palimpsest.models.fast import Forward, StackedNet, Tree, supports, tree_of
from palimpsest.models.stored import pour

STACKED_PARAMETERS = 5_000_000
"""Above this size a step is bound by arithmetic and stacking gains nothing."""
Finish = Callable[[Tensor], Tensor]
"""What a model does to the logits of its output embedding."""


@dataclass(frozen=True)
class Encoded:
    """One text as token ids; ``ids[start:]`` are scored.

    ``start`` is at least 1 because the first token of a text has no prediction.
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


def collate(texts: Sequence[Encoded]) -> Batch:
    """Return the batch of these texts, scored tokens in text order.

    Rows are filled up with token 0; any other would do, since nothing that is scored sees it.
    """
    width = max(len(text.ids) for text in texts)
    ids = np.array([[*text.ids, *[0] * (width - len(text.ids))] for text in texts])
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

    On a CPU in float32, architectures that ``fast`` knows are evaluated by it, which skips
    padding, common beginnings and unscored positions; the module holds the parameters. Everything
    else, and a module with hooks in it, goes through the module's own forward. The output embedding
    is applied in float32, at scored positions only, whatever the model's dtype.

    checkpointing: keep one activation a layer and compute the others again in the backward pass.
    lora: rank of the adapters that are trained in the place of the weights; 0 trains the weights.
    """

    def __init__(self, model: Any, *, checkpointing: bool = False, lora: int = 0) -> None:
        self.model = model
        self.models: tuple[Any, ...] = (model,)
        self.stack, self.lora = 1, lora
        self.params: dict[str, Tensor] = dict(model.named_parameters())
        self._head = model.get_output_embeddings()
        self._given: Mapping[str, Tensor] | None = None
        if checkpointing:
            checkpoint(model, self._recomputing)

    @property
    def device(self) -> torch.device:
        return next(iter(self.params.values())).device

    def logits(self, batch: Batch, params: Mapping[str, Tensor] | None = None) -> Tensor:
        if self._fast is not None and not self._hooked():
            given = self.params if params is None else {**self.params, **params}
            return self._fast({name: v.unsqueeze(0) for name, v in given.items()}, batch.tree)
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
            full = self.model(input_ids=batch.ids, use_cache=False).logits
            return full[batch.rows, batch.columns].float().unsqueeze(0)
        hidden = self.model.base_model(input_ids=batch.ids, use_cache=False)[0]
        hidden = hidden[batch.rows, batch.columns].float()
        bias = None if self._head.bias is None else self._head.bias.float()
        scored = functional.linear(hidden, self._head.weight.float(), bias)
        return self._finish(scored).unsqueeze(0)

    def _recomputing(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return what surrounds a checkpointed layer: now, and when it is computed again."""
        given = self._given
        again = nullcontext() if given is None else substituted(self.model, given)
        return nullcontext(), again

    @cached_property
    def _finish(self) -> Finish | None:
        return head_finish(self.model)

    @cached_property
    @torch.no_grad()
    def _fast(self) -> Forward | None:
        """The fast forward, where it applies and gives the module's logits for a few tokens."""
        model, values = self.model, self.params.values()
        plain = all(v.dtype == torch.float32 and v.device.type == "cpu" for v in values)
        changed = model.training or self.lora or getattr(model, "is_gradient_checkpointing", False)
        if not plain or changed or not supports(getattr(model, "config", None)):
            return None
        columns = torch.arange(8)
        fast, tree = Forward(model.config), tree_of(columns[None], columns * 0, columns)
        try:
            ours = fast({name: v.unsqueeze(0) for name, v in self.params.items()}, tree)[0]
        except (KeyError, RuntimeError):  # names or shapes that the configuration does not imply
            return None
        theirs = model(input_ids=columns[None], use_cache=False).logits[0]
        return fast if torch.allclose(ours, theirs, atol=1e-4, rtol=1e-3) else None

    def _hooked(self) -> bool:
        """Tell whether the module has hooks, which only its own forward calls."""
        return any(
            part._forward_hooks or part._forward_pre_hooks or part._backward_hooks
            for part in self.model.modules()
        )


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
        (state,) = states  # whoever has more looks at ``stack`` first
        return self.whole(state)

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


def _filled(net: WholeNet, state: Mapping[str, Tensor]) -> WholeNet:
    """Return the net with these weights, taken one by one: they may lie in a file."""
    for parameter in net.params.values():
        parameter.grad = None
        parameter.requires_grad_(True)
    pour(state, net.model.state_dict())
    return net


def head_finish(model: Any) -> Finish | None:
    """Return what follows the output embedding: nothing, a cap or a scale; None if unknown.

    Gemma caps logits, Cohere and Granite scale them. What the config declares is compared with the
    model's own logits at a few tokens, so that a guess cannot be wrong. Where the head is unknown,
    logits have to be computed everywhere by the model itself.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or not hasattr(model, "base_model"):
        return None
    ids = torch.arange(8, device=head.weight.device)[None]
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits
        bare = head(model.base_model(input_ids=ids, use_cache=False)[0])
    if bare.shape != whole.shape:
        return None
    bare, exact = bare.float(), whole.dtype == torch.float32
    far = 1e-4 if exact else 1e-2 * float(whole.abs().max())
    for finish in _declared(model.config):
        if torch.allclose(finish(bare), whole.float(), atol=far, rtol=1e-3 if exact else 1e-2):
            return finish
    return None


def _declared(config: Any) -> Iterator[Finish]:
    """Yield what a config says is done to logits, and last that nothing is."""
    cap = getattr(config, "final_logit_softcapping", None)
    factor, divisor = (getattr(config, key, None) for key in ("logit_scale", "logits_scaling"))
    if cap:
        yield lambda logits: torch.tanh(logits / cap) * cap
    if factor:
        yield lambda logits: logits * factor
    if divisor:
        yield lambda logits: logits / divisor
        yield lambda logits: logits * divisor
    yield lambda logits: logits


def substituted(model: Any, params: Mapping[str, Tensor]) -> AbstractContextManager[None]:
    """Have these tensors in the place of the module's parameters while the block runs."""
    return stateless._reparametrize_module(model, dict(params), tie_weights=True)


def checkpoint(model: Any, contexts: Callable[[], Any]) -> None:
    """Have the decoder layers keep their input alone and compute the rest again going backward.

    transformers checkpoints a layer in training mode only. The layers are put in it and nothing
    inside them is, so that no dropout acts. ``contexts`` surround a layer, now and later.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    if not layers or not getattr(model, "supports_gradient_checkpointing", False):
        raise ModelError(
            f"checkpointing: transformers cannot recompute the layers of {type(model).__name__}; "
            "leave it out"
        )
    model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})
    for layer in layers:
        layer.training = True
