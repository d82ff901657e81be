"""What a planned audit can do before anything is trained: the bound of the screen, and the power of
the comparison with retrainings."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from palimpsest.errors import PlanError
from palimpsest.stats.axes import AXES
from palimpsest.stats.comparison import (
    Test,
    bag_scores,
    normal_p_values,
    rank_counts,
    required_references,
    which_test,
)
from palimpsest.stats.multiplicity import (
    Certifiability,
    certifiability,
    minimum_matched,
    screen_power,
)
from palimpsest.stats.rules import MINIMUM_REFERENCES, Rules

POWER = 0.8
"""Chance of rejection that the detectable shift refers to."""
SHIFT = 2.0
"""Shift that the screen's power is computed for, in standard deviations."""
SIMULATED = 1_000
"""Simulated bags, with a fixed seed so that a plan gives the same answer twice."""
CHOICES = (5, 9, 14, 20, 40)
"""Numbers of references that a person chooses between: the rank rule gains nothing from 21 to 39,
because floor(alpha * (K + 1)) stays 1."""


@dataclass(frozen=True, slots=True)
class ReferenceDesign:
    """A planned comparison of one model with K references."""

    references: int
    reference_test: Test | None
    """Which rule applies; None where nothing can be certified."""
    references_suffice: bool
    """Enough for a certificate, if the audit's own power allows it."""
    min_p_model: float | None
    """Smallest p-value of the rank rule, 1/(K+1); None for the normal rule."""
    detectable_sd: float | None
    """Shift on one axis, in retraining standard deviations, that is rejected with 80 % power."""
    detectable_on_three: float | None
    """The same for a shift on three axes at once."""


@dataclass(frozen=True, slots=True)
class Design:
    """A planned screen and comparison: what they need, what they have, what they would find."""

    bound: Certifiability
    min_matched: int
    """Smallest m when probes are matched one to a forget fact."""
    power: float
    power_shift: float
    required_references: int
    """References with which the comparison assumes nothing about their distribution."""
    comparison: ReferenceDesign | None
    """None when no number of references was given."""
    choices: tuple[ReferenceDesign, ...]
    """What other numbers of references would buy."""

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain JSON values."""
        answer = asdict(self)
        bound, comparison = answer.pop("bound"), answer.pop("comparison") or {}
        return {**bound, **answer, **comparison}

    def lines(self) -> list[str]:
        """Return the answer for a person, one line at a time."""
        bound = self.bound
        m, n = bound.forget, bound.probes
        one = "the candidate" if bound.candidates == 1 else f"one of {bound.candidates} candidates"
        can = "can" if bound.certifiable else "cannot"
        lines = [
            f"Screen: {m} forget facts and {n} probes can be arranged in {bound.arrangements:,} "
            f"ways; excluding {one} at alpha = {bound.alpha:g} takes "
            f"{bound.required:,}. The screen {can} exclude a candidate. {bound.min_probes} probes "
            "are enough; a probe costs only forward passes.",
            f"A candidate whose forget deltas lie {self.power_shift:g} standard deviations below "
            f"its probe deltas is excluded with probability {self.power:.0%} (simulated).",
        ]
        if self.comparison is not None and not self.comparison.references_suffice:
            lines.append(
                f"Comparison: {self.comparison.references} references; nothing is certified with "
                f"fewer than {MINIMUM_REFERENCES}."
            )
        lines += [
            "",
            "references  rule   shift detected with 80 % power: on one axis  on three axes",
        ]
        for row in self.choices:
            mark = "  <- this design" if self.comparison == row else ""
            lines.append(
                f"{row.references:10d}  {row.reference_test:6}  {row.detectable_sd:38.1f} sd  "
                f"{row.detectable_on_three:10.1f} sd{mark}"
            )
        return [
            *lines,
            f"The rank rule assumes nothing about the distribution of retrainings. It needs "
            f"{self.required_references} references, and beyond them gains power only at 40. The "
            "normal rule assumes normally distributed retrainings.",
        ]


def design_audit(
    forget: int,
    probes: int,
    candidates: int,
    alpha: float = Rules.alpha,
    shift: float = SHIFT,
    references: int | None = None,
) -> Design:
    """Return the bound and power of a screen with these counts, and what references can do."""
    counts = sorted({*CHOICES, *((references,) if references is not None else ())})
    return Design(
        certifiability(forget, probes, candidates, alpha),
        minimum_matched(candidates, alpha),
        screen_power(forget, probes, candidates, alpha, shift),
        shift,
        required_references(alpha) + 1,
        None if references is None else design_references(references, alpha),
        tuple(row for n in counts if (row := design_references(n, alpha)).references_suffice),
    )


def design_references(references: int, alpha: float = Rules.alpha) -> ReferenceDesign:
    """Return what the comparison with this many retrainings can do on the standard axes."""
    if references < 0:
        raise PlanError(f"{references} found; expected at least 0", key="references")
    if references < MINIMUM_REFERENCES:
        return ReferenceDesign(references, None, False, None, None, None)
    test = which_test(references, alpha)
    return ReferenceDesign(
        references,
        test,
        True,
        1 / (references + 1) if test == "rank" else None,
        detectable_shift(references, alpha, len(AXES), 1),
        detectable_shift(references, alpha, len(AXES), 3),
    )


def detectable_shift(references: int, alpha: float, axes: int, moved: int) -> float:
    """Return the shift on ``moved`` of these independent normal axes, in retraining standard
    deviations, at which a model is rejected with power 0.8; one beyond 100 is given as 100."""
    generator = np.random.default_rng(20_250)
    bags = generator.standard_normal((SIMULATED, references + 1, axes))
    still = bag_scores(bags[..., moved:])  # of the axes that do not move
    test, allowed = which_test(references, alpha), math.floor(alpha * (references + 1) + 1e-9)

    def rejects(shift: float) -> float:
        shifted = bags[..., :moved].copy()
        shifted[:, 0] += shift
        scores = still + bag_scores(shifted)
        if test == "rank":
            return float(np.mean(rank_counts(scores) <= allowed))
        return float(np.mean(normal_p_values(scores[:, 0], references, axes) <= alpha))

    low, high = 0.0, 100.0
    while high - low > 0.1:
        middle = (low + high) / 2
        low, high = (low, middle) if rejects(middle) >= POWER else (middle, high)
    return round(high, 1)
