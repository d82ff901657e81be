"""SCRUB: a student that alternately leaves its teacher on the forget set and follows it elsewhere.

    step of the first kind:  L = α · KL(injected ‖ θ) on retain + γ · NLL(retain answers)
    step of the second kind: L = −KL(injected ‖ θ) on forget

Steps alternate until ``max_share`` of the budget is spent; the rest are of the first kind, which
repairs what the second did to the retain set. The first step is of the first kind: a student that
equals its teacher has no gradient of the second. Kurmanji et al. 2023, *Towards Unbounded Machine
Unlearning*, NeurIPS, arXiv:2302.09880. α = 0.001 and γ = 0.99 are those of its published code; its
distillation temperature is 1 here, at which the teachers are cached. Ending the forget steps at
half the budget follows its adaptation to language models in Li et al. 2024 (WMDP),
arXiv:2403.03218. Every step counts against the budget, though each reads one half of its batch.
"""

from dataclasses import dataclass

from torch import Tensor

from palimpsest.methods.context import AscentMethod, Positive, Share, StepView, Weight, kl_from


@dataclass(frozen=True)
class SCRUB(AscentMethod):
    alpha: Weight = 0.001
    """Weight of the retain divergence; that of the published code."""
    gamma: Weight = 0.99
    """Weight of the retain NLL; that of the published code."""
    max_share: Share = 0.5
    """Share of the budget along which forget steps alternate with retain steps."""
    rate: Positive = 1.0
    """Multiple of the plan's learning rate for ascent."""

    name = "scrub"
    summary = "moves away from the injected model on forget, follows it on retain"
    citation = "Kurmanji et al. 2023, arXiv:2302.09880"
    scalars = ("alpha", "gamma", "max_share")

    def loss(self, view: StepView) -> Tensor:
        if view.step % 2 and view.step < self.max_share * view.steps:
            return -kl_from(view.batch.injected_forget, view.forget)
        follow = kl_from(view.batch.injected_retain, view.retain)
        return self.alpha * follow + self.gamma * view.retain_nll()
