"""The recalibrated bar under the audit it grew out of: does it accept what it should?

A bar must survive its own reference. Where a cell has three draws or more, each draw is held out in
turn and judged as if it were a candidate, against tolerances and reference of the other draws only;
a sound bar accepts it. The injected model, which knows the forget set, must be rejected.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.criteria.bars import FAILURES, Tolerances, damage_bar, measure_tolerances
from palimpsest.criteria.rules import Rules
from palimpsest.criteria.screen import screen_alone

__all__ = ["FAILURES", "SelfAudited", "held_out_draws", "injected_models"]


@dataclass(frozen=True, slots=True)
class SelfAudited:
    """A model of known truth under the recalibrated bar."""

    family: str
    model: str
    """The held-out draw, or injected."""
    delta_f: float
    failures: tuple[str, ...]

    @property
    def accepted(self) -> bool:
        return not self.failures


def held_out_draws(results: RunResults) -> tuple[SelfAudited, ...]:
    """Return every reference draw judged by the other draws of its cell."""
    rows = []
    for cell in results.cells:
        draws = cell.evaluation.references
        for name in draws if len(draws) > results.rules.minimum_draws else ():
            others = tuple(other for other in draws if other != name)
            tolerances = measure_tolerances(cell.evaluation, results.rules, others)
            rows.append(_audited(cell, name, tolerances, results.rules, others))
    return tuple(rows)


def injected_models(results: RunResults) -> tuple[SelfAudited, ...]:
    """Return the injected model of every cell that has tolerances."""
    return tuple(
        _audited(cell, "injected", cell.tolerances, results.rules, cell.evaluation.references)
        for cell in results.cells
        if cell.tolerances is not None and cell.evaluation.references
    )


def _audited(
    cell: CellResult, name: str, tolerances: Tolerances, rules: Rules, references: Sequence[str]
) -> SelfAudited:
    rules = replace(rules, relearn_veto=True)
    passes = not screen_alone(cell.evaluation[name], rules).excluded
    bar = damage_bar(cell.evaluation, name, passes, tolerances, rules, references)
    return SelfAudited(cell.family, name, bar.delta_f, bar.failures)
