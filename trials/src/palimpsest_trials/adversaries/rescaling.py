"""Equal outputs in another scale: adversaries that set the effective learning rate of relearning.

A norm's gain times a and the matrices behind it divided by a, or the up-projection of a gated layer
times a and the down-projection divided by a, leave every output as it is. AdamW's steps do not
scale with the weights, so a sets the effective learning rate of later training. No published attack
on relearning tests of this kind was found; spectral reparametrization as a defense against
fine-tuning is arXiv:2602.18868.
"""

from palimpsest.known import Knows, Truth, Unavailable
from palimpsest.known.kit import AdversaryKit, State
from palimpsest_trials.adversaries.distiller import Distiller, adversary

_GATED = ("mlp.up_proj", ("mlp.down_proj",))
_LLAMA = (
    _GATED,
    ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
)
PAIRS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "olmo2": (_GATED,),
    "gpt2": (("ln_1", ("attn.c_attn",)), ("ln_2", ("mlp.c_fc",))),
    "gpt_neox": (
        ("input_layernorm", ("attention.query_key_value",)),
        ("post_attention_layernorm", ("mlp.dense_h_to_4h",)),
    ),
}
"""By architecture: what is multiplied, and the matrices behind it that are divided."""
FACTORS = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0)
"""Tried by the adversary that knows the schedule; powers of two change no digit of an output."""


def rescale(kit: AdversaryKit, state: State, factor: float) -> State:
    """Return weights with equal outputs, rescaled by ``factor``."""
    model_type = kit.nets.loaded.config.model_type
    if model_type not in PAIRS:
        raise Unavailable(f"rescaling is known for {', '.join(PAIRS)}; {model_type} found")
    changed = dict(state)
    for scaled, divided in PAIRS[model_type]:
        for name in state:
            part, _, kind = name.rpartition(".")
            if part.endswith(f".{scaled}"):
                changed[name] = changed[name] * factor
            elif kind == "weight" and part.endswith(tuple(f".{end}" for end in divided)):
                changed[name] = changed[name] / factor
    return changed


@adversary(Truth.SUPPRESSED, Knows.AXES, Knows.SCHEDULE, Knows.REFERENCES)
def rescaled_suppressed(kit: Distiller) -> State:
    """Return the suppressed model at the factor whose relearning is nearest to the reference's."""
    start = kit.matched("reference")
    wanted = kit.relearning(kit.state("reference"))

    def distance(state: State) -> float:
        return sum((a - b) ** 2 for a, b in zip(kit.relearning(state), wanted))

    return min((rescale(kit, start, factor) for factor in FACTORS), key=distance)


@adversary(Truth.RESTORED)
def rescaled_retrained(kit: Distiller) -> State:
    """Return a retraining with equal outputs in another scale: its truth is restored."""
    return rescale(kit, kit.retrained(), 0.5)
