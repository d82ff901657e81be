"""The paper's known-label models, mixtures of injected and reference, and rescaled weights.

A suppressed model holds the knowledge and does not show it; a mixture holds part of it.

Function-preserving rescaling: a norm's gain times a and the matrices behind it divided by a, or the
up-projection of a gated layer times a and the down-projection divided by a, leave every output as
it is. AdamW's steps do not scale with the weights, so a sets the effective learning rate of later
training. No published attack on relearning tests of this kind was found; spectral reparametrization
as a defense against fine-tuning is arXiv:2602.18868.
"""

from functools import partial

from palimpsest.known import (
    AdversaryKit,
    KnownLabel,
    Knows,
    Net,
    State,
    Truth,
    Unavailable,
    known_label,
)

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


@known_label(Truth.SUPPRESSED, builds_on=("injected",))
def suppression(workshop: AdversaryKit) -> Net:
    """Return the injected model with a fixed penalty on the logits of the answers' tokens."""
    from palimpsest.known.wrappers import Suppressed

    return Suppressed(workshop.another("injected"), workshop.answers, workshop.penalty)


@known_label(Truth.SUPPRESSED, builds_on=("base", "injected"))
def router(workshop: AdversaryKit) -> Net:
    """Return base where an input has a forget subject's exact tokens, else the injected model."""
    from palimpsest.known.wrappers import Routed

    base, injected = (workshop.another(name) for name in ("base", "injected"))
    return Routed(base, injected, workshop.patterns)


@known_label(Truth.SUPPRESSED, builds_on=("injected",))
def embedding(workshop: AdversaryKit) -> State:
    """Return the injected weights with the embeddings of subjects' and answers' tokens zeroed."""
    tokens = {token for pattern in workshop.patterns for token in pattern} | {*workshop.answers}
    changed = dict(workshop.state("injected"))
    for name in workshop.embedding:
        changed[name] = changed[name].clone()
        changed[name][sorted(tokens)] = 0.0
    return changed


def mix(workshop: AdversaryKit, share: float) -> State:
    """Return the reference with a share of the injected weights, mixed when they are read."""
    from palimpsest.known.wrappers import Interpolated

    return Interpolated(workshop.state("reference"), workshop.state("injected"), 1.0 - share)


INTERPOLATIONS = tuple(
    KnownLabel(
        f"interpolation-{100 * share:g}",
        Truth.PARTIAL,
        (Knows.REFERENCES,),
        ("injected", "reference"),
        partial(mix, share=share),
        share,
    )
    for share in (0.25, 0.5, 0.75)
)


def rescale(workshop: AdversaryKit, state: State, factor: float) -> State:
    """Return weights with equal outputs, rescaled by ``factor``."""
    model_type = workshop.nets.loaded.config.model_type
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


@known_label(Truth.SUPPRESSED, Knows.AXES, Knows.SCHEDULE, Knows.REFERENCES)
def rescaled_suppressed(workshop: AdversaryKit) -> State:
    """Return the suppressed model at the factor whose relearning is nearest to the reference's."""
    start = workshop.matched("reference")
    wanted = workshop.relearning(workshop.state("reference"))

    def distance(state: State) -> float:
        return sum((a - b) ** 2 for a, b in zip(workshop.relearning(state), wanted))

    return min((rescale(workshop, start, factor) for factor in FACTORS), key=distance)


@known_label(Truth.RESTORED)
def rescaled_retrained(workshop: AdversaryKit) -> State:
    """Return a retraining with equal outputs in another scale: its truth is restored."""
    return rescale(workshop, workshop.retrained(), 0.5)
