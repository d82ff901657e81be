"""Several pocket-sized models evaluated at once.

A pocket model is so small that a ``transformers`` step spends most of its time between kernels.
``StackedNet`` keeps the parameters of ``stack`` models of one configuration side by side, each
under its transformers name with a leading stack axis, and runs a forward written for them: every
matrix product is one batched product over the stack, and behind the last attention nothing is
computed at positions that nobody scores. Where a chain of small kernels costs more than its
arithmetic (RMS norm, attention with its rotary embedding), the gradient is written out by hand.

Hidden states are (stack, tokens, width of the model), tokens = texts * positions. The forward is
that of ``transformers`` in evaluation mode, in float32, and can be differentiated once. Whatever
``supports`` refuses goes through ``WholeNet``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from palimpsest.errors import ModelError
from palimpsest.models.net import Batch

Params = Mapping[str, Tensor]
Scored = Tensor | None  # the scored tokens, told to the last layer only
HEAD = "lm_head.weight"
POSITIONS = "transformer.wpe.weight"  # only GPT-2 learns them
QKV = ("q_proj", "k_proj", "v_proj")
GATE_UP = ("gate_proj", "up_proj")
LANES = 16  # floats in the widest vector register


def supports(config: Any) -> bool:
    """Tell whether ``StackedNet`` computes exactly what this configuration means."""
    family = FAMILIES.get(getattr(config, "model_type", ""))
    if family is None or getattr(config, "quantization_config", None) is not None:
        return False
    if any(getattr(config, key, value) != value for key, value in family.verified.items()):
        return False
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return False
    rope = getattr(config, "rope_parameters", None) or {}
    return set(rope) == set(family.rope) and rope.get("rope_type", "default") == "default"


class StackedNet:
    """Models of one pocket-sized configuration, side by side."""

    def __init__(self, config: Any, states: Sequence[Params], trainable: bool = True) -> None:
        if not supports(config):
            kind = getattr(config, "model_type", type(config).__name__)
            raise ModelError(f"{kind} with these settings cannot be stacked; use WholeNet")
        self.config = config
        self.family = FAMILIES[config.model_type]
        self.stack = len(states)
        self.tied = bool(config.tie_word_embeddings)
        self.params = _stacked(states, without=HEAD if self.tied else None)
        for value in self.params.values():
            value.requires_grad_(trainable)
        self._shapes: dict[int, _Shape] = {}

    @property
    def device(self) -> torch.device:
        return self.params[self.family.embedding].device

    def state(self, member: int = 0) -> dict[str, Tensor]:
        state = {name: value.detach()[member].clone() for name, value in self.params.items()}
        if self.tied:
            state[HEAD] = state[self.family.embedding]
        return state

    def logits(self, batch: Batch, params: Params | None = None) -> Tensor:
        given = self.params if params is None else {**self.params, **params}
        family, width = self.family, batch.ids.shape[1]
        if width not in self._shapes:
            self._shapes[width] = _Shape.of(self.config, width, self.device)
        shape = self._shapes[width]
        unmoved = self.config.pad_token_id if family.unmoved_padding else None
        hidden, table = _Embed.apply(given[family.embedding], batch.ids.reshape(-1), unmoved)
        if POSITIONS in given:
            hidden = hidden + given[POSITIONS][:, :width].repeat(1, batch.ids.shape[0], 1)
        scored = batch.rows * width + batch.columns
        last = self.config.num_hidden_layers - 1
        for at in range(last):
            hidden = family.layer(given, f"{family.layers}.{at}.", hidden, shape, None)
        hidden = family.layer(given, f"{family.layers}.{last}.", hidden, shape, scored)
        hidden = _norm(given, family.last_norm, hidden, shape)
        return _Linear.apply(hidden, None, table if self.tied else given[HEAD])[0]


def _stacked(states: Sequence[Params], without: str | None) -> dict[str, Tensor]:
    """Give the float32 parameters of all members, stacked, leaving out a tied head."""
    if not states:
        raise ModelError("no state to stack; give at least one")
    shapes = [{name: state[name].shape for name in state if name != without} for state in states]
    for member, other in enumerate(shapes):
        if other != shapes[0]:
            odd = min(name for name, _ in other.items() ^ shapes[0].items())
            raise ModelError(f"states 0 and {member} differ in {odd}; stack models of one shape")
    members = {name: [state[name].detach().float() for state in states] for name in shapes[0]}
    return {name: torch.stack(values) for name, values in members.items()}


@dataclass(frozen=True)
class _Shape:
    """The constants of a forward over texts of one width.

    groups: key groups; neighbouring heads share one.
    causal: (heads of a group * width, padded width), queries by keys; minus infinity where the key
        comes after the query or is padding.
    turn: (head width, head width); cos, sin: (width, heads * head width). The rotary embedding is
        x * cos + (x @ turn) * sin; without one, turn is None.
    """

    width: int
    groups: int
    head_width: int
    eps: float
    causal: Tensor
    turn: Tensor | None
    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, config: Any, width: int, device: torch.device) -> "_Shape":
        heads = config.num_attention_heads
        groups = getattr(config, "num_key_value_heads", None) or heads
        head_width = getattr(config, "head_dim", None) or config.hidden_size // heads
        names = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
        eps = next(getattr(config, name) for name in names if hasattr(config, name))
        causal = torch.full((width, -width % LANES + width), float("-inf"), device=device).triu(1)
        rope = getattr(config, "rope_parameters", None) or {}
        turned = int(head_width * rope.get("partial_rotary_factor", 1.0)) if rope else 0
        power = torch.arange(0, turned, 2, dtype=torch.float32) / max(turned, 1)
        half = len(power)  # of 5 dimensions transformers turns 6, at the frequencies of 5
        frequency = 1.0 / (rope.get("rope_theta", 1.0) ** power)
        angle = torch.arange(width).float()[:, None] * frequency
        # Dimensions that are not turned have angle 0: cos 1, sin 0.
        angle = torch.cat((angle, angle, torch.zeros(width, head_width - 2 * half)), dim=-1)
        turn = torch.zeros(head_width, head_width)
        turn[half : 2 * half, :half] = -torch.eye(half)
        turn[:half, half : 2 * half] = torch.eye(half)
        cos, sin = (value.repeat(1, heads).to(device) for value in (angle.cos(), angle.sin()))
        how = turn.to(device) if turned else None
        return cls(width, groups, head_width, eps, causal.repeat(heads // groups, 1), how, cos, sin)


def _llama(given: Params, at: str, hidden: Tensor, shape: _Shape, scored: Scored) -> Tensor:
    x = _norm(given, at + "input_layernorm", hidden, shape)
    q, k, v = _project(given, at + "self_attn.", QKV, x)
    mixed, hidden = _only(scored, _Attention.apply(q, k, v, shape), hidden)
    hidden = _linear(given, at + "self_attn.o_proj", mixed, hidden)
    x = _norm(given, at + "post_attention_layernorm", hidden, shape)
    gate, up = _project(given, at + "mlp.", GATE_UP, x)
    return _linear(given, at + "mlp.down_proj", F.silu(gate) * up, hidden)


def _olmo2(given: Params, at: str, hidden: Tensor, shape: _Shape, scored: Scored) -> Tensor:
    q, k, v = _project(given, at + "self_attn.", QKV, hidden)
    q = _norm(given, at + "self_attn.q_norm", q, shape)
    k = _norm(given, at + "self_attn.k_norm", k, shape)
    mixed, hidden = _only(scored, _Attention.apply(q, k, v, shape), hidden)
    mixed = _linear(given, at + "self_attn.o_proj", mixed)
    hidden = hidden + _norm(given, at + "post_attention_layernorm", mixed, shape)
    gate, up = _project(given, at + "mlp.", GATE_UP, hidden)
    x = _linear(given, at + "mlp.down_proj", F.silu(gate) * up)
    return hidden + _norm(given, at + "post_feedforward_layernorm", x, shape)


def _gpt_neox(given: Params, at: str, hidden: Tensor, shape: _Shape, scored: Scored) -> Tensor:
    x = _norm(given, at + "input_layernorm", hidden, shape)
    x = _linear(given, at + "attention.query_key_value", x)
    q, k, v = (y.flatten(2) for y in x.unflatten(-1, (-1, 3, shape.head_width)).unbind(-2))
    mixed, hidden = _only(scored, _Attention.apply(q, k, v, shape), hidden)
    x = _norm(given, at + "post_attention_layernorm", hidden, shape)
    hidden = hidden + _linear(given, at + "attention.dense", mixed)
    x = F.gelu(_linear(given, at + "mlp.dense_h_to_4h", x))
    return hidden + _linear(given, at + "mlp.dense_4h_to_h", x)


def _gpt2(given: Params, at: str, hidden: Tensor, shape: _Shape, scored: Scored) -> Tensor:
    x = _convolution(given, at + "attn.c_attn", _norm(given, at + "ln_1", hidden, shape))
    q, k, v = x.chunk(3, dim=-1)
    mixed, hidden = _only(scored, _Attention.apply(q, k, v, shape), hidden)
    hidden = hidden + _convolution(given, at + "attn.c_proj", mixed)
    x = _convolution(given, at + "mlp.c_fc", _norm(given, at + "ln_2", hidden, shape))
    return hidden + _convolution(given, at + "mlp.c_proj", F.gelu(x, approximate="tanh"))


@dataclass(frozen=True)
class _Family:
    """A family's parameter names, its layer, and the settings its layer was checked under."""

    embedding: str
    layers: str
    last_norm: str
    layer: Callable[[Params, str, Tensor, _Shape, Scored], Tensor]
    verified: Mapping[str, Any]
    rope: tuple[str, ...] = ("rope_type", "rope_theta")
    unmoved_padding: bool = True  # lookups of the padding token give its embedding no gradient


