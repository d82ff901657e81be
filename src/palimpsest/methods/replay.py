"""Replay: negate a vector, then train a little on the recipe's stream without the forget set.

    θ_0 = a start: injected − c · vector, or another
    θ   = θ_0 after share · N steps of the injection's loss on retain sentences and general text

N is the number of injection steps, the learning rate is the injection's, and the stream is another
draw of the recipe than any reference has. Negation takes the facts away and damages retain facts a
little; the replay repairs them. Starts:

- ``facts_vector``: θ(forget + general) − θ(general), negated c times;
- ``task_vector``: θ(forget + general) − θ(base), negated c times;
- ``kl_reversion``: KL reversion with retain weight c;
- ``injected``: the injected model itself, which forgets next to nothing.
"""

from dataclasses import dataclass
from typing import Literal

from palimpsest.methods.context import Context, Knobs, Positive, Share, State
from palimpsest.methods.facts_vector import FactsVector
from palimpsest.methods.kl_reversion import KLReversion
from palimpsest.methods.task_vector import TaskVector


@dataclass(frozen=True)
class Replay(Knobs):
    start: Literal["facts_vector", "task_vector", "kl_reversion", "injected"] = "facts_vector"
    coefficient: float = 1.0
    """How many times the vector is taken away; the retain weight of KL reversion."""
    share: Share = 0.1
    """Steps of replay as a share of the injection's."""
    speed: Positive = 1.0
    """2 trains a facts vector of this method's own in half the steps at twice the learning rate."""

    name = "replay"
    kind = "restores"
    summary = "subtracts a vector, then replays part of the stream without forget set"
    needs = FactsVector.needs
    citation = "this project; the vector after Ilharco et al. 2023"

    @property
    def label(self) -> str:
        speed = "" if self.speed == 1.0 else f"-speed{self.speed:g}"
        return f"{self.start}-c{self.coefficient:g}-s{self.share:g}{speed}"

    @property
    def first(self) -> FactsVector | TaskVector | KLReversion | None:
        """The method that makes the start; None for the injected model itself."""
        if self.start == "facts_vector":
            return FactsVector(self.coefficient, self.speed)
        if self.start == "task_vector":
            return TaskVector(self.coefficient)
        return KLReversion(self.coefficient) if self.start == "kl_reversion" else None

    @property
    def reads_answers(self) -> bool:  # type: ignore[override]
        return self.start == "kl_reversion"

    @property
    def uses(self) -> tuple[str, ...]:
        return self.first.uses if self.first else ()

    def run(self, context: Context) -> State:
        state = self.first.run(context) if self.first else context.injected
        return context.learn(state, context.known_recipe.replay, share=self.share)
