"""What a planned audit can do before anything is trained: the bounds of the screen and of the
comparison with retrainings, and power beside them."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import nctdtr, stdtrit

from palimpsest.criteria.axes import AXES
from palimpsest.criteria.multiplicity import (
    Certifiability,
    certifiability,
    minimum_matched,
    screen_power,
)
from palimpsest.criteria.retraining import Test, bag_scores, required_references, which_test
from palimpsest.criteria.rules import Rules
from palimpsest.errors import PlanError

POWER = 0.8
"""Chance of rejection that the detectable shift refers to."""
SIMULATED = 2_000
"""Bags from which the exact test's detectable shift is taken, with a fixed seed."""


@dataclass(frozen=True, slots=True)
class ReferenceDesign:
    """A planned comparison of one model with so many references."""

    references: int
    min_p_model: float
    """Smallest p-value of the exact test, 1/(K+1)."""
    required_references: int
    """Fewest references with which the exact test can reject at alpha."""
    reference_test: Test | None
    """Which test applies; None where nothing can be certified."""
    references_suffice: bool
    """Enough for a certificate, if the audit's own detection limit allows it."""
    detectable_sd: float | None
    """Shift on one axis, in retraining standard deviations, that is rejected with 80 % power."""

    def lines(self, alpha: float, minimum: int) -> list[str]:
        """Return the answer for a person, one line at a time."""
        counted = f"{self.references} reference{'' if self.references == 1 else 's'}"
        if self.reference_test is None:
            return [
                f"{counted}: nothing can be certified with fewer than {minimum}. Five are a "
                f"practical minimum, {self.required_references} make the comparison exact."
            ]
        smallest = f"1/{self.references + 1} = {self.min_p_model:.3g}"
        statement = (
            f"the comparison with retrainings is exact; its smallest p-value is {smallest}, at "
            f"most alpha = {alpha:g}."
            if self.reference_test == "exact"
            else f"fewer than the {self.required_references} that the exact comparison needs at "
            f"alpha = {alpha:g} (its smallest p-value would be {smallest}), so a Student-t region "
            "is used, which assumes normally distributed draws."
        )
        lines = [
            f"{counted}: {statement}",
            f"A shift of {self.detectable_sd:.1f} retraining standard deviations on one axis is "
            f"rejected with probability {POWER:.0%}; the audit measures its own detection limit.",
        ]
        if self.references == self.required_references:
            lines.append(
                "One more reference would make the comparison of interpolated controls exact as "
                "well: a control is not compared with the reference it is made from."
            )
        return lines


