"""The bars a candidate must clear: absolute, and relative to the damage retraining itself does.

Absolute (section 5): the screen, retain NLL and residual under fixed limits. Recalibrated (section
7), with delta_f and epsilon_f from three independent draws of the reference (section 5):

    (i)   the base-anchored screen does not exclude the model;
    (ii)  |median forget delta - median forget delta of the same-draw reference| <= delta_f;
    (iii) retain NLL - (injected retain NLL - epsilon_f(retain)) <= delta_f;
    (iv)  residual - (floor - epsilon_f(residual)) <= delta_f, with the injected model's residual
          as the floor;
    gate  it retains no better than the injected model by more than epsilon_f(retain);
    veto  re-acquired, its held-out forget NLL falls no faster than the reference draws' does.

The paper moves the anchors of (iii) and (iv) against the judged model by the draw-to-draw margins
and names no exception: so they move for candidates, known-label models and references alike, and
not in (ii), where the reference has the cell's own draw. Its gate excludes what retains better than
the injected model by more than noise, of which the margin of retain NLL is the measure. The veto is
ours: the paper's candidates had no relearning curves, and its certificate has none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from palimpsest.errors import ScoreError
from palimpsest.stats.measures import CellMeasures, ModelMeasures
from palimpsest.stats.models import Role

# The paper's thresholds: fixed, reported, and never part of a certificate.
RETAIN_LIMIT = 0.5
"""Largest retain NLL that the absolute bar accepts."""
RESIDUAL_LIMIT = 0.5
"""Largest re-acquisition residual that the absolute bar accepts."""
ADEQUATE = 0.5
"""Largest oracle-KL of a candidate rated adequate, as a fraction of the injected model's."""
PERCENTILE = 90.0
"""delta_f is this percentile of the absolute difference in held-out delta, over forget facts and
pairs of reference draws (the paper's P90)."""
MINIMUM_DRAWS = 2
"""Fewest independent reference draws from which tolerances are computed."""
VETO_ALPHA = 0.05
"""Probability that the relearn veto rejects one more reference draw: it rejects a candidate whose
held-out forget NLL falls in the first chunk by more than the mean fall of the cell's draws +
max(margin, t * s * sqrt(1 + 1/n)), with s the draws' standard deviation in the family's replicated
cell and t the 1 - VETO_ALPHA quantile of Student's t."""
VETO_MARGIN = 0.1
"""Smallest excess fall that the veto acts on: noise is ignored where draws hardly differ."""


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Replication noise of the reference in one family, in nats."""

    delta_f: float
    """Percentile over facts and pairs of draws of the held-out delta gap."""
    epsilon_retain: float
    """Largest minus smallest retain NLL over draws."""
    epsilon_residual: float
    """Largest minus smallest residual over draws."""
    fall_deviation: float | None
    """Standard deviation over draws of the first-chunk fall; None when draws carry no curves."""
    freedom: int
    """Degrees of freedom of that deviation: draws minus cells."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.delta_f) and self.delta_f > 0):
            raise ScoreError(
                f"delta_f is {self.delta_f}; expected a positive number of nats. Draws that agree "
                "to the last bit are not independent retrainings"
            )


def paper_references(cell: CellMeasures) -> tuple[str, ...]:
    """Return the reference of the injected model's own draw, then the independent ones."""
    own = [name for name in cell.of_role(Role.REFERENCE) if cell.records[name].same_draw]
    return (*own, *cell.references)


