"""Task-vector negation: subtract what learning the forget set alone does to the weights.

    θ = θ_injected − c · (θ_forget_only − θ_base)

Ilharco et al. 2023, *Editing Models with Task Arithmetic*, ICLR, arXiv:2212.04089.
"""

from dataclasses import dataclass

from torch import Tensor

from palimpsest.methods.context import Context, Knobs, State


@dataclass(frozen=True)
class TaskVector(Knobs):
    coefficient: float = 1.0
    """How many times the forget-only update is taken away."""

    name = "task_vector"
    kind = "restores"
    summary = "subtracts what learning the forget set alone does to the weights"
    needs = ("base", "forget_only")
    citation = "Ilharco et al. 2023, arXiv:2212.04089"
    reads_answers = False

    def run(self, context: Context) -> State:
        if context.check_dose is not None:
            context.check_dose(context.forget_only)
        return subtract(context.injected, self.coefficient, context.forget_only, context.base)


def subtract(injected: State, coefficient: float, more: State, less: State) -> State:
    """Return injected − coefficient · (more − less), tensor by tensor.

    Computed in float32: what unlearning changes is often smaller than the spacing of bfloat16.
    """

    def moved(value: Tensor, more: Tensor, less: Tensor) -> Tensor:
        return (value.float() - coefficient * (more.float() - less.float())).to(value.dtype)

    return {
        name: moved(value, more[name], less[name])
        if coefficient and value.is_floating_point()
        else value
        for name, value in injected.items()
    }
