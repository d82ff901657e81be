"""What is done to a ``transformers`` module: its head, other weights in it, checkpointing."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import stateless

from palimpsest.errors import ModelError

Finish = Callable[[Tensor], Tensor]
"""What a model does to the logits of its output embedding."""


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
