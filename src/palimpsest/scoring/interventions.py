"""Criteria that change a model and look again: other weights, less precision, further training.

Every intervention puts the weights back exactly, so that what is measured afterwards does not
depend on which criteria were asked for. Numbers are those of the catalogue.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from palimpsest.models.forward import Scored, watched
from palimpsest.models.net import Batch, Net
from palimpsest.models.stacked import StackedNet

GROUP = 32
"""Weights that share one scale when quantised."""


@contextmanager
def restored(net: Net) -> Iterator[None]:
    """Put the parameters of a net back to what they are now, at the end of the block."""
    kept = {name: value.detach().clone() for name, value in net.params.items()}
    try:
        yield
    finally:
        set_weights(net, kept)


@torch.no_grad()
def set_weights(net: Net, weights: Mapping[str, Tensor]) -> None:
    """Write weights, under the names of ``net.params``, into a net."""
    for name, value in weights.items():
        net.params[name].copy_(value)


def plain_names(net: Net, names: Sequence[str]) -> dict[str, str]:
    """Return the parameters of a net by their names in a plain checkpoint.

    A net made of several checkpoints is represented by the last of them, the one that answers when
    nothing special is asked for; empty where none has all ``names``.
    """
    for prefix in dict.fromkeys(["", *(f"{name.split('.')[0]}." for name in reversed(net.params))]):
        found = {name: prefix + name for name in names}
        if all(inner in net.params for inner in found.values()):
            return found
    return {}


def quantised(weights: Tensor, bits: int, group: int = GROUP) -> Tensor:
    """Return [55] weights (…, columns) rounded to ``bits``, per group by absmax / (2^(b−1) − 1).

    Round to nearest, symmetric, groups along the columns. arXiv:2410.16454.
    """
    columns = weights.shape[-1]
    padded = torch.nn.functional.pad(weights, (0, -columns % group))
    blocks = padded.unflatten(-1, (-1, group))
    top = 2 ** (bits - 1) - 1
    scale = blocks.abs().amax(-1, keepdim=True) / top
    rounded = torch.round(blocks / torch.where(scale > 0, scale, 1.0)).clamp(-top, top) * scale
    return rounded.flatten(-2)[..., :columns]


def quantise(net: Net, bits: int) -> None:
    """Round every matrix of a net; vectors stay as they are."""
    matrices = {n: value for n, value in net.params.items() if value.dim() > 2}
    set_weights(net, {n: quantised(value.detach(), bits) for n, value in matrices.items()})


@torch.no_grad()
def without_direction(net: Net, batch: Batch, directions: Tensor) -> Tensor:
    """Return [57] the logits when a direction is projected out behind every layer.

    directions: (stack, layers, width), of length one or zero. arXiv:2409.18025.
    """

    def project(at: int, value: Tensor, scored: Scored) -> Tensor:
        direction = directions[:, at].unsqueeze(-1)
        return value - (value @ direction) @ direction.mT

    with watched(project):
        return net.logits(batch)


@torch.no_grad()
def patched(net: StackedNet, batch: Batch, layer: int, states: Tensor) -> Tensor:
    """Return [39] the logits when the states (stack, scored, width) of one layer are overwritten at
    the scored positions. arXiv:2605.24614."""

    def overwrite(at: int, value: Tensor, scored: Scored) -> Tensor:
        if at != layer:
            return value
        return states if scored is None else value.index_copy(1, scored, states)

    with watched(overwrite):
        return net.logits(batch)
