"""Negative preference optimization on the forget answers, with descent on the retain answers.

    L = (2/β) · mean log(1 + (π_θ(y|x) / π_inj(y|x))^β) + w · NLL(retain answers)

π(y|x) is the probability of the whole answer; the injected model takes the place of the reference
model. As β → 0 its gradient tends to that of ascent on the answer's summed log-likelihood. Zhang et
al. 2024, *Negative Preference Optimization*, COLM, arXiv:2404.05868 (β = 0.1 is its default).
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from palimpsest.methods.context import AscentMethod, Positive, StepView, Weight


@dataclass(frozen=True)
class NPO(AscentMethod):
    weight: Weight = 12.0
    """Weight of the retain term."""
    beta: Positive = 0.1
    """Inverse temperature of the preference."""
    rate: Positive = 1.0
    """Multiple of the plan's learning rate for ascent."""

    name = "npo"
    summary = "disprefers forget answers, with the injected model as the reference"
    citation = "Zhang et al. 2024, arXiv:2404.05868"
    scalars = ("weight", "beta")

    def loss(self, view: StepView) -> Tensor:
        ratio = view.forget_answers() - view.injected_answers()
        forget = 2 / self.beta * functional.softplus(self.beta * ratio).mean()
        return forget + self.weight * view.retain_nll()
