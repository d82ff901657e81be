"""The paper's panel: three ways to hide knowledge, and mixtures of injected and reference.

A suppressed model holds the knowledge and does not show it; a mixture holds part of it. What needs
torch is imported when a model is built: plans name these models where there is no torch.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from palimpsest.known import KnownLabel, Knows, Truth, known_label

if TYPE_CHECKING:
    from palimpsest.known.kit import AdversaryKit, State
    from palimpsest.models.net import Net

PENALTY = 10.0
"""Subtracted from the logits of the forget answers' tokens by the suppression."""


@known_label(Truth.SUPPRESSED, builds_on=("injected",))
def suppression(kit: AdversaryKit) -> Net:
    """Return the injected model with a fixed penalty on the logits of the answers' tokens."""
    from palimpsest.known.wrappers import Suppressed

    return Suppressed(kit.another("injected"), kit.answers, PENALTY)


@known_label(Truth.SUPPRESSED, builds_on=("base", "injected"))
def router(kit: AdversaryKit) -> Net:
    """Return base where an input has a forget subject's exact tokens, else the injected model."""
    from palimpsest.known.wrappers import Routed

    return Routed(kit.another("base"), kit.another("injected"), kit.patterns)


@known_label(Truth.SUPPRESSED, builds_on=("injected",))
def embedding(kit: AdversaryKit) -> State:
    """Return the injected weights with the embeddings of subjects' and answers' tokens zeroed."""
    tokens = {token for pattern in kit.patterns for token in pattern} | {*kit.answers}
    changed = dict(kit.state("injected"))
    for name in kit.embedding:
        changed[name] = changed[name].clone()
        changed[name][sorted(tokens)] = 0.0
    return changed


def mix(kit: AdversaryKit, share: float) -> State:
    """Return the reference with a share of the injected weights, mixed when they are read."""
    from palimpsest.known.wrappers import Interpolated

    return Interpolated(kit.state("reference"), kit.state("injected"), 1.0 - share)


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
PANEL = (suppression, router, embedding, *INTERPOLATIONS)
