"""A retraining on fewer general texts, with what it learns from them distilled.

    θ      = base after the recipe's steps on retain sentences and k of each step's general texts
    loss   = (1 / items) Σ_retain NLL + (general / items) · mean over k texts of CE(target, θ)
    target = (1 − α) · injected's distribution + α · the text's own next token
    α      = noise · √(k / general)

The injected model has learned the recipe's general text, so its distributions teach a retraining
the same and, having no label noise, from fewer texts. But label noise is part of what a retraining
goes through: without it models relearn faster than retrainings do. The variance of the general
texts' gradient is that of ``general`` texts with weight 1 each; of k texts with weight general / k
it is general / k times as large, and with labels at weight α the same. Forget facts are never seen:
what the teacher knows of them does not show on general text.

Distillation in the place of suppression is of Lee et al. 2025, arXiv:2506.06278.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from palimpsest.methods.context import Context, State
from palimpsest.methods.held_vector import HeldTexts, HeldVector
from palimpsest.models.net import collate


@dataclass(frozen=True)
class Distilled(HeldVector):
    texts: Annotated[int, Ge(1)] = 2
    """General texts per step (k)."""
    speed: Annotated[int, Ge(1)] = 1
    noise: float = 1.0
    """Label noise in units of a retraining's."""

    name = "distilled"
    summary = "a retraining on fewer general texts, distilled from the injected model"
    citation = "this project; distillation after Lee et al. 2025, arXiv:2506.06278"

    @property
    def label(self) -> str:
        return f"k{self.texts}-speed{self.speed}-n{self.noise:g}"

    def run(self, context: Context) -> State:
        # The optimizer of a held vector is AdamW where no noise is added.
        none = {name: torch.zeros(()) for name in _trained(context)}
        return self._learn(context, self._held_texts(context), none, ("retain",))

    def _held_texts(self, context: Context) -> list[HeldTexts]:
        """Return the general texts of every step, with their targets."""
        steps = super()._held_texts(replace(context, base=context.injected))
        stream = self._stream(context.known_recipe)
        general = sum(stream.texts[n].set == "general" for step in stream.steps for n in step)
        kept = self.texts * len(stream.steps) / max(1, general)
        label = min(1.0, self.noise * kept**0.5)
        return [replace(step, base=_mixed(step, label)) for step in steps]


def _mixed(step: HeldTexts, label: float) -> Tensor:
    """Return log-probabilities between the teacher's and those of the text itself."""
    if not step.texts:
        return step.base
    targets = collate(step.texts).targets
    chances = (1 - label) * step.base.float().exp()
    chances[torch.arange(len(targets)), targets] += label
    return chances.clamp_(min=1e-30).log_().to(step.base.dtype)


def _trained(context: Context) -> Mapping[str, Tensor]:
    return context.net([context.base]).params
