"""The forward of five architectures, for several models at once, at asked positions and no others.

It is that of ``transformers`` in evaluation mode, in float32, and can be differentiated once. Every
parameter carries a leading stack axis, so that a matrix product is one batched product over all
models; nothing is computed for padding, nor twice for what texts share (``tree.py``), nor behind
the last attention at positions that nobody scores. ``supports`` tells which configurations this
holds for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from palimpsest.models.kernels import Attention, Embed, Heads, Linear, RmsNorm
from palimpsest.models.tree import Tree

Params = Mapping[str, Tensor]
Scored = Tensor | None  # the scored nodes, told to the last layer only
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


class Forward:
    """Logits of one configuration as a function of parameters and a tree of texts."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.family = FAMILIES[config.model_type]
        self.tied = bool(config.tie_word_embeddings)
        self._constants: dict[tuple[int, torch.device], _Constants] = {}

    def __call__(self, given: Params, tree: Tree) -> Tensor:
        """Give float32 logits (stack, scored, vocabulary) at the tree's scored nodes."""
        family = self.family
        unmoved = self.config.pad_token_id if family.unmoved_padding else None
        hidden, table = Embed.apply(given[family.embedding], tree.ids, unmoved)
        layout = self._layout(tree, hidden.shape[0])
        if POSITIONS in given:
            hidden = hidden + given[POSITIONS].index_select(1, tree.positions)
        last = self.config.num_hidden_layers - 1
        for at in range(last):
            hidden = family.layer(given, f"{family.layers}.{at}.", hidden, layout, None)
        hidden = family.layer(given, f"{family.layers}.{last}.", hidden, layout, tree.scored)
        hidden = _norm(given, family.last_norm, hidden, layout)
        return _linear({HEAD: table if self.tied else given[HEAD]}, "lm_head", hidden)

    def _layout(self, tree: Tree, stack: int) -> "Layout":
        key = (tree.width, tree.ids.device)
        if key not in self._constants:
            self._constants[key] = _Constants.of(self.config, *key)
        known = self._constants[key]
        heads = Heads(
            known.groups,
            known.head_width,
            tree.spread(stack, known.heads, known.groups, known.causal.shape[1]),
            known.causal,
            known.turn,
            known.cos.index_select(0, tree.positions),
            known.sin.index_select(0, tree.positions),
        )
        return Layout(heads, known.eps)


@dataclass(frozen=True)
class Layout:
    """What the layers of one forward share."""

    heads: Heads
    eps: float


