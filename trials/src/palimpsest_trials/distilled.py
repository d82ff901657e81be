"""A retraining in fewer steps, with what it learns from general text distilled.

    θ     = base after N / speed steps at speed · rate
    loss  = (1 / items) Σ_retain NLL + (general / items) · mean over k texts of KL(injected ‖ θ)

It is the run without forget facts of a held vector (``methods/held_vector.py``), except that
general text is held to the injected model in the place of base. Where the recipe's general text is
itself learned, as on real models, holding it to base leaves that out. The injected model has
learned it, and its answers say more than the text alone, so fewer texts do. Forget facts are never
seen: what the teacher knows of them does not show on general text. Distillation against suppression
is of Lee et al. 2025, arXiv:2506.06278.
"""

from dataclasses import dataclass, replace
from functools import partial

from palimpsest.methods.context import Context, State
from palimpsest.methods.held_vector import HeldVector


@dataclass(frozen=True)
class Distilled(HeldVector):
    name = "distilled"
    summary = "a short retraining from base, with general text distilled from the injected model"
    citation = "this project; distillation after Lee et al. 2025, arXiv:2506.06278"

    @property
    def label(self) -> str:
        return f"k{self.texts}-speed{self.speed}"

    def run(self, context: Context) -> State:
        noise = context.shared.once(f"held/noise/{self.sample}", partial(self._noise, context))
        held = self._held_texts(replace(context, base=context.injected))
        return self._learn(context, held, noise, ("retain",))
