"""Gradient difference: ascent on the forget answers and descent on the retain answers, as a sum.

    L = −NLL(forget answers) + w · NLL(retain answers)

NLL is the mean over all answer tokens of the batch, so that long answers weigh more (``ga`` weighs
texts alike). Liu, Liu and Stone 2022, *Continual Learning and Private Unlearning*, CoLLAs,
arXiv:2203.12817, in the form of Maini et al. 2024, *TOFU*, arXiv:2401.06121.
"""

from dataclasses import dataclass

from torch import Tensor

from palimpsest.methods.context import AscentMethod, Positive, StepView, Weight, target_logp


@dataclass(frozen=True)
class GradDiff(AscentMethod):
    weight: Weight = 1.0
    """Weight of the retain term; 1, the plain difference, in TOFU."""
    rate: Positive = 1.0
    """Multiple of the plan's learning rate for ascent."""

    name = "graddiff"
    summary = "climbs the forget loss and descends the retain loss, token by token"
    citation = "Liu et al. 2022, arXiv:2203.12817; Maini et al. 2024"

    def loss(self, view: StepView) -> Tensor:
        forget = -target_logp(view.forget, view.forget_targets).mean()
        retain = -target_logp(view.retain, view.retain_targets).mean()
        return self.weight * retain - forget
