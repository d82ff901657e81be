"""The axes of the recalibrated bar, as figures show them: in units of retraining noise, delta_f."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from palimpsest.report.plots.spec import Axis, Panel, Point, Row, Rule, axis_over, far_spread

BETTER = -2.0
"""Where the axis of damage ends: how much better than retrained a model is does not matter."""


@dataclass(frozen=True, slots=True)
class BarAxis:
    """One axis of the bar."""

    failure: str
    """Its name in a verdict."""
    field: str
    """The field of a finding that holds its distance."""
    title: str
    least: float
    """Where what retraining would do begins."""
    gate: bool = False
    """Whether to be better than that is degenerate."""

    def panel(self, x: Axis, rows: Sequence[Row], points: Sequence[Point], *, notes: str) -> Panel:
        """The panel of this axis, with the bar, the gate and the part that is within them."""
        gate = (Rule(self.least, "gate"),) if self.gate else ()
        return Panel(
            self.title,
            x,
            rows=tuple(rows),
            points=tuple(points),
            rules=(Rule(1.0, "bar", solid=True), *gate),
            inside=(max(x.low, self.least), 1.0),
            notes=notes,
        )


AXES = (
    BarAxis("forget equivalence", "forget_distance", "forget distance", 0.0),
    BarAxis("retain damage", "retain_damage", "retain damage", -1.0, gate=True),
    BarAxis("round-trip damage", "residual_damage", "round-trip damage", -math.inf),
)


def damage_axis(values: Sequence[float]) -> Axis:
    """The axis of distances in units of delta_f; what is far better than the bar is at its end."""
    return axis_over(
        "units of retraining noise δ_f",
        [max(value, BETTER) for value in values],
        also=(0.0, 1.0),
        scale=far_spread(values),
    )
