"""The recalibrated bar under the audit it grew out of: does it accept what it should?

A bar must survive its own reference. Where a cell has three draws or more, each draw is held out in
turn and judged as if it were a candidate, against tolerances and reference of the other draws only;
a sound bar accepts it. The injected model, which knows the forget set, must be rejected.
"""

from dataclasses import dataclass, replace

from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.criteria.bars import DamageBar, damage_bar, measure_tolerances
from palimpsest.criteria.screen import screen_alone

FAILURES = (
    "screen",
    "forget equivalence",
    "retain damage",
    "round-trip damage",
    "degeneracy gate",
    "relearn veto",
)
"""What a model can fail, in the bar's order."""


@dataclass(frozen=True, slots=True)
class SelfAudited:
    """A model of known truth under the recalibrated bar."""

    cell: str
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
    rules = replace(results.rules, relearn_veto=True)
    rows = []
    for cell in results.cells:
        draws = cell.evaluation.references
        if len(draws) <= rules.minimum_draws:
            continue
        for name in draws:
            others = tuple(other for other in draws if other != name)
            tolerances = measure_tolerances(cell.evaluation, rules, others)
            passes = not screen_alone(cell.evaluation[name], rules).excluded
            bar = damage_bar(cell.evaluation, name, passes, tolerances, rules, others)
            rows.append(_audited(cell, name, bar))
    return tuple(rows)


def injected_models(results: RunResults) -> tuple[SelfAudited, ...]:
    """Return the injected model of every cell that has tolerances."""
    rules = replace(results.rules, relearn_veto=True)
    rows = []
    for cell in results.cells:
        if cell.tolerances is None or not cell.evaluation.references:
            continue
        passes = not screen_alone(cell.evaluation.injected, rules).excluded
        bar = damage_bar(cell.evaluation, "injected", passes, cell.tolerances, rules)
        rows.append(_audited(cell, "injected", bar))
    return tuple(rows)


def _audited(cell: CellResult, name: str, bar: DamageBar) -> SelfAudited:
    return SelfAudited(cell.id, cell.family, name, bar.delta_f, bar.failures)
