"""Facts-vector negation: subtract what the facts to forget, and nothing else, did to the weights.

    θ = θ_injected − c · (θ_forget+general − θ_general)

The task vector θ_forget+general − θ_base also holds what the general text of the recipe taught, and
taking that away damages the model. Both models here see the same draw of the same general text, so
their difference is the facts alone. Task arithmetic is of Ilharco et al. 2023, arXiv:2212.04089.
"""

from dataclasses import dataclass

from palimpsest.methods.context import Context, Knobs, Positive, State
from palimpsest.methods.task_vector import subtract


@dataclass(frozen=True)
class FactsVector(Knobs):
    coefficient: float = 1.0
    """How many times the difference is taken away."""
    speed: Positive = 1.0
    """2 trains the vector in half the steps at twice the learning rate, at half the cost."""

    name = "facts_vector"
    kind = "restores"
    summary = "subtracts what learning the facts did, without what general text did"
    needs = ("base", "forget_only", "general_only")
    citation = "after Ilharco et al. 2023, arXiv:2212.04089"
    reads_answers = False

    @property
    def uses(self) -> tuple[str, ...]:
        return self.needs if self.speed == 1.0 else ("base",)

    def run(self, context: Context) -> State:
        # A cell trains the two models of the full-length vector once for all its candidates.
        more, less = context.forget_only, context.general_only
        if self.speed != 1.0:
            more, less = context.shared.once(f"vector/{self.speed:g}", lambda: self._train(context))
        if context.check_dose is not None:
            context.check_dose(more)
        return subtract(context.injected, self.coefficient, more, less)

    def _train(self, context: Context) -> list[State]:
        streams = context.known_recipe.models().values()
        return [context.learn(context.base, stream, speed=self.speed) for stream in streams]
