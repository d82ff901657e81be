"""The sealed challenge panel: does the battery accept and reject models whose truth is known?

Each model of the panel, scored once on the sealed pool, goes through the screen (alone, at alpha),
forget equivalence, the retain axis, the whole forward battery, and then through what a forward-only
protocol cannot run: the round trip and the relearn veto. Relearning is logged on the evaluation
pool; everything else is read on the sealed one. The reference is its own same-draw anchor, so only
the screen, the retain axis and the gate say something about it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from palimpsest.analysis.recalibration import Bounded, bounded
from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.criteria.bars import DamageBar, Tolerances, damage_bar
from palimpsest.criteria.measures import CellMeasures
from palimpsest.criteria.rules import Rules
from palimpsest.criteria.screen import screen_alone

AXES = ("screen", "equivalence", "retain", "forward", "round_trip", "relearning")
"""``round_trip`` is the forward battery and the residual; ``relearning`` adds the veto."""


@dataclass(frozen=True, slots=True)
class Challenged:
    """One panel model in one cell."""

    cell: str
    family: str
    model: str
    """The architecture."""
    challenge: str
    truth: str
    """suppressed, partial or restored, of a panel model; else its role."""
    p_value: float
    median_forget_delta: float
    verdicts: Mapping[str, bool | None]
    """Whether each of ``AXES`` accepts it; None where there is nothing to judge by."""
    forget_distance: float | None
    fall: float | None
    """First-chunk fall of held-out forget NLL when re-acquired."""


@lru_cache(maxsize=1)
def challenge_panel(results: RunResults) -> tuple[Challenged, ...]:
    """Return every panel model of every cell, remembered for the run read last."""
    return tuple(
        _challenged(results, cell, name)
        for cell in results.cells
        if cell.panel is not None
        for name in cell.panel
    )


def challenges(rows: Sequence[Challenged]) -> tuple[str, ...]:
    """Return the panel's models, in order."""
    return tuple(dict.fromkeys(row.challenge for row in rows))


def acceptance(
    rows: Sequence[Challenged],
    results: RunResults,
    challenge: str,
    axis: str,
    family: str | None = None,
) -> Bounded:
    """Return how many cells (of a family) accept a challenge on an axis, with upper bounds."""
    mine = [
        row
        for row in rows
        if row.challenge == challenge
        and (family is None or row.family == family)
        and row.verdicts[axis] is not None
    ]
    events = [bool(row.verdicts[axis]) for row in mine]
    return bounded(events, [row.model for row in mine], results.rules)


def batteries(
    measures: CellMeasures, name: str, passes: bool, tolerances: Tolerances | None, rules: Rules
) -> tuple[dict[str, bool | None], DamageBar | None]:
    """Return whether each battery accepts a model, None where it lacks what the battery needs; and
    its forward bar."""
    verdicts: dict[str, bool | None] = dict.fromkeys(AXES) | {"screen": passes}
    if tolerances is None or not measures.references:
        return verdicts, None
    bare, vetoing = (replace(rules, relearn_veto=veto) for veto in (False, True))
    forward = damage_bar(measures, name, passes, tolerances, bare, forward_only=True)
    verdicts["equivalence"] = forward.forget_distance <= forward.delta_f
    verdicts["retain"] = forward.retain_damage <= forward.delta_f
    verdicts["forward"] = forward.clears
    if measures[name].residual is not None:
        verdicts["round_trip"] = damage_bar(measures, name, passes, tolerances, bare).clears
        if measures[name].curve is not None:
            vetoed = damage_bar(measures, name, passes, tolerances, vetoing)
            verdicts["relearning"] = vetoed.clears
    return verdicts, forward


def _challenged(results: RunResults, cell: CellResult, name: str) -> Challenged:
    assert cell.panel is not None
    model, role = cell.panel[name], cell.roles[name]
    screened = screen_alone(model, results.rules)
    verdicts, forward = batteries(
        cell.panel, name, not screened.excluded, cell.tolerances, results.rules
    )
    return Challenged(
        cell=cell.id,
        family=cell.family,
        model=cell.model,
        challenge=name,
        truth=str(role.get("truth") or role["role"]),
        p_value=screened.test.p_value,
        median_forget_delta=model.median_forget_delta,
        forget_distance=None if forward is None else forward.forget_distance,
        fall=None if model.curve is None else model.curve.first_fall,
        verdicts=verdicts,
    )
