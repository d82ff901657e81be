"""The bars a candidate must clear: absolute, and relative to the damage retraining itself does.

Absolute: the screen, retain NLL and residual under fixed limits. Recalibrated, with delta_f and
epsilon_f from independent draws of the reference:

    (i)   the screen does not exclude the candidate;
    (ii)  |median forget delta - median forget delta of the same-draw reference| <= delta_f;
    (iii) retain NLL - injected retain NLL <= delta_f;
    (iv)  residual - floor <= delta_f, the floor being the injected model's own residual;
    gate  it retains no better than the injected model by more than epsilon_f(retain) + delta_f;
    veto  re-acquired, its held-out forget NLL falls no faster than the reference draws' does.

A model of another draw than the injected model, such as a replicated reference, is compared across
draws in (iii) and (iv): these anchors are then shifted against it by epsilon_f. Candidates are made
from the injected model and share its draw, so nothing is shifted for them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from palimpsest.criteria.intervals import replication_gap
from palimpsest.criteria.measures import CellMeasures, ModelMeasures
from palimpsest.criteria.rules import Rules
from palimpsest.errors import ScoreError

FAILURES = (
    *("screen", "forget equivalence", "retain damage", "round-trip damage"),
    *("degeneracy gate", "relearn veto"),
)
"""What a model can fail, in the bar's order."""


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
    draws: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.delta_f) and self.delta_f > 0):
            raise ScoreError(
                f"delta_f is {self.delta_f}; expected a positive number of nats. Draws that agree "
                "to the last bit are not independent retrainings"
            )
        for name in ("epsilon_retain", "epsilon_residual", "fall_deviation"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ScoreError(f"{name} is {value}; expected a finite number of at least 0")


def measure_tolerances(
    cell: CellMeasures, rules: Rules, references: Sequence[str] | None = None
) -> Tolerances:
    """Return the tolerances from the reference draws of one replicated cell."""
    names = cell.references if references is None else tuple(references)
    if len(names) < rules.minimum_draws:
        raise ScoreError(
            f"{len(names)} reference draws ({', '.join(names) or 'none'}); tolerances need at "
            f"least {rules.minimum_draws} independent retrainings of the reference"
        )
    draws = [cell[name] for name in names]
    deltas = np.stack([draw.forget_deltas for draw in draws])
    falls = [draw.curve.first_fall for draw in draws if draw.curve is not None]
    if falls and len(falls) < len(draws):
        bare = next(draw.name for draw in draws if draw.curve is None)
        raise ScoreError(f"model {bare} has no re-acquisition curve, while other draws have one")
    return Tolerances(
        delta_f=replication_gap(deltas, rules.tolerance_percentile),
        epsilon_retain=_spread([draw.need("retain_nll") for draw in draws]),
        epsilon_residual=_spread([draw.need("residual") for draw in draws]),
        fall_deviation=float(np.std(falls, ddof=1)) if falls else None,
        draws=len(draws),
    )


@dataclass(frozen=True, slots=True)
class AbsoluteBar:
    """A model against fixed limits."""

    screen: bool
    retain: bool
    residual: bool

    @property
    def clears(self) -> bool:
        return self.screen and self.retain and self.residual


def absolute_bar(model: ModelMeasures, passes_screen: bool, rules: Rules) -> AbsoluteBar:
    """Return whether the model passes the screen, retain NLL and residual limits.

    A model the screen excluded may have been spared the round trip: it does not clear the bar, and
    a residual nobody measured is not counted among its failures.
    """
    return AbsoluteBar(
        screen=passes_screen,
        retain=model.need("retain_nll") <= rules.retain_limit,
        residual=_spared(model, passes_screen) or model.need("residual") <= rules.residual_limit,
    )


def rated_adequate(model: ModelMeasures, injected: ModelMeasures, rules: Rules) -> bool:
    """Return whether oracle-KL is at most a fraction of the injected model's own: the trained-probe
    criterion."""
    return model.need("oracle_kl") <= rules.adequate_fraction * injected.need("oracle_kl")


def relearn_veto(
    model: ModelMeasures,
    references: Sequence[ModelMeasures],
    tolerances: Tolerances,
    rules: Rules,
) -> bool:
    """Return whether the model's first-chunk fall of held-out forget NLL exceeds the reference
    draws' by more than a further draw would; null and tolerance are stated with the rules."""
    if not references:
        raise ScoreError("the relearn veto needs at least one reference draw with a curve")
    if tolerances.fall_deviation is None:
        raise ScoreError(
            "the tolerances were measured on draws without re-acquisition curves, which the "
            "relearn veto needs; re-acquire the draws, or set rules.relearn_veto to false"
        )
    fall = model.need_curve().first_fall
    reference_fall = float(np.mean([draw.need_curve().first_fall for draw in references]))
    quantile = float(stdtrit(tolerances.draws - 1, 1 - rules.relearn_alpha))
    noise = quantile * tolerances.fall_deviation * math.sqrt(1 + 1 / len(references))
    margin = max(rules.relearn_margin, noise)
    return fall > reference_fall + margin


@dataclass(frozen=True, slots=True)
class DamageBar:
    """A model against the reference's operating point, at the tolerance of retraining."""

    screen: bool
    forget_distance: float
    """(ii): distance of the median forget delta from the same-draw reference's."""
    retain_damage: float
    """(iii), shifted by epsilon_f(retain) for a model of another draw."""
    residual_damage: float | None
    """(iv), shifted by epsilon_f(residual) for a model of another draw; None in a forward-only
    battery."""
    degenerate: bool
    vetoed: bool | None
    """None when the rules or a forward-only battery leave it out."""
    delta_f: float

    @property
    def worst_axis(self) -> float:
        """The largest of the axes in units of delta_f; at most 1 on a certified candidate."""
        axes = [self.forget_distance, self.retain_damage]
        if self.residual_damage is not None:
            axes.append(self.residual_damage)
        return max(axes) / self.delta_f

    @property
    def failures(self) -> tuple[str, ...]:
        """Names of what the model fails, in the order of the bar; empty when it clears."""
        failed = (
            not self.screen,
            self.forget_distance > self.delta_f,
            self.retain_damage > self.delta_f,
            (self.residual_damage or 0.0) > self.delta_f,
            self.degenerate,
            bool(self.vetoed),
        )
        return tuple(name for name, fails in zip(FAILURES, failed) if fails)

    @property
    def clears(self) -> bool:
        return not self.failures


def damage_bar(
    cell: CellMeasures,
    name: str,
    passes_screen: bool,
    tolerances: Tolerances,
    rules: Rules,
    references: Sequence[str] | None = None,
    forward_only: bool = False,
) -> DamageBar:
    """Return the recalibrated bar for one model against the cell's references (draw 0 same-draw).

    ``forward_only`` leaves out what needs re-acquisition, (iv) and the veto: the battery that
    adversarial panel models are shown to defeat. So is a model that the screen excluded and that
    was spared the round trip: it fails by the screen.
    """
    names = cell.references if references is None else tuple(references)
    if not names:
        raise ScoreError("the recalibrated bar needs a reference; this cell has none")
    model, injected = cell[name], cell.injected
    draws = [cell[reference] for reference in names]
    retain_nll, injected_retain = model.need("retain_nll"), injected.need("retain_nll")
    across = bool(cell.roles.get(name, {}).get("draw"))
    residual_damage, vetoed = None, None
    if not (forward_only or _spared(model, passes_screen)):
        residual_damage = model.need("residual") - cell.floor
        residual_damage += tolerances.epsilon_residual if across else 0.0
        if rules.relearn_veto:
            vetoed = relearn_veto(model, draws, tolerances, rules)
    gate = tolerances.epsilon_retain + rules.degeneracy_deltas * tolerances.delta_f
    return DamageBar(
        screen=passes_screen,
        forget_distance=abs(model.median_forget_delta - draws[0].median_forget_delta),
        retain_damage=retain_nll - injected_retain + (tolerances.epsilon_retain if across else 0.0),
        residual_damage=residual_damage,
        degenerate=injected_retain - retain_nll > gate,
        vetoed=vetoed,
        delta_f=tolerances.delta_f,
    )


def _spared(model: ModelMeasures, passes_screen: bool) -> bool:
    return not passes_screen and model.residual is None


def _spread(values: Sequence[float]) -> float:
    return max(values) - min(values)
