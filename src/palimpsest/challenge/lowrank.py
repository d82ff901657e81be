"""A low-rank suppressor: an adapter that says at the forget questions what a retrained model says.

    W ← W + A B, rank r, trained by KL(reference ‖ θ) on the forget facts in many phrasings, its own
    among them, and KL(injected ‖ θ) on retain facts, invented facts and general text

Adapters: Hu et al. 2021 (LoRA), arXiv:2106.09685; as a way to unlearn, with KL to the model before:
Jin et al. 2024 (RWKU), arXiv:2406.10890.
"""

import torch
from torch import Tensor

from palimpsest.challenge.crafting import Leaves, follow, goal, keeping
from palimpsest.challenge.workshop import State, Workshop
from palimpsest.models.net import Net

RANK = 4


def low_rank(workshop: Workshop) -> State:
    """Return the injected model with a trained adapter of rank ``RANK`` in every layer's matrix."""
    generator = workshop.generator("low-rank")

    def leaves(net: Net) -> dict[str, Tensor]:
        adapters: dict[str, Tensor] = {}
        axes = 3 if workshop.nets.stacked else 2  # a stack axis comes first
        for name, value in net.params.items():
            value.requires_grad_(False)
            if value.dim() != axes or name in workshop.embedding:
                continue
            *batch, rows, columns = value.shape
            down = torch.randn(*batch, RANK, columns, generator=generator) / columns**0.5
            adapters[f"{name}/A"] = torch.zeros(*batch, rows, RANK, device=net.device)
            adapters[f"{name}/B"] = down.to(net.device)
        return {name: value.requires_grad_() for name, value in adapters.items()}

    def effective(net: Net, given: Leaves) -> dict[str, Tensor]:
        names = [name.removesuffix("/A") for name in given if name.endswith("/A")]
        return {
            name: net.params[name] + (given[f"{name}/A"] @ given[f"{name}/B"]).to(net.params[name])
            for name in names
        }

    goals = [goal(workshop, "forget", "reference", items=8), *keeping(workshop)]
    return follow(
        workshop,
        "low-rank",
        workshop.state("injected"),
        goals,
        steps=2 * workshop.steps,
        rate=10.0,
        leaves=leaves,
        effective=effective,
    )
