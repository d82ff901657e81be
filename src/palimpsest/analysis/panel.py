"""The sealed challenge panel: does the battery accept and reject models whose truth is known?

Each model of the panel, scored once on the sealed pool, goes through the screen (alone, at alpha),
forget equivalence, the retain axis, the whole forward battery, and then through what a forward-only
protocol cannot run: the round trip and the relearn veto. Relearning is logged on the evaluation
pool; everything else is read on the sealed one. The reference is its own same-draw anchor, so only
the screen, the retain axis and the gate say something about it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from palimpsest.analysis.recalibration import Bounded, bounded
from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.criteria.bars import damage_bar
from palimpsest.criteria.screen import screen_alone

AXES = ("screen", "equivalence", "retain", "forward", "round_trip", "relearning")
"""``round_trip`` is the forward battery and the residual; ``relearning`` adds the veto."""


@dataclass(frozen=True, slots=True)
class Challenged:
    """One panel model in one cell; an axis that needs tolerances is None where there are none."""

    cell: str
    family: str
    model: str
    """The architecture."""
    challenge: str
    truth: str
    """suppressed, partial or restored, of a panel model; else its role."""
    p_value: float
    median_forget_delta: float
    screen: bool
    equivalence: bool | None
    retain: bool | None
    forward: bool | None
    round_trip: bool | None
    relearning: bool | None
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
        and getattr(row, axis) is not None
    ]
    events = [bool(getattr(row, axis)) for row in mine]
    return bounded(events, [row.model for row in mine], results.rules)


def _challenged(results: RunResults, cell: CellResult, name: str) -> Challenged:
    panel, tolerances = cell.panel, cell.tolerances
    assert panel is not None
    model = panel[name]
    screened = screen_alone(model, results.rules)
    passes = not screened.excluded
    forward = round_trip = relearning = None
    if tolerances is not None and panel.references:
        bare = replace(results.rules, relearn_veto=False)
        forward = damage_bar(panel, name, passes, tolerances, bare, forward_only=True)
        if model.residual is not None:
            round_trip = damage_bar(panel, name, passes, tolerances, bare)
        if model.residual is not None and model.curve is not None:
            vetoing = replace(results.rules, relearn_veto=True)
            relearning = damage_bar(panel, name, passes, tolerances, vetoing)
    return Challenged(
        cell=cell.id,
        family=cell.family,
        model=cell.model,
        challenge=name,
        truth=str(cell.roles[name].get("truth") or cell.roles[name]["role"]),
        p_value=screened.test.p_value,
        median_forget_delta=model.median_forget_delta,
        screen=passes,
        equivalence=None if forward is None else forward.forget_distance <= forward.delta_f,
        retain=None if forward is None else forward.retain_damage <= forward.delta_f,
        forward=None if forward is None else forward.clears,
        round_trip=None if round_trip is None else round_trip.clears,
        relearning=None if relearning is None else relearning.clears,
        forget_distance=None if forward is None else forward.forget_distance,
        fall=None if model.curve is None else model.curve.first_fall,
    )
