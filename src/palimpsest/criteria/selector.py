"""Which candidate a criterion would pick; none of these says the pick is certified.

Ties go to the candidate listed first, so a pick never depends on the order of execution.
"""

from collections.abc import Mapping, Sequence

from palimpsest.criteria.bars import DamageBar
from palimpsest.criteria.measures import CellMeasures


def smallest_residual(cell: CellMeasures, survivors: Sequence[str]) -> str | None:
    """Return the qualified candidate with the smallest residual; None if none qualified."""
    return min(survivors, key=lambda name: cell[name].need("residual"), default=None)


def smallest_worst_axis(bars: Mapping[str, DamageBar], clearing: Sequence[str]) -> str | None:
    """Return the candidate with the smallest worst axis of those clearing the bar."""
    return min(clearing, key=lambda name: bars[name].worst_axis, default=None)


def smallest_oracle_kl(cell: CellMeasures, candidates: Sequence[str]) -> str | None:
    """Return the trained-probe criterion's choice, which is audited and never certified."""
    return min(candidates, key=lambda name: cell[name].need("oracle_kl"), default=None)
