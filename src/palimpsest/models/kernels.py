"""The pieces of a stacked forward whose gradients are written out by hand.

Hidden states are (stack, nodes, width of the model); ``tree.py`` says what a node is. Each piece
does together what a chain of small kernels would do apart, and can be differentiated once.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from palimpsest.models.tree import Spread


def _once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Give a backward that refuses a second derivative; torch's own guard costs more than it."""

    @functools.wraps(backward)
    def guarded(ctx: Any, *grads: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("a stacked forward can be differentiated once")
        return backward(ctx, *grads)

    return guarded


class Embed(torch.autograd.Function):
    """The tokens' embeddings, and the table for a tied head, whose gradient theirs is added to."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, unmoved: int | None) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(ids)
        ctx.unmoved, ctx.shape = unmoved, table.shape
        ctx.set_materialize_grads(False)
        return table.index_select(1, ids), table.view_as(table)

    @staticmethod
    @_once
    def backward(ctx: Any, hidden: Tensor, table: Tensor | None) -> tuple[Any, ...]:
        (ids,) = ctx.saved_tensors
        table = hidden.new_zeros(ctx.shape) if table is None else table
        if ctx.unmoved is not None:
            hidden = hidden * (ids != ctx.unmoved)[:, None]
        return table.index_add_(1, ids, hidden), None, None


class Linear(torch.autograd.Function):
    """x @ weight.T for each of ``count`` weights, added to its start: a bias, a residual or none.

    given: the weights, then as many starts or none. The gradients for x are summed inside the
    products; a weight's is laid out like the weight.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, *given: Tensor) -> tuple[Tensor, ...]:
        weights, starts = given[:count], given[count:]
        ctx.save_for_backward(x, *weights)
        ctx.residual = [start.shape[1] == x.shape[1] for start in starts]
        if not starts:
            return tuple(torch.bmm(x, weight.mT) for weight in weights)
        return tuple(torch.baddbmm(start, x, weight.mT) for weight, start in zip(weights, starts))

    @staticmethod
    @_once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        needed = ctx.needs_input_grad
        for_x = None
        if needed[0]:
            for_x = grads[0].bmm(weights[0])
            for grad, weight in zip(grads[1:], weights[1:]):
                for_x.baddbmm_(grad, weight)
        for_weights = [grad.mT.bmm(x) if need else None for grad, need in zip(grads, needed[2:])]
        for_starts = [
            (grad if residual else grad.sum(1, keepdim=True)) if need else None
            for grad, residual, need in zip(grads, ctx.residual, needed[2 + len(weights) :])
        ]
        return (for_x, None, *for_weights, *for_starts)


class RmsNorm(torch.autograd.Function):
    """x / sqrt(mean(x^2) + eps) * weight, with one weight per member."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = scale.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        unit = x * scale
        ctx.save_for_backward(unit, scale, weight)
        return unit * weight.unsqueeze(1)

    @staticmethod
    @_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        unit, scale, weight = ctx.saved_tensors
        along = grad * unit
        for_weight = along.sum(1) if ctx.needs_input_grad[1] else None
        along = along.bmm(weight.unsqueeze(-1) / weight.shape[-1])
        for_x = (grad * weight.unsqueeze(1)).addcmul_(unit, along, value=-1.0).mul_(scale)
        return for_x, for_weight, None


@dataclass(frozen=True)
class Heads:
    """How one batch's attention is laid out.

    groups: key groups; neighbouring heads share one.
    causal: (heads of a group * width, padded width), queries by keys; minus infinity where the key
        comes after the query or is padding.
    turn: (head width, head width); cos, sin: (nodes, heads * head width). The rotary embedding is
        x * cos + (x @ turn) * sin; without one, turn is None.
    """

    groups: int
    head_width: int
    spread: Spread
    causal: Tensor
    turn: Tensor | None
    cos: Tensor
    sin: Tensor


class Attention(torch.autograd.Function):
    """Causal attention with rotary embedding, on (stack, nodes, heads * head width).

    Queries whose heads share a key group are rows of one product. Keys and values are padded to
    full vector registers: a softmax along 15 scores leaves torch's vectorised kernel and takes ten
    times as long as one along 16.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, heads: Heads) -> Tensor:
        ctx.heads, ctx.shapes, at = heads, (q.shape, k.shape), heads.spread
        rows, padded = heads.causal.shape
        q = _rows(_turned(q, heads), at.queries, rows, heads.head_width)
        k = _rows(_turned(k, heads), at.keys, padded, heads.head_width)
        v = _rows(v, at.keys, padded, heads.head_width)
        scores = torch.baddbmm(heads.causal, q, k.mT, alpha=heads.head_width**-0.5)
        chances = scores.softmax(-1)
        ctx.save_for_backward(q, k, v, chances)
        return (
            chances.bmm(v).view(-1, heads.head_width).index_select(0, at.mixed).view(ctx.shapes[0])
        )

    @staticmethod
    @_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, chances = ctx.saved_tensors
        heads, (like_q, like_k) = ctx.heads, ctx.shapes
        at, width, rows = heads.spread, heads.head_width, chances.shape[1]
        # One more row, of zeros, for entries whose outcome nobody used.
        grad = torch.cat((grad.reshape(-1, width), grad.new_zeros(1, width)))
        grad = _rows(grad, at.wanted, rows, width)
        for_v = _summed(chances.mT.bmm(grad), at, like_k)
        weighted = grad.bmm(v.mT).mul_(chances)
        for_scores = weighted.addcmul_(chances, weighted.sum(-1, keepdim=True), value=-1.0)
        for_scores *= width**-0.5
        for_q = for_scores.bmm(k).view(-1, width).index_select(0, at.mixed).view(like_q)
        for_k = _summed(for_scores.mT.bmm(q), at, like_k)
        return _turned(for_q, heads, -1), _turned(for_k, heads, -1), for_v, None


def _rows(x: Tensor, index: Tensor, rows: int, width: int) -> Tensor:
    """Give one row per head at each entry, (products, rows, head width)."""
    return x.reshape(-1, width).index_select(0, index).view(-1, rows, width)


def _summed(x: Tensor, at: Spread, like: torch.Size) -> Tensor:
    """Give the gradient (stack, nodes, groups * head width) of what ``_rows`` took from nodes."""
    x = x.view(-1, x.shape[-1])
    whole = x.index_select(0, at.keyed)
    if len(at.repeated):
        whole.index_add_(0, at.nodes, x.index_select(0, at.repeated))
    return whole.view(like)


def _turned(x: Tensor, heads: Heads, way: int = 1) -> Tensor:
    """Give x with every head rotated by its position, or back with ``way`` -1."""
    if heads.turn is None:
        return x
    quarter = (x.reshape(-1, heads.head_width) @ heads.turn).view(x.shape)
    cos, sin = heads.cos[:, : x.shape[-1]], heads.sin[:, : x.shape[-1]]
    return torch.addcmul(x * cos, quarter, sin, value=way)
