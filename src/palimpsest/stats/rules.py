"""The frozen rules: every threshold that a verdict depends on and a user may choose.

A run hashes these fields before its first model is trained and refuses to continue under others.
Rules that decide about a certificate can be tightened, not loosened: validation refuses values
outside the bounds here, and whatever differs from the default is listed with every verdict.
"""

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Lt

from palimpsest.errors import PlanError
from palimpsest.stats.axes import AXES

Share = Annotated[float, Gt(0), Lt(1)]
MINIMUM_REFERENCES = 5
"""Fewest references with which a candidate can be certified."""
UNIT = 0.1
"""Share of the mixtures on which the share of a model is read."""
CONTROL_MIXTURES = 5
"""Mixtures per control share, each made from a different reference."""


@dataclass(frozen=True)
class Rules:
    """Thresholds and rules, fixed before results exist; distances are in nats."""

    alpha: Annotated[float, Ge(0.01), Le(0.2)] = 0.05
    """Significance level of the comparison with retrainings (per candidate) and of the screen
    (Holm-corrected over the candidates)."""
    certify_above: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Certify only candidates whose p-value exceeds this value; 0 uses alpha."""
    margin: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Equivalence margin, as a fraction of the injected-to-reference distance: a certified
    candidate must also lie within it; 0 disables it."""
    unmeasured_axes: tuple[str, ...] = ()
    """Axes that these facts do not allow; set by the program only."""
    control_shares: tuple[Share, ...] = (0.25, 0.1)
    """Shares of the injected weights in the mixtures that show what an audit detects; 0.1 is among
    them, because what is left of the injected weights is read on it."""
    most_left: Annotated[float, Ge(0.01), Le(0.1)] = 0.1
    """Share of the injected weights below which the 95 % bound on what is left in a certified
    candidate must lie."""
    detection_limit: Annotated[float, Gt(0), Le(0.25)] = 0.25
    """Share of the injected weights (0.25 is 25 %) that an audit must be able to detect before it
    certifies."""
    detection_power: Annotated[float, Ge(0.8), Le(1)] = 0.8
    """Fraction of the mixtures with that share, and with every larger one, that must be
    rejected."""

    def __post_init__(self) -> None:
        for key in ("unmeasured_axes", "control_shares"):
            object.__setattr__(self, key, tuple(getattr(self, key)))
        names = [entry.name for entry in AXES]
        if unknown := [name for name in self.unmeasured_axes if name not in names]:
            raise PlanError(
                f"{unknown[0]!r} found; expected some of {', '.join(names)}",
                key="rules.unmeasured_axes",
            )
        if UNIT not in self.control_shares:
            raise PlanError(
                f"{list(self.control_shares)} found; expected {UNIT:g} among them, on which what "
                "is left of the injected weights is read",
                key="rules.control_shares",
            )
        if min(self.control_shares) > self.detection_limit:
            raise PlanError(
                f"{list(self.control_shares)} found; expected at least one share of "
                f"{self.detection_limit:g} or less, which is what must be detected",
                key="rules.control_shares",
            )

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes that are compared."""
        return tuple(entry.name for entry in AXES if entry.name not in self.unmeasured_axes)

    def without(self, *axes: str) -> "Rules":
        """Return the rules with axes marked that a setting cannot measure."""
        return replace(self, unmeasured_axes=tuple(dict.fromkeys((*self.unmeasured_axes, *axes))))

    def differences(self) -> dict[str, tuple[Any, Any]]:
        """Return what differs from the default rules: default and own value, by name.

        Axes that could not be measured are reported apart.
        """
        default = Rules()
        return {
            item.name: (getattr(default, item.name), getattr(self, item.name))
            for item in fields(self)
            if item.name != "unmeasured_axes"
            and getattr(self, item.name) != getattr(default, item.name)
        }
