"""The screen with fewer probes: every smaller panel from the stored items, by subsetting.

Below the certifiability bound the screen is vacuous: it excludes nobody at any effect size.
"""

from dataclasses import dataclass

from palimpsest.criteria.screen import screen_candidates
from palimpsest.study.results import RunResults


@dataclass(frozen=True, slots=True)
class SubPanel:
    """The screen over all cells with the first ``probes`` probes of each."""

    probes: int
    cells: int
    certifiable: int
    """Cells in which the screen could exclude anybody."""
    candidates: int
    excluded: int
    at_floor: int
    """Candidates at the smallest p-value their cell's lattice allows."""
    smallest_p: float

    @property
    def vacuous(self) -> bool:
        return self.certifiable == 0


def sub_panels(results: RunResults) -> tuple[SubPanel, ...]:
    """One row per number of probes from 1 to the largest that every cell has."""
    cells = [cell for cell in results.cells if cell.candidates]
    if not cells:
        return ()
    most = min(len(cell.evaluation.probe_facts) for cell in cells)
    return tuple(_sub_panel(results, probes) for probes in range(1, most + 1))


def _sub_panel(results: RunResults, probes: int) -> SubPanel:
    certifiable = candidates = excluded = at_floor = cells = 0
    smallest = 1.0
    for cell in results.cells:
        if not cell.candidates:
            continue
        screen = screen_candidates(
            cell.evaluation.with_probes(probes), cell.candidates, results.rules
        )
        cells += 1
        certifiable += screen.bound.certifiable
        candidates += len(screen.screened)
        excluded += sum(one.excluded for one in screen.screened)
        at_floor += sum(one.test.p_value <= screen.bound.min_p for one in screen.screened)
        smallest = min([smallest, *(one.test.p_value for one in screen.screened)])
    return SubPanel(probes, cells, certifiable, candidates, excluded, at_floor, smallest)
