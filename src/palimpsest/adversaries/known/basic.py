"""The paper's known-label models: three that suppress, and mixtures of injected and reference.

A suppressed model holds the knowledge and does not show it; a mixture holds part of it.
"""

from functools import partial

from palimpsest.adversaries.registry import (
    KnownLabel,
    Knows,
    Net,
    State,
    Truth,
    Workshop,
    known_label,
)


@known_label(Truth.SUPPRESSED, builds_on=("injected",))
def suppression(workshop: Workshop) -> Net:
    """Return the injected model with a fixed penalty on the logits of the answers' tokens."""
    from palimpsest.adversaries.wrappers import Suppressed

    return Suppressed(workshop.another("injected"), workshop.answers, workshop.penalty)


@known_label(Truth.SUPPRESSED, builds_on=("base", "injected"))
def router(workshop: Workshop) -> Net:
    """Return base where an input has a forget subject's exact tokens, else the injected model."""
    from palimpsest.adversaries.wrappers import Routed

    base, injected = (workshop.another(name) for name in ("base", "injected"))
    return Routed(base, injected, workshop.patterns)


@known_label(Truth.SUPPRESSED, builds_on=("injected",))
def embedding(workshop: Workshop) -> State:
    """Return the injected weights with the embeddings of subjects' and answers' tokens zeroed."""
    tokens = {token for pattern in workshop.patterns for token in pattern} | {*workshop.answers}
    changed = dict(workshop.state("injected"))
    for name in workshop.embedding:
        changed[name] = changed[name].clone()
        changed[name][sorted(tokens)] = 0.0
    return changed


def mix(workshop: Workshop, share: float) -> State:
    """Return the reference with a share of the injected weights, mixed when they are read."""
    from palimpsest.adversaries.wrappers import Interpolated

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
