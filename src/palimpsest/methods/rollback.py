"""Checkpoint rollback: the base model again.

    θ = θ_base

Forgets everything, the retain set too; a floor to compare with, not counted among the candidates.
"""

from dataclasses import dataclass
from typing import ClassVar

from palimpsest.methods.context import Context, Knobs, State
from palimpsest.methods.lessons import Cost, CostPlan


@dataclass(frozen=True)
class Rollback(Knobs):
    name: ClassVar[str] = "rollback"
    kind: ClassVar[str] = "restores"
    summary: ClassVar[str] = "returns the base checkpoint"
    needs: ClassVar[tuple[str, ...]] = ("base",)

    @property
    def label(self) -> str:
        return "base"

    def planned_cost(self, plan: CostPlan) -> Cost | None:
        return Cost()

    def run(self, context: Context) -> State:
        return context.base