@dataclass(frozen=True, slots=True)
class Design:
    """A planned screen: what it needs, what it has, and what it would find."""

    bound: Certifiability
    min_matched: int
    """Smallest m when probes are matched one to a forget fact."""
    power: float
    power_shift: float
    table: tuple[tuple[Certifiability, float], ...]
    """The same design with other numbers of probes, each with its power."""
    comparison: ReferenceDesign | None
    """None when no number of references was given."""

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain JSON values."""
        keys = ("probes", "arrangements", "min_p", "certifiable")
        rows = [{k: getattr(row, k) for k in keys} | {"power": power} for row, power in self.table]
        answer = asdict(self)
        bound, comparison = answer.pop("bound"), answer.pop("comparison") or {}
        return {**bound, **answer, "table": rows, **comparison}

    def lines(self) -> list[str]:
        """Return the answer for a person, one line at a time."""
        bound = self.bound
        m, n, k = bound.forget, bound.probes, bound.candidates
        relation = "reaches" if bound.certifiable else "falls short of"
        lines = [
            f"{m} forget facts against {n} probes can be arranged in C({m + n}, {m}) = "
            f"{bound.arrangements:,} ways,",
            f"so the smallest p-value the exact screen can give is 1/{bound.arrangements:,} = "
            f"{bound.min_p:.3g}.",
            f"Holm's correction over {k} candidates at alpha = {bound.alpha:g} needs "
            f"{k}/{bound.alpha:g} = {bound.required:,} arrangements; "
            f"{bound.arrangements:,} {relation} that.",
            f"The screen can exclude a candidate. {bound.min_probes} probes would be enough for "
            f"{m} forget facts; more probes cost only forward passes."
            if bound.certifiable
            else "The screen could not exclude any candidate, whatever it still knows, and the "
            f"verdict would be underpowered. Use {bound.min_probes} probes or more: they cost only "
            "forward passes, while more forget facts change the training.",
            f"With as many probes as forget facts, {self.min_matched} of each would be the least.",
            f"A candidate whose forget deltas lie {self.power_shift:g} standard deviations below "
            f"its probe deltas is excluded with probability {self.power:.1%} (simulated), even if "
            "it is the only one that still knows the facts.",
        ]
        if self.comparison is not None:
            lines += self.comparison.lines(bound.alpha, Rules.minimum_references)
        lines += ["", "probes  arrangements   smallest p  can exclude   power"]
        for row, power in self.table:
            mark = "<- this design" if row.probes == n else ""
            large = row.arrangements >= 10**9
            arrangements = f"{row.arrangements:.2e}" if large else f"{row.arrangements:,}"
            lines.append(
                f"{row.probes:6d}  {arrangements:>12}  {row.min_p:11.3g}  "
                f"{'yes' if row.certifiable else 'no':>11}  {power:6.1%}  {mark}".rstrip()
            )
        return lines


def design_screen(
    forget: int,
    probes: int,
    candidates: int,
    alpha: float = Rules.alpha,
    shift: float = Rules.power_shift,
    references: int | None = None,
) -> Design:
    """Return the bound and the power of a screen with these counts, and of its neighbours in n;
    with ``references``, also what the comparison with so many retrainings can do."""

    def row(count: int) -> tuple[Certifiability, float]:
        bound = certifiability(forget, count, candidates, alpha)
        return bound, screen_power(forget, count, candidates, alpha, shift)

    bound, power = row(probes)
    least = bound.min_probes
    others = {least - 1, least, 2 * least, probes // 2, probes, 2 * probes}
    return Design(
        bound,
        minimum_matched(candidates, alpha),
        power,
        shift,
        tuple(row(count) for count in sorted(others) if count >= 1),
        None if references is None else design_references(references, alpha),
    )


def design_references(
    references: int,
    alpha: float = Rules.alpha,
    axes: int = len(AXES),
    minimum: int = Rules.minimum_references,
) -> ReferenceDesign:
    """Return what the comparison with so many retrainings can do on so many axes."""
    if references < 0:
        raise PlanError(f"references is {references}; expected at least 0")
    enough = references >= minimum
    return ReferenceDesign(
        references,
        1 / (references + 1),
        required_references(alpha),
        which_test(references, alpha) if enough else None,
        enough,
        detectable_shift(references, alpha, axes) if enough else None,
    )


def detectable_shift(references: int, alpha: float, axes: int, power: float = POWER) -> float:
    """Return the shift on one of ``axes`` independent normal axes, in retraining standard
    deviations, at which a model is rejected with this power.

    Student-t region: from the noncentral t distribution of the shifted axis, the chance that
    another axis rejects left out. Exact test: by simulation, with a fixed seed so that a plan gives
    the same answer twice. Both by bisection; a shift beyond 100 is given as 100.
    """
    if which_test(references, alpha) == "student-t":
        critical = float(stdtrit(references - 1, 1 - alpha / (2 * axes)))
        scale = math.sqrt(1 + 1 / references)

        def rejects(shift: float) -> float:
            return float(1 - nctdtr(references - 1, shift / scale, critical))
    else:
        generator = np.random.default_rng(20_250)
        bags = generator.standard_normal((SIMULATED, references + 1, axes))
        allowed = math.floor(alpha * (references + 1) + 1e-9)

        def rejects(shift: float) -> float:
            moved = bags.copy()
            moved[:, 0, 0] += shift
            scores = bag_scores(moved, ("two",) * axes)
            return float(np.mean(np.sum(scores >= scores[:, :1], axis=1) <= allowed))

    low, high = 0.0, 100.0
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if rejects(middle) >= power else (middle, high)
    return round(high, 2)