_LLAMA = ("model.embed_tokens.weight", "model.layers", "model.norm")
_NEOX = ("gpt_neox.embed_in.weight", "gpt_neox.layers", "gpt_neox.final_layer_norm")
_GPT2_OFF = dict.fromkeys(
    ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"), False
)
_GPT2 = ("transformer.wte.weight", "transformer.h", "transformer.ln_f")
FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(
        *_LLAMA,
        _llama,
        {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1},
    ),
    "qwen2": _Family(*_LLAMA, _llama, {"hidden_act": "silu", "use_sliding_window": False}),
    "olmo2": _Family(*_LLAMA, _olmo2, {"hidden_act": "silu", "attention_bias": False}),
    "gpt_neox": _Family(
        *_NEOX,
        _gpt_neox,
        {"hidden_act": "gelu", "attention_bias": True, "use_parallel_residual": True},
        rope=("rope_type", "rope_theta", "partial_rotary_factor"),
        unmoved_padding=False,
    ),
    "gpt2": _Family(
        *_GPT2,
        _gpt2,
        {"activation_function": "gelu_new", "scale_attn_weights": True, **_GPT2_OFF},
        rope=(),
        unmoved_padding=False,
    ),
}


def _only(scored: Scored, *hidden: Tensor) -> tuple[Tensor, ...]:
    """Give the hidden states at the scored tokens, or all of them where all are needed."""
    return hidden if scored is None else tuple(x.index_select(1, scored) for x in hidden)


