"""Function-preserving rescaling: the same outputs, and another speed of relearning.

A norm's gain times a and the matrices behind it divided by a, or the up-projection of a gated layer
times a and the down-projection divided by a, leave every output as it is. AdamW's steps do not
scale with the weights, so a sets the effective learning rate of whoever trains the model next. No
published attack on relearning tests of this kind was found; spectral reparametrisation as a defence
against fine-tuning is arXiv:2602.18868.
"""

from palimpsest.challenge.crafting import text_nlls
from palimpsest.challenge.hidden import matched
from palimpsest.challenge.models import Unavailable
from palimpsest.challenge.workshop import State, Workshop
from palimpsest.models.net import Net, collate
from palimpsest.models.train import text_loss, train

Pair = tuple[str, tuple[str, ...]]

_GATED: Pair = ("mlp.up_proj", ("mlp.down_proj",))
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_LLAMA: tuple[Pair, ...] = (
    _GATED,
    ("input_layernorm", _QKV),
    ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
)
PAIRS: dict[str, tuple[Pair, ...]] = {
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
RETRAINED = 0.5


def rescaled(state: State, model_type: str, factor: float) -> State:
    """Return weights with equal outputs, rescaled by ``factor``."""
    if model_type not in PAIRS:
        known = ", ".join(PAIRS)
        raise Unavailable(f"rescaling is known for {known}; {model_type} found")
    changed = dict(state)
    for scaled, divided in PAIRS[model_type]:
        for name in state:
            part, _, kind = name.rpartition(".")
            if part.endswith(f".{scaled}"):
                changed[name] = changed[name] * factor
            elif kind == "weight" and part.endswith(tuple(f".{end}" for end in divided)):
                changed[name] = changed[name] / factor
    return changed


def rescaled_suppressed(workshop: Workshop) -> State:
    """Return the suppressed model at the factor whose relearning is nearest to the reference's."""
    kind = workshop.nets.loaded.config.model_type
    start = matched(workshop, "reference")
    wanted = relearning(workshop, workshop.state("reference"))
    states = [rescaled(start, kind, factor) for factor in FACTORS]

    def distance(state: State) -> float:
        curve = relearning(workshop, state)
        return sum((a - b) ** 2 for a, b in zip(curve, wanted))

    return min(states, key=distance)


def rescaled_retrained(workshop: Workshop) -> State:
    """Return a retraining with equal outputs in another scale: its truth is restored."""
    return rescaled(workshop.retrained(), workshop.nets.loaded.config.model_type, RETRAINED)


def relearning(workshop: Workshop, state: State) -> list[float]:
    """Return the forget NLL in the adversary's phrasings at the borders of the schedule."""
    schedule = workshop.schedule()
    net = workshop.nets([state])
    batch = collate(workshop.texts["forget"], workshop.pad)
    levels: list[float] = []

    def note(step: int, net: Net = net) -> None:
        if step in schedule.borders:
            levels.append(float(text_nlls(net, batch).mean().detach()))

    rate = schedule.learning_rate
    train(net, schedule.steps, text_loss, learning_rate=rate, after_step=note)
    return levels
