"""Checkpoint rollback: the base model again.

    θ = θ_base

Forgets everything, the retain set too; a floor to compare with, not counted among the candidates.
"""

from dataclasses import dataclass

from palimpsest.methods.context import Context, Knobs, State


@dataclass(frozen=True)
class Rollback(Knobs):
    name = "rollback"
    kind = "restores"
    summary = "returns the base checkpoint"
    needs = ("base",)

    @property
    def label(self) -> str:
        return "base"

    def run(self, context: Context) -> State:
        return context.base