def _norm(given: Params, name: str, x: Tensor, shape: _Shape) -> Tensor:
    """Give the layer norm of x where there is a bias, its RMS norm where there is none."""
    weight, bias = given[name + ".weight"], given.get(name + ".bias")
    if bias is None:
        return _RmsNorm.apply(x, weight, shape.eps)
    unit = F.layer_norm(x, x.shape[-1:], eps=shape.eps)
    return torch.addcmul(bias.unsqueeze(1), unit, weight.unsqueeze(1))


def _project(given: Params, at: str, names: Sequence[str], x: Tensor) -> tuple[Tensor, ...]:
    """Give x through several weights that share it, and their biases if any."""
    weights = [given[f"{at}{name}.weight"] for name in names]
    outputs: tuple[Tensor, ...] = _Linear.apply(x, None, *weights)
    if f"{at}{names[0]}.bias" not in given:
        return outputs
    return tuple(y + given[f"{at}{name}.bias"].unsqueeze(1) for y, name in zip(outputs, names))


def _linear(given: Params, name: str, x: Tensor, start: Tensor | None = None) -> Tensor:
    """Give x through one weight, added to ``start`` or, without a start, to its bias if any."""
    if start is None and name + ".bias" in given:
        start = given[name + ".bias"].unsqueeze(1)
    return _Linear.apply(x, start, given[name + ".weight"])[0]


def _convolution(given: Params, name: str, x: Tensor) -> Tensor:
    """Give x through GPT-2's Conv1D, whose weight is stored (in, out)."""
    return torch.baddbmm(given[name + ".bias"].unsqueeze(1), x, given[name + ".weight"])


class _Embed(torch.autograd.Function):
    """The tokens' embeddings, and the table for a tied head, whose gradient theirs is added to."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, unmoved: int | None) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(ids)
        ctx.unmoved, ctx.shape = unmoved, table.shape
        ctx.set_materialize_grads(False)
        return table.index_select(1, ids), table.view_as(table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, hidden: Tensor, table: Tensor | None) -> tuple[Any, ...]:
        (ids,) = ctx.saved_tensors
        table = hidden.new_zeros(ctx.shape) if table is None else table
        if ctx.unmoved is not None:
            hidden = hidden * (ids != ctx.unmoved)[:, None]
        return table.index_add_(1, ids, hidden), None, None


class _Linear(torch.autograd.Function):
    """x @ weight.T for each weight, a single one added to ``start`` (a bias or a residual).

    The gradients for x are summed inside the products; a weight's is laid out like the weight.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, start: Tensor | None, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *weights)
        ctx.residual = start is None or start.shape[1] == x.shape[1]
        if start is None:
            return tuple(torch.bmm(x, weight.mT) for weight in weights)
        return (torch.baddbmm(start, x, weights[0].mT),)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        for_x = grads[0].bmm(weights[0])
        for grad, weight in zip(grads[1:], weights[1:], strict=True):
            for_x.baddbmm_(grad, weight)
        for_start = None
        if ctx.needs_input_grad[1]:
            for_start = grads[0] if ctx.residual else grads[0].sum(1, keepdim=True)
        needed = zip(grads, ctx.needs_input_grad[2:], strict=True)
        return (for_x, for_start, *(grad.mT.bmm(x) if need else None for grad, need in needed))


