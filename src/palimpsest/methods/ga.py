"""Gradient ascent on the forget answers, with descent on the retain answers.

    L = −NLL(forget answers) + w · NLL(retain answers)

NLL is the mean over texts of the mean over answer tokens. Jang et al. 2023, *Knowledge Unlearning
for Mitigating Privacy Risks in Language Models* (ascent); Yao et al. 2024, arXiv:2402.15159 (with
a retain term).
"""

from dataclasses import dataclass

from torch import Tensor

from palimpsest.methods.context import AscentMethod, Positive, StepView, Weight


@dataclass(frozen=True)
class GradientAscent(AscentMethod):
    weight: Weight = 12.0
    """Weight of the retain term."""
    rate: Positive = 1.0
    """Multiple of the plan's learning rate for ascent."""

    name = "ga"
    summary = "climbs the loss of forget answers while learning retain answers"
    citation = "Jang et al. 2023; Yao et al. 2024, arXiv:2402.15159"

    def loss(self, view: StepView) -> Tensor:
        return self.weight * view.retain_nll() - view.forget_nll()
