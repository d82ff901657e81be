"""What a planned screen can do before anything is trained: the bound, and power beside it."""

from dataclasses import dataclass
from typing import Any

from palimpsest.criteria.multiplicity import (
    certifiability,
    minimum_matched,
    screen_power,
)
from palimpsest.criteria.rules import Rules


@dataclass(frozen=True, slots=True)
class DesignRow:
    """The same design with another number of probes."""

    probes: int
    arrangements: int
    min_p: float
    certifiable: bool
    power: float


@dataclass(frozen=True, slots=True)
class Design:
    """A planned screen: what it needs, what it has, and what it would find."""

    forget: int
    probes: int
    candidates: int
    alpha: float
    arrangements: int
    min_p: float
    required: int
    certifiable: bool
    min_probes: int
    min_matched: int
    """Smallest m when probes are matched one to a forget fact."""
    power: float
    power_shift: float
    power_method: str
    table: tuple[DesignRow, ...]

    def to_json(self) -> dict[str, Any]:
        """The answer as plain JSON values."""
        answer = {name: getattr(self, name) for name in self.__slots__ if name != "table"}
        answer["table"] = [
            {name: getattr(row, name) for name in DesignRow.__slots__} for row in self.table
        ]
        return answer

    def lines(self) -> list[str]:
        """The answer for a person, one line at a time."""
        m, n, k = self.forget, self.probes, self.candidates
        relation = "reaches" if self.certifiable else "falls short of"
        lines = [
            f"{m} forget facts against {n} probes can be arranged in C({m + n}, {m}) = "
            f"{self.arrangements:,} ways,",
            f"so the smallest p-value the exact screen can give is 1/{self.arrangements:,} = "
            f"{self.min_p:.3g}.",
            f"Holm over {k} candidates at alpha = {self.alpha:g} needs {k}/{self.alpha:g} = "
            f"{self.required:,} arrangements; {self.arrangements:,} {relation} that.",
        ]
        if self.certifiable:
            lines.append(
                f"The screen can exclude a candidate. {self.min_probes} probes would be enough "
                f"for {m} forget facts; more probes cost only forward passes."
            )
        else:
            lines.append(
                "The screen could exclude nobody, however badly a candidate under-forgets, and "
                f"would abstain as underpowered. Use {self.min_probes} probes or more: they cost "
                "only forward passes, while more forget facts change the dose."
            )
        lines.append(
            f"Matched one to one, {self.min_matched} forget facts and as many probes would be "
            "the least."
        )
        lines.append(
            f"A candidate whose forget deltas lie {self.power_shift:g} standard deviations below "
            f"its probe deltas is excluded with chance {self.power:.1%} ({self.power_method}), "
            "even if it is the only one to exclude."
        )
        lines.append("")
        lines.append("probes  arrangements   smallest p  can exclude   power")
        for row in self.table:
            mark = "<- this design" if row.probes == n else ""
            arrangements = (
                f"{row.arrangements:,}" if row.arrangements < 10**9 else (f"{row.arrangements:.2e}")
            )
            lines.append(
                f"{row.probes:6d}  {arrangements:>12}  {row.min_p:11.3g}  "
                f"{'yes' if row.certifiable else 'no':>11}  {row.power:6.1%}  {mark}".rstrip()
            )
        return lines


def design_screen(
    forget: int,
    probes: int,
    candidates: int,
    alpha: float = Rules.alpha,
    shift: float = Rules.power_shift,
) -> Design:
    """The bound and the power of a screen with these counts, and of its neighbours in n."""
    bound = certifiability(forget, probes, candidates, alpha)
    power = screen_power(forget, probes, candidates, alpha, shift)
    return Design(
        forget=forget,
        probes=probes,
        candidates=candidates,
        alpha=alpha,
        arrangements=bound.arrangements,
        min_p=bound.min_p,
        required=bound.required,
        certifiable=bound.certifiable,
        min_probes=bound.min_probes,
        min_matched=minimum_matched(candidates, alpha),
        power=power.power,
        power_shift=shift,
        power_method=power.method,
        table=tuple(
            _row(forget, n, candidates, alpha, shift) for n in _neighbours(probes, bound.min_probes)
        ),
    )


def _neighbours(probes: int, min_probes: int) -> list[int]:
    """Probe counts worth comparing: around the minimum, the design itself, and doublings of it."""
    counts = {min_probes - 1, min_probes, 2 * min_probes, probes // 2, probes, 2 * probes}
    return sorted(n for n in counts if n >= 1)


def _row(forget: int, probes: int, candidates: int, alpha: float, shift: float) -> DesignRow:
    bound = certifiability(forget, probes, candidates, alpha)
    power = screen_power(forget, probes, candidates, alpha, shift)
    return DesignRow(probes, bound.arrangements, bound.min_p, bound.certifiable, power.power)