@dataclass(frozen=True)
class _Constants:
    """What texts of one width share; ``Heads`` says what the tensors are, here by position."""

    heads: int
    groups: int
    head_width: int
    eps: float
    causal: Tensor
    turn: Tensor | None
    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, config: Any, width: int, device: torch.device) -> "_Constants":
        heads = config.num_attention_heads
        groups = getattr(config, "num_key_value_heads", None) or heads
        head_width = getattr(config, "head_dim", None) or config.hidden_size // heads
        names = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
        eps = next(getattr(config, name) for name in names if hasattr(config, name))
        causal = torch.full((width, -width % LANES + width), float("-inf"), device=device).triu(1)
        causal = causal.repeat(heads // groups, 1)
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
        return cls(heads, groups, head_width, eps, causal, how, cos, sin)


def _llama(given: Params, at: str, hidden: Tensor, layout: Layout, scored: Scored) -> Tensor:
    x = _norm(given, at + "input_layernorm", hidden, layout)
    q, k, v = _project(given, at + "self_attn.", QKV, x)
    mixed, hidden = _only(scored, Attention.apply(q, k, v, layout.heads), hidden)
    hidden = _linear(given, at + "self_attn.o_proj", mixed, hidden)
    x = _norm(given, at + "post_attention_layernorm", hidden, layout)
    gate, up = _project(given, at + "mlp.", GATE_UP, x)
    return _linear(given, at + "mlp.down_proj", F.silu(gate) * up, hidden)


def _olmo2(given: Params, at: str, hidden: Tensor, layout: Layout, scored: Scored) -> Tensor:
    q, k, v = _project(given, at + "self_attn.", QKV, hidden)
    q = _norm(given, at + "self_attn.q_norm", q, layout)
    k = _norm(given, at + "self_attn.k_norm", k, layout)
    mixed, hidden = _only(scored, Attention.apply(q, k, v, layout.heads), hidden)
    mixed = _linear(given, at + "self_attn.o_proj", mixed)
    hidden = hidden + _norm(given, at + "post_attention_layernorm", mixed, layout)
    gate, up = _project(given, at + "mlp.", GATE_UP, hidden)
    x = _linear(given, at + "mlp.down_proj", F.silu(gate) * up)
    return hidden + _norm(given, at + "post_feedforward_layernorm", x, layout)


def _gpt_neox(given: Params, at: str, hidden: Tensor, layout: Layout, scored: Scored) -> Tensor:
    x = _norm(given, at + "input_layernorm", hidden, layout)
    x = _linear(given, at + "attention.query_key_value", x)
    q, k, v = (y.flatten(2) for y in x.unflatten(-1, (-1, 3, layout.heads.head_width)).unbind(-2))
    mixed, hidden = _only(scored, Attention.apply(q, k, v, layout.heads), hidden)
    x = _norm(given, at + "post_attention_layernorm", hidden, layout)
    hidden = hidden + _linear(given, at + "attention.dense", mixed)
    x = F.gelu(_linear(given, at + "mlp.dense_h_to_4h", x))
    return hidden + _linear(given, at + "mlp.dense_4h_to_h", x)


def _gpt2(given: Params, at: str, hidden: Tensor, layout: Layout, scored: Scored) -> Tensor:
    x = _convolution(given, at + "attn.c_attn", _norm(given, at + "ln_1", hidden, layout))
    q, k, v = x.chunk(3, dim=-1)
    mixed, hidden = _only(scored, Attention.apply(q, k, v, layout.heads), hidden)
    hidden = hidden + _convolution(given, at + "attn.c_proj", mixed)
    x = _convolution(given, at + "mlp.c_fc", _norm(given, at + "ln_2", hidden, layout))
    return hidden + _convolution(given, at + "mlp.c_proj", F.gelu(x, approximate="tanh"))


@dataclass(frozen=True)
class _Family:
    """A family's parameter names, its layer, and the settings its layer was checked under."""

    embedding: str
    layers: str
    last_norm: str
    layer: Callable[[Params, str, Tensor, Layout, Scored], Tensor]
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


def _norm(given: Params, name: str, x: Tensor, layout: Layout) -> Tensor:
    """Give the layer norm of x where there is a bias, its RMS norm where there is none."""
    weight, bias = given[name + ".weight"], given.get(name + ".bias")
    if bias is None:
        return RmsNorm.apply(x, weight, layout.eps)
    unit = F.layer_norm(x, x.shape[-1:], eps=layout.eps)
    return torch.addcmul(bias.unsqueeze(1), unit, weight.unsqueeze(1))


def _project(given: Params, at: str, names: Sequence[str], x: Tensor) -> tuple[Tensor, ...]:
    """Give x through several weights that share it, and their biases if any."""
    weights = [given[f"{at}{name}.weight"] for name in names]
    biased = f"{at}{names[0]}.bias" in given
    biases = [given[f"{at}{name}.bias"].unsqueeze(1) for name in names] if biased else []
    outputs: tuple[Tensor, ...] = Linear.apply(x, len(weights), *weights, *biases)
    return outputs


def _linear(given: Params, name: str, x: Tensor, start: Tensor | None = None) -> Tensor:
    """Give x through one weight, added to ``start`` or, without a start, to its bias if any."""
    if start is None and name + ".bias" in given:
        start = given[name + ".bias"].unsqueeze(1)
    return Linear.apply(x, 1, given[name + ".weight"], *(() if start is None else (start,)))[0]


def _convolution(given: Params, name: str, x: Tensor) -> Tensor:
    """Give x through GPT-2's Conv1D, whose weight is stored (in, out)."""
    return torch.baddbmm(given[name + ".bias"].unsqueeze(1), x, given[name + ".weight"])
