"""Where every model of a cell lies among its retrainings: the data of the pictures."""

from collections.abc import Mapping
from dataclasses import dataclass

from palimpsest.report.results import CellResult
from palimpsest.stats.comparison import Comparison
from palimpsest.stats.controls import Control, ControlKind, reference_bag
from palimpsest.stats.rules import Rules
from palimpsest.stats.words import percent

GROUPS = {
    ControlKind.INJECTED: "injected",
    ControlKind.MIXTURE: "mixture",
    ControlKind.KNOWN_LABEL: "known-label model",
    ControlKind.RETRAINING: "fresh retraining",
    ControlKind.SAME_DRAW: "same-draw retraining",
}
"""Kinds of controls, in words."""


@dataclass(frozen=True, slots=True)
class Place:
    """One model among the retrainings."""

    name: str
    group: str
    """retraining, candidate, or one of ``GROUPS``."""
    label: str
    """What it is called in pictures and tables."""
    sd: Mapping[str, float]
    """By axis: distance from the mean retraining in standard deviations of retraining."""


def cell_places(cell: CellResult, rules: Rules) -> list[Place]:
    """Return every model of a cell that was compared, retrainings first and candidates last."""
    bag = reference_bag(cell.evaluation, rules)
    if cell.verdict is None or not bag.comparable:
        return []
    spread = bag.values.std(axis=0, ddof=1)
    scaled = (bag.values - bag.values.mean(axis=0)) / [s if s > 0 else 1.0 for s in spread]
    axes = [axis.name for axis in bag.axes]
    places = [
        Place(name, "retraining", name, dict(zip(axes, map(float, row))))
        for name, row in zip(bag.names, scaled)
    ]
    for control in cell.verdict.controls:
        sd, label = _distances(control.comparison), control_label(control)
        places += [Place(control.name, GROUPS[control.kind], label, sd)] if sd else []
    for finding in cell.verdict.findings:
        sd = _distances(finding.comparison)
        places += [Place(finding.name, "candidate", finding.name, sd)] if sd else []
    return places


def control_label(control: Control) -> str:
    """Return what a control is called: a mixture by its share, a known-label model by its name."""
    if control.share is not None:
        return f"{percent(control.share)} of the injected weights"
    known = control.kind is ControlKind.KNOWN_LABEL
    return control.name.removeprefix("known-") if known else GROUPS[control.kind]


def _distances(comparison: Comparison | None) -> dict[str, float]:
    gaps = {} if comparison is None else comparison.gaps
    return {name: gap.sd for name, gap in gaps.items() if gap.sd is not None}
