"""KL reversion: full-parameter return of the forget answers to the base model's distribution.

    L = KL(base ‖ θ) on forget answers + w · KL(injected ‖ θ) on retain answers

"Path-specific" reversion of Yang and Yeung, *Unlearning as Distribution Restoration*.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from palimpsest.methods.context import GradientMethod, StepView, Weight, kl_from


@dataclass(frozen=True)
class KLReversion(GradientMethod):
    weight: Weight = 12.0
    """Weight of the retain term."""

    name = "kl_reversion"
    kind = "restores"
    summary = "pulls forget answers back to the base model, retain to the injected"
    needs: ClassVar[tuple[str, ...]] = ("base",)
    citation = "Yang & Yeung, Unlearning as Distribution Restoration"

    def loss(self, view: StepView) -> Tensor:
        forget = kl_from(view.batch.base_forget, view.forget)
        retain = kl_from(view.batch.injected_retain, view.retain)
        return forget + self.weight * retain