class _RmsNorm(torch.autograd.Function):
    """x / sqrt(mean(x^2) + eps) * weight, with one weight per member."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        unit = x * scale
        ctx.save_for_backward(unit, scale, weight)
        return unit * weight.unsqueeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        unit, scale, weight = ctx.saved_tensors
        along = grad * unit
        for_weight = along.sum(1)
        along = along.bmm(weight.unsqueeze(-1) / weight.shape[-1])
        for_x = (grad * weight.unsqueeze(1)).addcmul_(unit, along, value=-1.0).mul_(scale)
        return for_x, for_weight, None


class _Attention(torch.autograd.Function):
    """Causal attention with rotary embedding, on (stack, tokens, heads * head width).

    Queries whose heads share a key group are rows of one product. Keys and values are padded with
    zeros to full vector registers: a softmax along 15 scores leaves torch's vectorised kernel and
    takes ten times as long as one along 16.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, shape: _Shape) -> Tensor:
        ctx.stack, ctx.shape = q.shape[0], shape
        q = _by_group(_turned(q, shape), shape, shape.width)
        k = _by_group(_turned(k, shape), shape, shape.causal.shape[1])
        v = _by_group(v, shape, shape.causal.shape[1])
        scores = torch.add(shape.causal, torch.bmm(q, k.mT), alpha=shape.head_width**-0.5)
        chances = scores.softmax(-1)
        ctx.save_for_backward(q, k, v, chances)
        return _by_token(chances.bmm(v), shape, ctx.stack, shape.width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, chances = ctx.saved_tensors
        stack, shape, padded = ctx.stack, ctx.shape, chances.shape[2]
        grad = _by_group(grad, shape, shape.width)
        for_v = _by_token(chances.mT.bmm(grad), shape, stack, padded)
        weighted = grad.bmm(v.mT).mul_(chances)
        for_scores = weighted.addcmul_(chances, weighted.sum(-1, keepdim=True), value=-1.0)
        for_scores *= shape.head_width**-0.5
        for_q = _by_token(for_scores.bmm(k), shape, stack, shape.width)
        for_k = _by_token(for_scores.mT.bmm(q), shape, stack, padded)
        return _turned(for_q, shape, -1), _turned(for_k, shape, -1), for_v, None


def _by_group(x: Tensor, shape: _Shape, padded: int) -> Tensor:
    """Give a copy (stack * texts * groups, heads of a group * padded width, head width)."""
    heads = x.shape[-1] // (shape.groups * shape.head_width)
    x = x.view(-1, shape.width, shape.groups, heads, shape.head_width).permute(0, 2, 3, 1, 4)
    new = x.new_empty if padded == shape.width else x.new_zeros
    copy = new(*x.shape[:3], padded, shape.head_width)
    copy[:, :, :, : shape.width] = x
    return copy.view(-1, heads * padded, shape.head_width)


def _by_token(x: Tensor, shape: _Shape, stack: int, padded: int) -> Tensor:
    """Give back what ``_by_group`` took: (stack, tokens, heads * head width)."""
    x = x.view(-1, shape.groups, x.shape[1] // padded, padded, shape.head_width)
    x = x[:, :, :, : shape.width].permute(0, 3, 1, 2, 4)
    return x.reshape(stack, x.shape[0] // stack * shape.width, -1)


def _turned(x: Tensor, shape: _Shape, way: int = 1) -> Tensor:
    """Give x with every head rotated by its position, or back with ``way`` -1."""
    if shape.turn is None:
        return x
    heads = x.view(-1, shape.width, x.shape[-1])
    quarter = (x.view(-1, shape.head_width) @ shape.turn).view(heads.shape)
    cos, sin = shape.cos[:, : x.shape[-1]], shape.sin[:, : x.shape[-1]]
    return torch.addcmul(heads * cos, quarter, sin, value=way).view(x.shape)