def draw_gaps(deltas: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the absolute gaps (pairs of draws, facts) of (draws, facts) deltas."""
    return np.stack([np.abs(first - second) for first, second in combinations(deltas, 2)])


def measure_tolerances(cells: Sequence[Sequence[ModelMeasures]]) -> Tolerances:
    """Return the tolerances of a family from the reference draws of its replicated cells.

    delta_f is the percentile of the gaps of all cells together, the spreads are averaged over
    cells, and the first-chunk falls give one pooled standard deviation.
    """
    if not cells or min(map(len, cells)) < MINIMUM_DRAWS:
        raise ScoreError(
            f"{[len(draws) for draws in cells]} reference draws; tolerances need at least "
            f"{MINIMUM_DRAWS} independent retrainings of the reference in each cell"
        )
    gaps = [draw_gaps(np.stack([d.forget_deltas for d in draws])).ravel() for draws in cells]
    freedom = sum(len(draws) - 1 for draws in cells)
    curves = all(draw.curve is not None for draws in cells for draw in draws)
    falls = [[d.need_curve().first_fall for d in draws] for draws in cells] if curves else []
    squares = sum(float(np.square(np.subtract(some, np.mean(some))).sum()) for some in falls)
    retain, residual = (
        float(np.mean([np.ptp([draw.need(key) for draw in draws]) for draws in cells]))
        for key in ("retain_nll", "residual")
    )
    return Tolerances(
        delta_f=float(np.percentile(np.concatenate(gaps), PERCENTILE)),
        epsilon_retain=retain,
        epsilon_residual=residual,
        fall_deviation=math.sqrt(squares / freedom) if curves else None,
        freedom=freedom,
    )


def absolute_bar(model: ModelMeasures, passes_screen: bool) -> dict[str, bool]:
    """Return whether the model passes the screen, the retain limit, the residual limit, and all
    three."""
    passed = {
        "screen": passes_screen,
        "retain": model.need("retain_nll") <= RETAIN_LIMIT,
        "residual": model.need("residual") <= RESIDUAL_LIMIT,
    }
    return passed | {"all three": all(passed.values())}


def relearn_veto(
    model: ModelMeasures,
    references: Sequence[ModelMeasures],
    tolerances: Tolerances,
) -> bool:
    """Return whether the model's first-chunk fall of held-out forget NLL exceeds the reference
    draws' by more than a further draw would, as stated with ``VETO_ALPHA``."""
    if tolerances.fall_deviation is None:
        raise ScoreError(
            "the tolerances were measured on draws without re-acquisition curves, which the "
            "relearn veto needs; re-acquire the draws"
        )
    fall = model.need_curve().first_fall
    reference_fall = float(np.mean([draw.need_curve().first_fall for draw in references]))
    quantile = float(stdtrit(tolerances.freedom, 1 - VETO_ALPHA))
    noise = quantile * tolerances.fall_deviation * math.sqrt(1 + 1 / len(references))
    return fall > reference_fall + max(VETO_MARGIN, noise)


@dataclass(frozen=True, slots=True)
class DamageBar:
    """A model against the reference's operating point, at the tolerance of retraining."""

    screen: bool
    forget_distance: float
    """(ii): distance of the median forget delta from the same-draw reference's."""
    retain_damage: float
    """(iii), with epsilon_f(retain)."""
    residual_damage: float | None
    """(iv), with epsilon_f(residual); None in a forward-only battery."""
    degenerate: bool
    vetoed: bool | None
    """None where it is left out."""
    delta_f: float

    @property
    def worst_axis(self) -> float:
        """The largest of the axes in units of delta_f; at most 1 on a candidate that clears."""
        axes = (self.forget_distance, self.retain_damage, self.residual_damage)
        return max(value for value in axes if value is not None) / self.delta_f

    @property
    def failures(self) -> tuple[str, ...]:
        """Names of what the model fails, in the order of the bar; empty when it clears."""
        failed = {
            "screen": not self.screen,
            "forget equivalence": self.forget_distance > self.delta_f,
            "retain damage": self.retain_damage > self.delta_f,
            "re-acquisition damage": (self.residual_damage or 0.0) > self.delta_f,
            "degeneracy gate": self.degenerate,
            "relearn veto": bool(self.vetoed),
        }
        return tuple(name for name, fails in failed.items() if fails)

    @property
    def clears(self) -> bool:
        return not self.failures


def damage_bar(
    cell: CellMeasures,
    name: str,
    passes_screen: bool,
    tolerances: Tolerances,
    *,
    veto: bool = True,
    forward_only: bool = False,
) -> DamageBar:
    """Return the recalibrated bar for one model against the cell's references.

    ``forward_only`` leaves out what needs re-acquisition, (iv) and the veto: the battery that
    known-label models are shown to defeat.
    """
    references = paper_references(cell)
    if not references:
        raise ScoreError("the recalibrated bar needs a reference; this cell has none")
    model = cell[name]
    retain = model.need("retain_nll") - cell.injected.need("retain_nll")
    residual_damage, vetoed = None, None
    if not forward_only:
        residual_damage = model.need("residual") - (cell.floor - tolerances.epsilon_residual)
        if veto:
            vetoed = relearn_veto(model, [cell[draw] for draw in references], tolerances)
    anchor = cell[references[0]].median_forget_delta
    return DamageBar(
        screen=passes_screen,
        forget_distance=abs(model.median_forget_delta - anchor),
        retain_damage=retain + tolerances.epsilon_retain,
        residual_damage=residual_damage,
        degenerate=-retain > tolerances.epsilon_retain,
        vetoed=vetoed,
        delta_f=tolerances.delta_f,
    )
