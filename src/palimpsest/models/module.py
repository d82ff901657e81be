"""What is done to a ``transformers`` module: its head apart, other weights in it, checkpointing."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import stateless

from palimpsest.errors import ModelError

Finish = Callable[[Tensor], Tensor]
"""What a model does to the logits of its output embedding."""


def EVERYWHERE(logits: Tensor) -> Tensor:
    """Stand for a head that is not known: logits are computed everywhere by the model itself."""
    return logits


def device_of(parameters: Iterable[Tensor]) -> torch.device:
    """Return the device that inputs go to: of the first parameter that lies on one."""
    devices = (value.device for value in parameters if not value.is_meta)
    return next(devices, torch.device("cpu"))


def head_finish(model: Any, head: Any, ids: Tensor) -> Finish:
    """Return what follows the output embedding: nothing, a cap or a scale; else ``EVERYWHERE``.

    Gemma caps logits, Cohere and Granite scale them. What the config declares is compared with the
    model's own logits at a few tokens ``ids`` (1, tokens), so that a guess cannot be wrong.
    """
    if not isinstance(head, nn.Linear) or not hasattr(model, "base_model"):
        return EVERYWHERE
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits
        bare = head(model.base_model(input_ids=ids, use_cache=False)[0])
    if bare.shape != whole.shape:
        return EVERYWHERE
    bare, exact = bare.float(), whole.dtype == torch.float32
    far = 1e-4 if exact else 1e-2 * float(whole.abs().max())
    for finish in _declared(model.config):
        if torch.allclose(finish(bare), whole.float(), atol=far, rtol=1e-3 if exact else 1e-2):
            return finish
    return EVERYWHERE


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
            f"{type(model).__name__} cannot be checkpointed; expected decoder layers that "
            "transformers can compute again; leave checkpointing out"
        )
    model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})
    for layer in layers:
        layer.training = True
