"""A method of your own: forget answers go to the uniform distribution, retain answers stay.

    L = KL(uniform ‖ θ) on forget answers + w · NLL(retain answers)

Run it with ``--method my_method:MyMethod`` from this folder, or publish it as an entry point.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from palimpsest.methods.context import GradientMethod, StepView


@dataclass(frozen=True)
class MyMethod(GradientMethod):
    weight: float = 12.0
    """Weight of the retain term."""

    name: ClassVar[str] = "my_method"
    kind: ClassVar[str] = "suppresses"
    summary: ClassVar[str] = "makes forget answers uniform"
    citation: ClassVar[str] = "none yet"

    def loss(self, view: StepView) -> Tensor:
        # Cross-entropy with the uniform distribution: the KL up to a constant.
        return -view.forget.mean() + self.weight * view.retain_nll()
