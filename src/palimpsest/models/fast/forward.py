"""The forward of five architectures, for several models at once, at asked positions and no others.

It is that of ``transformers`` in evaluation mode, in float32, and can be differentiated once. Every
parameter carries a leading stack axis, so that a matrix product is one batched product over all
models; nothing is computed for padding, nor twice for what texts share (``tree.py``), nor behind
the last attention at positions that are not scored. ``supports`` tells for which configurations
this holds.

A pocket model is so small that a ``transformers`` step spends most of its time between kernels.
``StackedNet`` keeps the parameters of several models of one configuration side by side. Whatever
``supports`` refuses goes through ``WholeNet``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from palimpsest.errors import ModelError
from palimpsest.models.fast.tape import Layout, Params, Tape, Var
from palimpsest.models.fast.tree import LANES, Tree

if TYPE_CHECKING:
    from palimpsest.models.net import Batch


Scored = Tensor | None  # the scored nodes, told to the last layer only
Watch = Callable[[int, Tensor, Scored], Tensor]
"""Sees the states (stack, nodes, width) after a layer and where the scored nodes are among them
(None: they are all), and returns the states to go on with."""
_watching: list[Watch] = []
HEAD = "lm_head.weight"
POSITIONS = "transformer.wpe.weight"  # only GPT-2 learns them
QKV = ("q_proj", "k_proj", "v_proj")


def supports(config: Any) -> bool:
    """Tell whether ``Forward`` computes exactly what this configuration means."""
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
        names = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
        self.eps = float(next(getattr(config, name) for name in names if hasattr(config, name)))

    def __call__(self, given: Params, tree: Tree) -> Tensor:
        """Return float32 logits (stack, scored, vocabulary) at the tree's scored nodes."""
        if torch.is_grad_enabled():
            logits: Tensor = _Whole.apply(self, tree, tuple(given), *given.values())
            return logits
        return self.run(Tape(given), tree).value

    def run(self, tape: Tape, tree: Tree) -> Var:
        """Return the logits, with every piece noted on the tape."""
        family = self.family
        unmoved = self.config.pad_token_id if family.unmoved_padding else None
        hidden = tape.embed(family.embedding, tree.ids, unmoved)
        if POSITIONS in tape.leaves:
            hidden = tape.plus(hidden, tape.embed(POSITIONS, tree.positions))
        layout = self._layout(tree)
        last = self.config.num_hidden_layers - 1
        for at in range(last + 1):
            kept, seen = (tree.scored, None) if at == last else (None, tree.scored)
            hidden = family.layer(tape, f"{family.layers}.{at}.", hidden, layout, kept)
            if _watching:
                hidden = Var(_watching[-1](at, hidden.value, seen), False)
        return self._read_out(tape, hidden)

    def read_out(self, given: Params, states: Tensor) -> Tensor:
        """Return the logits of states (stack, nodes, width): last norm, then output embedding."""
        return self._read_out(Tape(given), Var(states, False)).value

    def _read_out(self, tape: Tape, hidden: Var) -> Var:
        hidden = tape.norm(hidden, self.family.last_norm, self.eps)
        head = self.family.embedding if self.tied else HEAD
        return tape.linear(hidden, head.removesuffix(".weight"))[0]

    def _layout(self, tree: Tree) -> Layout:
        config = self.config
        heads = config.num_attention_heads
        groups = getattr(config, "num_key_value_heads", None) or heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        rope = getattr(config, "rope_parameters", None) or {}
        turned = int(width * rope.get("partial_rotary_factor", 1.0)) if rope else 0
        shape = (tree.paths.shape[1], width, turned, rope.get("rope_theta", 1.0), tree.ids.device)
        causal, turn, cos, sin = _tables(*shape)
        cos, sin = (x.index_select(0, tree.positions).repeat(1, heads) for x in (cos, sin))
        causal = causal.repeat(heads // groups, 1)
        return Layout(tree, heads, groups, width, self.eps, causal, turn, cos, sin)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Let ``watch`` see, and change, the states of every forward without gradient in this block."""
    _watching.append(watch)
    try:
        yield
    finally:
        _watching.pop()


class _Whole(torch.autograd.Function):
    """A whole forward as one operation to torch."""

    @staticmethod
    def forward(
        ctx: Any, net: Forward, tree: Tree, names: tuple[str, ...], *values: Tensor
    ) -> Tensor:
        needed = ctx.needs_input_grad[3:]
        wanted = frozenset(name for name, need in zip(names, needed) if need)
        ctx.tape, ctx.names = Tape(dict(zip(names, values)), wanted), names
        ctx.result = net.run(ctx.tape, tree)
        return ctx.result.value.view_as(ctx.result.value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() or ctx.tape is None:
            raise RuntimeError("a stacked forward can be differentiated once")
        grads = ctx.tape.backward(ctx.result, grad)
        ctx.tape = ctx.result = None
        return (None, None, None, *(grads.get(name) for name in ctx.names))


@lru_cache(maxsize=256)
def _tables(
    columns: int, width: int, turned: int, theta: float, device: torch.device
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Return what texts of one width share: which keys come after a query (columns, padded), the
    quarter turn of a head, None without one, and cosine and sine by position (columns, width)."""
    padded = -columns % LANES + columns
    causal = torch.full((columns, padded), float("-inf"), device=device).triu(1)
    power = torch.arange(0, turned, 2, dtype=torch.float32) / max(turned, 1)
    half = len(power)  # of 5 dimensions transformers turns 6, at the frequencies of 5
    angle = torch.arange(columns).float()[:, None] * (1.0 / (theta**power))
    # Dimensions that are not turned have angle 0: cos 1, sin 0.
    angle = torch.cat((angle, angle, torch.zeros(columns, width - 2 * half)), dim=-1)
    turn = torch.zeros(width, width)
    turn[half : 2 * half, :half] = -torch.eye(half)
    turn[:half, half : 2 * half] = torch.eye(half)
    cos, sin = angle.cos().to(device), angle.sin().to(device)
    return causal, turn.to(device) if turned else None, cos, sin


def _llama(tape: Tape, at: str, hidden: Var, layout: Layout, scored: Scored) -> Var:
    x = tape.norm(hidden, at + "input_layernorm", layout.eps)
    q, k, v = tape.linear(x, *(f"{at}self_attn.{name}" for name in QKV))
    mixed = tape.only(scored, tape.attention(q, k, v, layout))
    hidden = tape.only(scored, hidden)
    (hidden,) = tape.linear(mixed, at + "self_attn.o_proj", onto=hidden)
    x = tape.norm(hidden, at + "post_attention_layernorm", layout.eps)
    gate, up = tape.linear(x, at + "mlp.gate_proj", at + "mlp.up_proj")
    return tape.linear(tape.gated(gate, up), at + "mlp.down_proj", onto=hidden)[0]


def _olmo2(tape: Tape, at: str, hidden: Var, layout: Layout, scored: Scored) -> Var:
    q, k, v = tape.linear(hidden, *(f"{at}self_attn.{name}" for name in QKV))
    q = tape.norm(q, at + "self_attn.q_norm", layout.eps)
    k = tape.norm(k, at + "self_attn.k_norm", layout.eps)
    mixed = tape.only(scored, tape.attention(q, k, v, layout))
    hidden = tape.only(scored, hidden)
    (mixed,) = tape.linear(mixed, at + "self_attn.o_proj")
    hidden = tape.plus(hidden, tape.norm(mixed, at + "post_attention_layernorm", layout.eps))
    gate, up = tape.linear(hidden, at + "mlp.gate_proj", at + "mlp.up_proj")
    (x,) = tape.linear(tape.gated(gate, up), at + "mlp.down_proj")
    return tape.plus(hidden, tape.norm(x, at + "post_feedforward_layernorm", layout.eps))


def _gpt_neox(tape: Tape, at: str, hidden: Var, layout: Layout, scored: Scored) -> Var:
    x = tape.norm(hidden, at + "input_layernorm", layout.eps)
    (x,) = tape.linear(x, at + "attention.query_key_value")
    q, k, v = tape.thirds(x, layout.heads)
    mixed = tape.only(scored, tape.attention(q, k, v, layout))
    hidden = tape.only(scored, hidden)
    x = tape.norm(hidden, at + "post_attention_layernorm", layout.eps)
    (hidden,) = tape.linear(mixed, at + "attention.dense", onto=hidden)
    (x,) = tape.linear(x, at + "mlp.dense_h_to_4h")
    return tape.linear(tape.gelu(x), at + "mlp.dense_4h_to_h", onto=hidden)[0]


def _gpt2(tape: Tape, at: str, hidden: Var, layout: Layout, scored: Scored) -> Var:
    x = tape.norm(hidden, at + "ln_1", layout.eps)
    (x,) = tape.linear(x, at + "attn.c_attn", across=True)
    q, k, v = tape.thirds(x)
    mixed = tape.only(scored, tape.attention(q, k, v, layout))
    hidden = tape.only(scored, hidden)
    (hidden,) = tape.linear(mixed, at + "attn.c_proj", onto=hidden, across=True)
    x = tape.norm(hidden, at + "ln_2", layout.eps)
    (x,) = tape.linear(x, at + "mlp.c_fc", across=True)
    return tape.linear(tape.gelu(x, "tanh"), at + "mlp.c_proj", onto=hidden, across=True)[0]


@dataclass(frozen=True)
class _Family:
    """A family's parameter names, its layer, and the settings its layer was checked under."""

    embedding: str
    layers: str
    last_norm: str
    layer: Callable[[Tape, str, Var, Layout, Scored], Var]
    verified: Mapping[str, Any]
    rope: tuple[str, ...] = ("rope_type", "rope_theta")
    unmoved_padding: bool = True  # lookups of the padding token give its embedding no gradient


_LLAMA = ("model.embed_tokens.weight", "model.layers", "model.norm")
_NEOX = ("gpt_neox.embed_in.weight", "gpt_neox.layers", "gpt_neox.final_layer_norm")
_GPT2 = ("transformer.wte.weight", "transformer.h", "transformer.ln_f")
_GPT2_VERIFIED = {"activation_function": "gelu_new", "scale_attn_weights": True} | dict.fromkeys(
    ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"), False
)
_NEOX_VERIFIED = {"hidden_act": "gelu", "attention_bias": True, "use_parallel_residual": True}
_ROPE = ("rope_type", "rope_theta", "partial_rotary_factor")
_PLAIN = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1}
FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(*_LLAMA, _llama, _PLAIN),
    "qwen2": _Family(*_LLAMA, _llama, {"hidden_act": "silu", "use_sliding_window": False}),
    "olmo2": _Family(*_LLAMA, _olmo2, {"hidden_act": "silu", "attention_bias": False}),
    "gpt_neox": _Family(*_NEOX, _gpt_neox, _NEOX_VERIFIED, _ROPE, unmoved_padding=False),
    "gpt2": _Family(*_GPT2, _gpt2, _GPT2_VERIFIED, (), unmoved_padding=False),
}


class StackedNet:
    """Models of one pocket-sized configuration, side by side."""

    models: tuple[Any, ...] = ()

    def __init__(
        self, config: Any, states: Sequence[Params], device: torch.device | None = None
    ) -> None:
        if not supports(config):
            kind = getattr(config, "model_type", type(config).__name__)
            raise ModelError(f"{kind} with these settings cannot be stacked; use WholeNet")
        self.config, self.stack, self.forward = config, len(states), Forward(config)
        self.params: dict[str, Tensor] = {}
        for name in states[0]:
            if name != HEAD or not self.forward.tied:
                members = [state[name].detach().to(device, torch.float32) for state in states]
                self.params[name] = torch.stack(members).requires_grad_()

    @property
    def device(self) -> torch.device:
        return self.params[self.forward.family.embedding].device

    def state(self, member: int = 0) -> dict[str, Tensor]:
        state = {name: value.detach()[member].clone() for name, value in self.params.items()}
        if self.forward.tied:
            state[HEAD] = state[self.forward.family.embedding]
        return state

    def logits(self, batch: "Batch", params: Params | None = None) -> Tensor:
        given = self.params if params is None else {**self.params, **params}
        return self.forward(given, batch.tree)
