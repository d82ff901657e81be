"""Thresholds of the paper's own bars, which are computed and tabulated and never certify."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

Fraction = Annotated[float, Gt(0), Lt(1)]


@dataclass(frozen=True)
class PaperRules:
    """The absolute bar, the trained-probe criterion, and the recalibrated bar."""

    retain_limit: Annotated[float, Gt(0)] = 0.5
    """Largest retain NLL that the absolute bar accepts."""
    residual_limit: Annotated[float, Gt(0)] = 0.5
    """Largest re-acquisition residual that the absolute bar accepts."""
    adequate_fraction: Fraction = 0.5
    """Rated adequate when oracle-KL is at most this fraction of the injected model's own."""
    matched_within: Annotated[float, Gt(0)] = 1.0
    """Two candidates of a cell forget to the same extent when their held-out forget NLLs differ by
    at most this many nats."""
    tolerance_percentile: Annotated[float, Gt(0), Le(100)] = 90.0
    """delta_f is this percentile of the absolute difference in held-out delta, over forget facts
    and pairs of reference draws."""
    minimum_draws: Annotated[int, Ge(2)] = 2
    """Fewest independent reference draws that give tolerances."""
    degeneracy_deltas: Annotated[float, Ge(0)] = 1.0
    """Multiples of delta_f, added to epsilon_f(retain), by which a retain NLL may lie below the
    injected model's before the candidate counts as collapsed onto the retain set."""
    relearn_veto: bool = True
    """Whether the recalibrated bar includes the relearn veto; off is the paper's veto-less bar.

    A candidate is vetoed when its first-chunk fall of held-out forget NLL exceeds the one-sided
    prediction bound: mean fall of the cell's draws + max(relearn_margin, t * s * sqrt(1 + 1/n)),
    with s the draws' standard deviation in the family's replicated cell and t the 1 - relearn_alpha
    quantile of Student's t."""
    relearn_alpha: Fraction = 0.05
    """Chance that a further reference draw would be vetoed."""
    relearn_margin: Annotated[float, Ge(0)] = 0.1
    """Smallest excess fall that can veto, so that noise does not where draws hardly differ."""
    equivalence_alpha: Fraction = 0.05
    """Level of each of the two one-sided tests of equivalence to never-learned."""
