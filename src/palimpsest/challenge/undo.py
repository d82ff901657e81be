"""Noise and distillation: an unlearned model, partly replaced by noise and taught again.

    θ ← (1 − α) θ_unlearned + α β N, N with Xavier's deviation; then KL(unlearned ‖ θ) on retain
    facts, invented facts and general text

α = 0 is the unlearned model, which hides what it knew; at α = 1 nothing of it is left. So α is a
dose, and no label. Lee et al. 2025, *Distillation Robustifies Unlearning* (UNDO), arXiv:2506.06278.
Vectors (norms, biases) are left as they are: the released code shrinks them without noise.
"""

import torch

from palimpsest.challenge.crafting import Goal, follow
from palimpsest.challenge.hidden import matched
from palimpsest.challenge.workshop import State, Workshop
from palimpsest.methods.context import teach

BETA = 0.1
DISTIL = ("retain", "invented", "general")


def undo(workshop: Workshop, alpha: float) -> State:
    """Return the model with a share ``alpha`` of noise, distilled from the unlearned one."""
    teacher = matched(workshop, "base")
    generator = workshop.generator("undo")
    start = dict(teacher)
    for name, value in teacher.items():
        if value.dim() == 2 and name not in workshop.embedding[1:]:
            deviation = (2.0 / sum(value.shape)) ** 0.5
            noise = deviation * torch.randn(value.shape, generator=generator)
            start[name] = (1 - alpha) * value + alpha * BETA * noise.to(value)
    start |= dict.fromkeys(workshop.embedding[1:], start[workshop.embedding[0]])  # tied
    net = workshop.nets([teacher])
    said = {name: teach(net, workshop.texts[name], workshop.pad) for name in DISTIL}
    goals = [Goal(workshop.texts[name], said[name], items=8) for name in DISTIL]
    return follow(workshop, f"undo-{100 * alpha:g}", start, goals, steps=4 * workshop.steps)
