"""Several pocket-sized models evaluated at once.

A pocket model is so small that a ``transformers`` step spends most of its time between kernels.
``StackedNet`` keeps the parameters of ``stack`` models of one configuration side by side, each
under its transformers name with a leading stack axis, and runs a forward written for them: every
matrix product is one batched product over the stack, and nothing behind the last attention is
computed at positions that nobody scores.

Hidden states are (stack, tokens, width) with tokens = rows * columns of the batch; the five
families differ only in the order of the same pieces. The forward is that of ``transformers`` in
evaluation mode (no dropout), in float32. Whatever ``supports`` refuses goes through ``WholeNet``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from palimpsest.errors import ModelError
from palimpsest.models.net import Batch

Params = Mapping[str, Tensor]

HEAD = "lm_head.weight"
EMBEDDING: Mapping[str, str] = {
    "llama": "model.embed_tokens.weight",
    "qwen2": "model.embed_tokens.weight",
    "olmo2": "model.embed_tokens.weight",
    "gpt_neox": "gpt_neox.embed_in.weight",
    "gpt2": "transformer.wte.weight",
}
# Settings under which the forward below was checked against transformers; any other is refused.
VERIFIED: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "pretraining_tp": 1,
    },
    "qwen2": {"hidden_act": "silu", "use_sliding_window": False},
    "olmo2": {"hidden_act": "silu", "attention_bias": False},
    "gpt_neox": {"hidden_act": "gelu", "attention_bias": True, "use_parallel_residual": True},
    "gpt2": {
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
    },
}


def supports(config: Any) -> bool:
    """Tell whether ``StackedNet`` computes exactly what this configuration means."""
    family: str = getattr(config, "model_type", "")
    if family not in VERIFIED or getattr(config, "quantization_config", None) is not None:
        return False
    if any(getattr(config, key, value) != value for key, value in VERIFIED[family].items()):
        return False
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return False
    if family == "gpt2":
        return True
    rope = getattr(config, "rope_parameters", None) or {}
    known = {"rope_type", "rope_theta"} | (
        {"partial_rotary_factor"} if family == "gpt_neox" else set()
    )
    return rope.get("rope_type") == "default" and "rope_theta" in rope and set(rope) <= known


class StackedNet:
    """Models of one pocket-sized configuration, side by side."""

    def __init__(
        self, config: Any, states: Sequence[Mapping[str, Tensor]], trainable: bool = True
    ) -> None:
        if not supports(config):
            raise ModelError(
                f"a {getattr(config, 'model_type', type(config).__name__)} model with these "
                "settings cannot be stacked; use WholeNet"
            )
        self.config = config
        self.stack = len(states)
        self.family: str = config.model_type
        self.heads: int = config.num_attention_heads
        self.head_width: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.tied = bool(config.tie_word_embeddings)
        self.params = _stacked(states, without=HEAD if self.tied else None)
        for value in self.params.values():
            value.requires_grad_(trainable)
        self._tables: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def device(self) -> torch.device:
        return self.params[EMBEDDING[self.family]].device

    def state(self, member: int = 0) -> dict[str, Tensor]:
        state = {name: value.detach()[member].clone() for name, value in self.params.items()}
        if self.tied:
            state[HEAD] = state[EMBEDDING[self.family]]
        return state

    def logits(self, batch: Batch, params: Params | None = None) -> Tensor:
        given = self.params if params is None else {**self.params, **params}
        scored = batch.rows * batch.ids.shape[1] + batch.columns
        weight = given[EMBEDDING[self.family]]
        skip = self.config.pad_token_id if self.family in ("llama", "qwen2", "olmo2") else None
        hidden, weight = _Embed.apply(weight, batch.ids.reshape(-1), skip)
        layer = getattr(self, f"_{self.family}")
        if self.family == "gpt2":
            at = given["transformer.wpe.weight"][:, : batch.ids.shape[1]]
            hidden = (hidden.unflatten(1, batch.ids.shape) + at[:, None]).flatten(1, 2)
        last = self.config.num_hidden_layers - 1
        for index in range(last + 1):
            hidden = layer(given, index, hidden, batch.ids.shape, scored if index == last else None)
        hidden = self._last_norm(given, hidden)
        return _Linear.apply(hidden, weight if self.tied else given[HEAD], None)

    def _last_norm(self, given: Params, hidden: Tensor) -> Tensor:
        if self.family == "gpt2":
            return self._layer_norm(given, "transformer.ln_f", hidden)
        if self.family == "gpt_neox":
            return self._layer_norm(given, "gpt_neox.final_layer_norm", hidden)
        return self._rms_norm(given, "model.norm", hidden)

    def _llama(
        self, given: Params, index: int, hidden: Tensor, shape: torch.Size, scored: Tensor | None
    ) -> Tensor:
        at = f"model.layers.{index}."
        x = self._rms_norm(given, at + "input_layernorm", hidden)
        q, k, v = (_linear(given, f"{at}self_attn.{name}_proj", x) for name in "qkv")
        mixed = self._attend(q, k, v, shape)
        if scored is not None:
            mixed, hidden = mixed[:, scored], hidden[:, scored]
        hidden = _Linear.apply(mixed, given[at + "self_attn.o_proj.weight"], hidden)
        x = self._rms_norm(given, at + "post_attention_layernorm", hidden)
        x = self._gated(given, at, x)
        return _Linear.apply(x, given[at + "mlp.down_proj.weight"], hidden)

    _qwen2 = _llama

    def _olmo2(
        self, given: Params, index: int, hidden: Tensor, shape: torch.Size, scored: Tensor | None
    ) -> Tensor:
        at = f"model.layers.{index}."
        q, k, v = (_linear(given, f"{at}self_attn.{name}_proj", hidden) for name in "qkv")
        q = self._rms_norm(given, at + "self_attn.q_norm", q)
        k = self._rms_norm(given, at + "self_attn.k_norm", k)
        mixed = self._attend(q, k, v, shape)
        if scored is not None:
            mixed, hidden = mixed[:, scored], hidden[:, scored]
        mixed = _linear(given, at + "self_attn.o_proj", mixed)
        hidden = hidden + self._rms_norm(given, at + "post_attention_layernorm", mixed)
        x = _linear(given, at + "mlp.down_proj", self._gated(given, at, hidden))
        return hidden + self._rms_norm(given, at + "post_feedforward_layernorm", x)

    def _gpt_neox(
        self, given: Params, index: int, hidden: Tensor, shape: torch.Size, scored: Tensor | None
    ) -> Tensor:
        at = f"gpt_neox.layers.{index}."
        x = self._layer_norm(given, at + "input_layernorm", hidden)
        x = _linear(given, at + "attention.query_key_value", x)
        q, k, v = x.unflatten(-1, (self.heads, 3, self.head_width)).unbind(-2)
        mixed = self._attend(q, k, v, shape)
        if scored is not None:
            mixed, hidden = mixed[:, scored], hidden[:, scored]
        mixed = _linear(given, at + "attention.dense", mixed)
        x = self._layer_norm(given, at + "post_attention_layernorm", hidden)
        x = F.gelu(_linear(given, at + "mlp.dense_h_to_4h", x))
        return _linear(given, at + "mlp.dense_4h_to_h", x) + mixed + hidden

    def _gpt2(
        self, given: Params, index: int, hidden: Tensor, shape: torch.Size, scored: Tensor | None
    ) -> Tensor:
        at = f"transformer.h.{index}."
        x = _convolution(given, at + "attn.c_attn", self._layer_norm(given, at + "ln_1", hidden))
        q, k, v = x.chunk(3, dim=-1)
        mixed = self._attend(q, k, v, shape)
        if scored is not None:
            mixed, hidden = mixed[:, scored], hidden[:, scored]
        hidden = hidden + _convolution(given, at + "attn.c_proj", mixed)
        x = _convolution(given, at + "mlp.c_fc", self._layer_norm(given, at + "ln_2", hidden))
        x = F.gelu(x, approximate="tanh")
        return hidden + _convolution(given, at + "mlp.c_proj", x)

    def _gated(self, given: Params, at: str, x: Tensor) -> Tensor:
        """Give silu(gate(x)) * up(x), the inside of a SwiGLU layer."""
        gate = _linear(given, at + "mlp.gate_proj", x)
        return F.silu(gate) * _linear(given, at + "mlp.up_proj", x)

    def _rms_norm(self, given: Params, name: str, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=self.config.rms_norm_eps) * given[
            name + ".weight"
        ].unsqueeze(1)

    def _layer_norm(self, given: Params, name: str, x: Tensor) -> Tensor:
        eps = (
            self.config.layer_norm_epsilon if self.family == "gpt2" else self.config.layer_norm_eps
        )
        weight, bias = given[name + ".weight"], given[name + ".bias"]
        return torch.addcmul(
            bias.unsqueeze(1), F.layer_norm(x, x.shape[-1:], eps=eps), weight.unsqueeze(1)
        )

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, shape: torch.Size) -> Tensor:
        """Give the causal attention's output (stack, tokens, heads * head width)."""
        rows, width = shape
        q, k, v = (
            x.reshape(self.stack * rows, width, -1, self.head_width).transpose(1, 2)
            for x in (q, k, v)
        )
        if self.family != "gpt2":
            cos, sin = self._rotation(width)
            q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        grouped = q.shape[1] != k.shape[1]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return mixed.transpose(1, 2).reshape(self.stack, rows * width, -1)

    def _rotation(self, width: int) -> tuple[Tensor, Tensor]:
        """Give the rotary tables cos and sin, each (width, rotated dimensions)."""
        if width not in self._tables:
            rope = self.config.rope_parameters
            rotated = int(self.head_width * rope.get("partial_rotary_factor", 1.0))
            power = torch.arange(0, rotated, 2, dtype=torch.float32) / rotated
            angle = torch.arange(width).float()[:, None] * (1.0 / rope["rope_theta"] ** power)
            angle = torch.cat((angle, angle), dim=-1).to(self.device)
            self._tables[width] = (angle.cos(), angle.sin())
        return self._tables[width]


