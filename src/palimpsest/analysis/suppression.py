"""How much suppression each battery lets through, from the screen alone to the relearn veto."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from palimpsest.analysis.panel import Challenged, acceptance, challenge_panel
from palimpsest.analysis.recalibration import Bounded, bounded
from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.criteria.bars import damage_bar

BATTERIES = ("screen", "forward", "round_trip", "relearning")
"""Each adds to the one before: the screen alone, the other forward axes, the residual, the veto."""


@dataclass(frozen=True, slots=True)
class LetThrough:
    """What one battery accepts of models that only suppress."""

    battery: str
    panel: dict[str, Bounded]
    """Cells accepting each panel model that is suppressed: knowledge behind what it shows."""
    candidates: dict[str, tuple[int, int]]
    """Accepted of all candidates, by suppression method."""
    cells: Bounded
    """Cells in which any candidate of a suppression method is accepted."""


def let_through(results: RunResults) -> tuple[LetThrough, ...]:
    """Return one row per battery."""
    panel = challenge_panel(results)
    return tuple(_row(results, battery, panel) for battery in BATTERIES)


def _row(results: RunResults, battery: str, panel: tuple[Challenged, ...]) -> LetThrough:
    present = dict.fromkeys(row.challenge for row in panel if row.truth == "suppressed")
    accepts = _battery(results, battery)
    judged = [cell for cell in results.cells if battery == "screen" or cell.tolerances is not None]
    events = []
    counts = {method: [0, 0] for method in results.of_kind("suppresses")}
    for cell in judged:
        accepted = {
            name: accepts(cell, name) for method in counts for name in cell.of_method(method)
        }
        for name, passes in accepted.items():
            counts[cell.methods[name]][0] += passes
            counts[cell.methods[name]][1] += 1
        events.append(any(accepted.values()))
    return LetThrough(
        battery,
        {name: acceptance(panel, results, name, battery) for name in present},
        {method: (passed, total) for method, (passed, total) in counts.items()},
        bounded(events, [cell.model for cell in judged], results.rules),
    )


def _battery(results: RunResults, battery: str) -> Callable[[CellResult, str], bool]:
    rules = replace(results.rules, relearn_veto=battery == "relearning")

    def accepts(cell: CellResult, name: str) -> bool:
        survives = cell.survives(name)
        if battery == "screen" or cell.tolerances is None:
            return survives
        forward = battery == "forward"
        return damage_bar(
            cell.evaluation, name, survives, cell.tolerances, rules, forward_only=forward
        ).clears

    return accepts
