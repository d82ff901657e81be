"""How much suppression each battery lets through, from the screen alone to the relearn veto."""

from dataclasses import dataclass

from palimpsest.analysis.panel import acceptance, batteries, challenge_panel
from palimpsest.analysis.recalibration import Bounded, bounded
from palimpsest.analysis.results import RunResults

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
    suppressed = dict.fromkeys(row.challenge for row in panel if row.truth == "suppressed")
    methods = results.of_kind("suppresses")
    accepts = {
        (cell.id, name): batteries(
            cell.evaluation, name, cell.survives(name), cell.tolerances, results.rules
        )[0]
        for cell, name in results.candidates()
        if cell.methods[name] in methods
    }
    rows = []
    for battery in BATTERIES:
        cells = [c for c in results.cells if battery == "screen" or c.tolerances is not None]
        accepted = {
            (cell.id, method): [bool(accepts[cell.id, n][battery]) for n in cell.of_method(method)]
            for cell in cells
            for method in methods
        }
        passes = {m: [a for c in cells for a in accepted[c.id, m]] for m in methods}
        events = [any(any(accepted[cell.id, method]) for method in methods) for cell in cells]
        rows.append(
            LetThrough(
                battery,
                {name: acceptance(panel, results, name, battery) for name in suppressed},
                {method: (sum(each), len(each)) for method, each in passes.items()},
                bounded(events, [cell.model for cell in cells], results.rules),
            )
        )
    return tuple(rows)
