"""The frozen rules: every threshold and rule a verdict depends on, with the design's values.

A run hashes these fields before its first model is trained and refuses to continue under others,
so nothing in ``criteria/`` or ``verdict.py`` may carry a threshold of its own. All fields are
plain JSON values; distances are in nats unless said otherwise.
"""

import math
from dataclasses import dataclass, field, replace

from palimpsest.criteria import axes as table
from palimpsest.errors import PlanError

POOLS = ("trained", "cloze", "evaluation", "calibration", "audit")
FRACTIONS = (
    *("alpha", "dose_fraction", "adequate_fraction", "relearn_alpha", "equivalence_alpha"),
    *("headroom_fraction", "confidence"),
)
POSITIVE = ("power_shift", "recipe_limit", "retain_limit", "residual_limit", "matched_within")
LEAST = {
    "minimum_references": 3,
    "minimum_draws": 2,
    "headroom_minimum_facts": 2,
    "bootstrap_resamples": 100,
    "bootstrap_seed": 0,
}


@dataclass(frozen=True)
class Rules:
    """Thresholds and rules, fixed before results exist."""

    # Screen. Null: the m forget deltas and the n probe deltas of a model are exchangeable.
    # Alternative: forget deltas lie below, i.e. the model still knows part of the forget set.
    alpha: float = 0.05
    """Level of the screen (family-wise, Holm-corrected over a cell's candidates; uncorrected for a
    model tested alone) and of the comparison with retrainings (per candidate)."""
    screen_pool: str = "evaluation"
    """Pool of held-out phrasings on which candidates are judged."""
    panel_pool: str = "audit"
    """Sealed pool on which the known-label models are scored, once."""
    power_shift: float = 2.0
    """Shift that the power is computed for: forget deltas this many standard deviations lower."""

    # Comparison with retrainings. Null: the candidate is one more draw of the reference,
    # exchangeable with the K retrainings. Rejected at ``alpha``, per candidate.
    axes: tuple[str, ...] = field(default_factory=lambda: tuple(a.name for a in table.AXES))
    """Names of the axes that are compared."""
    minimum_references: int = 3
    """Fewest retrainings with which anything is certified; fewer is ``no_reference``."""
    margin: float = 0.0
    """Largest bound of a gap, as a share of what was at stake, that is certified as equivalent; 0
    certifies indistinguishability instead."""

    # Controls, without which passing the comparison shows nothing.
    control_shares: tuple[float, ...] = (0.5, 0.25, 0.1, 0.05)
    """Shares of the injected weights in the interpolated controls."""
    detection_limit: float = 0.25
    """Share of the injected weights that an audit must notice; otherwise nothing is certified."""
    dose_fraction: float = 0.5
    """Part of the way from their own held-out forget level to the injected model's that
    re-acquisition must bring the references."""
    recipe_limit: float = 10.0
    """Distance in retraining standard deviations from which the verdict notes that the injected
    model and the references seem to have different recipes."""

    # The paper's edition: bars that are computed and tabulated, and never certify.
    # Absolute bar: screen, retain NLL and residual each under a fixed limit.
    retain_limit: float = 0.5
    """Largest retain NLL the absolute bar lets pass."""
    residual_limit: float = 0.5
    """Largest round-trip residual the absolute bar lets pass."""

    # Trained-probe criterion, which is audited and never used to certify.
    adequate_fraction: float = 0.5
    """Rated adequate when oracle-KL is at most this fraction of the injected model's own."""
    matched_within: float = 1.0
    """Matched forgetting: two candidates of a cell whose held-out forget NLLs differ by at most
    this many nats count as forgetting to the same extent."""

    # Replication tolerances.
    tolerance_percentile: float = 90.0
    """delta_f is this percentile of the absolute difference in held-out delta, over forget facts
    and pairs of reference draws."""
    minimum_draws: int = 2
    """Fewest independent reference draws that give tolerances."""

    # Degeneracy gate: a candidate that retains better than the injected model by more than
    # epsilon_f(retain) + degeneracy_deltas * delta_f has collapsed onto the retain set.
    degeneracy_deltas: float = 1.0
    """Multiples of delta_f, added to epsilon_f(retain), by which a retain NLL may be below the
    injected model's."""

    # Relearn veto. Null: the candidate's first-chunk fall of held-out forget NLL is one more
    # independent draw from the (normal) distribution of the reference draws' falls. It is vetoed
    # when its fall exceeds the one-sided prediction bound
    #     mean fall of the cell's draws + max(relearn_margin, t * s * sqrt(1 + 1/draws in the cell))
    # where s is the draws' standard deviation in the family's replicated cell and t the
    # 1 - relearn_alpha quantile of Student's t with (replicated draws - 1) degrees of freedom.
    # No correction over candidates: a wrong veto withholds a certificate, it never grants one.
    relearn_veto: bool = True
    """Whether the recalibrated bar includes the veto; off is the paper's veto-less bar."""
    relearn_alpha: float = 0.05
    """Chance that a further reference draw would be vetoed."""
    relearn_margin: float = 0.1
    """Smallest excess fall that can veto, so that noise does not veto where draws hardly differ."""

    # Equivalence to never-learned among screen survivors (reported, and no part of a bar).
    equivalence_alpha: float = 0.05
    """Level of each of the two one-sided tests of equivalence to never-learned."""

    # Headroom regime. With h = mean base NLL - mean injected NLL (what injection taught), the
    # regime is counterfactual when G-hat - headroom_fraction * h is above zero over its whole
    # interval, inferable when it is below zero over its whole interval, else undecided.
    headroom_fraction: float = 0.5
    """Part of what injection taught that evidence in context must leave unexplained."""
    headroom_minimum_facts: int = 4
    """Fewest facts on which a regime is decided at all."""

    # Intervals.
    confidence: float = 0.95
    """Coverage of every reported interval."""
    bootstrap_resamples: int = 10_000
    """Resamples of a cluster bootstrap."""
    bootstrap_seed: int = 20_250
    """Seed of the resampling, so that a report gives the same interval twice."""

    def __post_init__(self) -> None:
        for key in ("axes", "control_shares"):
            object.__setattr__(self, key, tuple(getattr(self, key)))
        known = [axis.name for axis in (*table.AXES, *table.OPTIONAL)]
        fits = len(set(self.axes)) == len(self.axes) and set(self.axes) <= set(known)
        shares_fit = bool(self.control_shares) and all(0 < s < 1 for s in self.control_shares)
        checks: list[tuple[str, str, bool]] = [
            ("axes", "some of " + ", ".join(known) + ", once", bool(self.axes) and fits),
            ("control_shares", "numbers strictly between 0 and 1", shares_fit),
            ("tolerance_percentile", "in (0, 100]", 0 < self.tolerance_percentile <= 100),
        ]
        for key in FRACTIONS:
            number = 0 < getattr(self, key) < 1
            checks.append((key, "a number strictly between 0 and 1", number))
        for key in POSITIVE:
            checks.append((key, "a positive number", 0 < getattr(self, key) < math.inf))
        for key in ("margin", "detection_limit", "degeneracy_deltas", "relearn_margin"):
            checks.append((key, "a number of at least 0", 0 <= getattr(self, key) < math.inf))
        for key, least in LEAST.items():
            checks.append((key, f"an integer of at least {least}", getattr(self, key) >= least))
        for key in ("screen_pool", "panel_pool"):
            checks.append((key, "one of " + ", ".join(POOLS), getattr(self, key) in POOLS))
        for key, expected, holds in checks:
            if not holds:
                raise PlanError(f"rules.{key} is {getattr(self, key)!r}; expected {expected}")

    def without(self, *axes: str) -> "Rules":
        """Return the rules less these axes, where a setting cannot measure them."""
        return replace(self, axes=tuple(name for name in self.axes if name not in axes))
