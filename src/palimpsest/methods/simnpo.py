"""SimNPO: NPO without a reference model, on the length-normalized likelihood of the answer.

    L = −(2/β) · mean log σ(−(β/|y|) · log π_θ(y|x) − γ) + w · NLL(retain answers)

|y| is the number of answer tokens. Fan et al. 2024, *Simplicity Prevails: Rethinking Negative
Preference Optimization for LLM Unlearning*, arXiv:2410.07163. β = 2.5, γ = 0 and a forget term of
0.1375 against a retain term of 1 are its settings for TOFU's forget05; with the forget term at 1,
as everywhere here, the latter is w = 1/0.1375 ≈ 7.27.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from palimpsest.methods.context import AscentMethod, Positive, StepView, Weight


@dataclass(frozen=True)
class SimNPO(AscentMethod):
    weight: Weight = 1.0
    """Weight of the retain term; 1/0.1375 in the paper's TOFU runs, which holds pocket models."""
    beta: Positive = 2.5
    """Inverse temperature; the paper's for TOFU forget05."""
    gamma: float = 0.0
    """Margin; the paper's."""
    rate: Positive = 2.0
    """Multiple of the plan's learning rate for ascent."""

    name = "simnpo"
    summary = "lowers the likelihood per token of forget answers, no reference"
    citation = "Fan et al. 2024, arXiv:2410.07163"
    scalars = ("weight", "beta", "gamma")

    def loss(self, view: StepView) -> Tensor:
        answers = view.forget_answers()
        lengths = view.batch.forget_sums.sum(-1)
        margin = -self.beta * answers / lengths - self.gamma
        forget = -2 / self.beta * functional.logsigmoid(margin).mean()
        return forget + self.weight * view.retain_nll()
