"""The screen with fewer probes: every smaller panel from the stored items, by subsetting.

Below the certifiability bound the screen is vacuous: it excludes nobody at any effect size.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.criteria.multiplicity import certifiability, holm
from palimpsest.criteria.ranktest import rank_tests


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


@lru_cache(maxsize=1)
def sub_panels(results: RunResults) -> tuple[SubPanel, ...]:
    """Return one row per number of probes from 1 to the largest that every cell has."""
    cells = [cell for cell in results.cells if cell.candidates]
    most = min((len(cell.evaluation.probe_facts) for cell in cells), default=0)
    return tuple(_sub_panel(cells, probes, results.rules.alpha) for probes in range(1, most + 1))


def _sub_panel(cells: list[CellResult], probes: int, alpha: float) -> SubPanel:
    certifiable = candidates = excluded = at_floor = 0
    smallest = 1.0
    for cell in cells:
        models = [cell.evaluation[name] for name in cell.candidates]
        tests = rank_tests(
            np.stack([model.forget_deltas for model in models]),
            np.stack([model.probe_deltas[:probes] for model in models]),
        )
        bound = certifiability(len(cell.evaluation.forget_facts), probes, len(models), alpha)
        certifiable += bound.certifiable
        candidates += len(models)
        excluded += sum(holm([test.exact_p for test in tests], alpha).rejected)
        at_floor += sum(test.p_value <= bound.min_p for test in tests)
        smallest = min([smallest, *(test.p_value for test in tests)])
    return SubPanel(probes, len(cells), certifiable, candidates, excluded, at_floor, smallest)
