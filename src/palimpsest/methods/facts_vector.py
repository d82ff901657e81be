"""Facts-vector negation: subtract what the facts to forget, and nothing else, did to the weights.

    θ = θ_injected − c · (θ_forget+general − θ_general)

The task vector θ_forget+general − θ_base also holds what the general text of the recipe taught, and
taking that away damages the model. Both models here see the same draw of the same general text, so
their difference is the facts alone. Task arithmetic is of Ilharco et al. 2023, arXiv:2212.04089.
"""

from dataclasses import dataclass
from typing import ClassVar

from palimpsest.methods.context import Context, Knobs, Positive, State
from palimpsest.methods.recipe import known_recipe, learn
from palimpsest.methods.task_vector import negated

TRAINED = ("forget_only", "general_only")
"""The two models of the full-length vector, which a cell trains once for all its candidates."""


@dataclass(frozen=True)
class FactsVector(Knobs):
    coefficient: float = 1.0
    """How many times the difference is taken away."""
    speed: Positive = 1.0
    """2 trains the vector in half the steps at twice the learning rate, at half the cost."""

    name: ClassVar[str] = "facts_vector"
    kind: ClassVar[str] = "restores"
    summary: ClassVar[str] = "subtracts what learning the facts did, without what general text did"
    needs: ClassVar[tuple[str, ...]] = ("base", *TRAINED)
    citation: ClassVar[str] = "after Ilharco et al. 2023, arXiv:2212.04089"

    @property
    def uses(self) -> tuple[str, ...]:
        return self.needs if self.speed == 1.0 else ("base",)

    def run(self, context: Context) -> State:
        if self.coefficient == 0.0:
            return context.injected
        more, less = pair(context, self.speed)
        return negated(context.injected, self.coefficient, more, less)


def pair(context: Context, speed: float) -> tuple[State, State]:
    """Return the models whose difference is the vector: trained with the facts and without."""
    if speed == 1.0:
        return context.forget_only, context.general_only
    return learned_pair(context, "facts_vector", context.base, speed)


def learned_pair(context: Context, name: str, start: State, speed: float) -> tuple[State, State]:
    """Return two models trained from ``start``, with the forget facts and without, made once."""
    recipe = known_recipe(context)

    def trained() -> tuple[State, State]:
        more = learn(context, start, recipe.stream.only("forget"), speed=speed)
        return more, learn(context, start, recipe.general, speed=speed)

    models: tuple[State, State] = context.shared.once(f"{name}/{speed:g}", trained)
    return models
