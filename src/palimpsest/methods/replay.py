"""Replay: negate a vector, then train a little on the recipe's stream without the forget set.

    θ_0 = a start: injected − c · vector, or another
    θ   = θ_0 after share · N steps of the injection's loss on retain sentences and general text

N is the number of injection steps, the learning rate is the injection's, and the stream is another
draw of the recipe than any reference has. Negation takes the facts away and leaves retain facts a
little damaged; the replay mends them. Starts:

- ``facts_vector``: θ(forget + general) − θ(general), negated c times;
- ``task_vector``: θ(forget + general) − θ(base), negated c times;
- ``reinforced``: the difference of the injected model trained further with the forget facts and
  general text and with general text alone, negated c times. Needs no base, and was
  rejected in every trial;
- ``kl_reversion``: KL reversion with retain weight c;
- ``injected``: the injected model itself, which forgets next to nothing.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from palimpsest.methods.context import Context, Knobs, Positive, Share, State
from palimpsest.methods.facts_vector import FactsVector, learned_pair
from palimpsest.methods.kl_reversion import KLReversion
from palimpsest.methods.recipe import known_recipe, learn
from palimpsest.methods.task_vector import TaskVector, negated

Start = Literal["facts_vector", "task_vector", "reinforced", "kl_reversion", "injected"]


@dataclass(frozen=True)
class Replay(Knobs):
    start: Start = "facts_vector"
    coefficient: float = 1.0
    """How many times the vector is taken away; the retain weight of KL reversion."""
    share: Share = 0.1
    """Steps of replay as a share of the injection's."""
    speed: Positive = 1.0
    """2 trains a vector of this method's own in half the steps at twice the learning rate."""

    name: ClassVar[str] = "replay"
    kind: ClassVar[str] = "restores"
    summary: ClassVar[str] = (
        "subtracts a vector, then replays part of the stream without forget set"
    )
    needs: ClassVar[tuple[str, ...]] = FactsVector.needs
    citation: ClassVar[str] = "this project; the vector after Ilharco et al. 2023"

    @property
    def label(self) -> str:
        speed = "" if self.speed == 1.0 else f"-speed{self.speed:g}"
        return f"{self.start}-c{self.coefficient:g}-s{self.share:g}{speed}"

    @property
    def uses(self) -> tuple[str, ...]:
        """What this start needs, a part of ``needs``."""
        return {
            "facts_vector": FactsVector(speed=self.speed).uses,
            "task_vector": TaskVector.needs,
            "kl_reversion": KLReversion.needs,
        }.get(self.start, ())

    def run(self, context: Context) -> State:
        state = self.begun(context)
        if self.share == 0.0:
            return state
        return learn(context, state, known_recipe(context).replay, share=self.share)

    def begun(self, context: Context) -> State:
        """Return the model that replay starts from."""
        if self.start == "facts_vector":
            return FactsVector(self.coefficient, self.speed).run(context)
        if self.start == "task_vector":
            return TaskVector(self.coefficient).run(context)
        if self.start == "kl_reversion":
            return KLReversion(self.coefficient).run(context)
        if self.start == "injected":
            return context.injected
        more, less = learned_pair(context, "reinforced", context.injected, self.speed)
        return negated(context.injected, self.coefficient, more, less)