def _stacked(states: Sequence[Mapping[str, Tensor]], without: str | None) -> dict[str, Tensor]:
    """Give the float32 parameters of all members, stacked, leaving out a tied head."""
    if not states:
        raise ModelError("no state to stack; give at least one")
    names = [name for name in states[0] if name != without]
    for member, state in enumerate(states):
        if set(state) - {without} != set(names):
            odd = sorted((set(state) - {without}) ^ set(names))[0]
            raise ModelError(
                f"state {member} and state 0 differ in {odd}; stack models of one configuration"
            )
    return {name: torch.stack([state[name].detach().float() for state in states]) for name in names}


def _linear(given: Params, name: str, x: Tensor) -> Tensor:
    """Give x times the transposed weight, plus the bias where there is one."""
    bias = given.get(name + ".bias")
    return _Linear.apply(x, given[name + ".weight"], None if bias is None else bias.unsqueeze(1))


def _convolution(given: Params, name: str, x: Tensor) -> Tensor:
    """Give GPT-2's Conv1D, whose weight is stored (in, out)."""
    return torch.baddbmm(given[name + ".bias"].unsqueeze(1), x, given[name + ".weight"])


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Give x with its first dimensions rotated by position, halves paired as transformers does."""
    rotated = cos.shape[-1]
    turned, rest = x[..., :rotated], x[..., rotated:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


class _Linear(torch.autograd.Function):
    """x @ weight.T + start, the weight's gradient laid out like the weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, start: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.start = None if start is None else start.shape
        if start is None:
            return torch.bmm(x, weight.mT)
        return torch.baddbmm(start, x, weight.mT)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_x = grad.bmm(weight) if ctx.needs_input_grad[0] else None
        for_weight = grad.mT.bmm(x) if ctx.needs_input_grad[1] else None
        for_start = None
        if ctx.needs_input_grad[2]:
            for_start = grad if ctx.start == grad.shape else grad.sum(1, keepdim=True)
        return for_x, for_weight, for_start


class _Embed(torch.autograd.Function):
    """The tokens' embeddings, and the table again for a head tied to it.

    Handing the table through lets the head's gradient arrive here, so that the tokens' gradients
    are added into it: no second table of gradients is made. ``skip`` is the padding token, whose
    embedding transformers never moves.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, skip: int | None) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(ids)
        ctx.skip, ctx.shape = skip, table.shape
        ctx.set_materialize_grads(False)
        return table.index_select(1, ids), table.view_as(table)

    @staticmethod
    def backward(ctx: Any, hidden: Tensor | None, table: Tensor | None) -> tuple[Any, ...]:
        (ids,) = ctx.saved_tensors
        if hidden is None:
            return table, None, None
        if table is None:
            table = hidden.new_zeros(ctx.shape)
        if ctx.skip is not None:
            hidden = hidden * (ids != ctx.skip)[:, None]
        return table.index_add_(1, ids, hidden), None, None
