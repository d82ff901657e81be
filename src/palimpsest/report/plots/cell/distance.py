"""How far every candidate is from a retrained model, on each axis of the recalibrated bar."""

from collections.abc import Sequence

from palimpsest.report.formats import Table, Value, counted, number
from palimpsest.report.plots.bar import AXES, BETTER, BarAxis, damage_axis
from palimpsest.report.plots.cell.shared import hollow_legend, listed
from palimpsest.report.plots.spec import Axis, Figure, Panel, Point, Row, two
from palimpsest.study.results import CellResult
from palimpsest.verdict import Finding


def distance_figure(cell: CellResult) -> Figure | None:
    """Every axis of the recalibrated bar in units of delta_f."""
    verdict, tolerances = cell.verdict, cell.tolerances
    if verdict is None or tolerances is None or verdict.mode != "reference-relative":
        return None
    delta = tolerances.delta_f
    by_name = {one.name: one for one in verdict.findings}
    findings = [by_name[name] for name in listed(cell)]
    shares = [share for one in verdict.findings for share in _shares(one, delta)]
    x = damage_axis([share for share in shares if share is not None])
    columns = ("candidate", *(f"{axis.title} / delta_f" for axis in AXES), "worst axis", "fails")
    rows: list[tuple[Value, ...]] = [
        (one.name, *_shares(one, delta), one.worst_axis, "; ".join(one.failures) or None)
        for one in verdict.findings
    ]
    return Figure(
        "distance",
        "Distance from a retrained model",
        f"{_reading(verdict.findings, delta)}.",
        "Three panels, one for each axis of the bar; each row is a candidate, placed by its "
        "distance in units of retraining noise. The shaded part is what retraining itself would "
        "do; hollow markers lie beyond it. Left of the gate a model retains too well to have been "
        "only unlearned. One far better than the bar stands at the left end; its number is at the "
        "right.",
        tuple(_panel(cell, axis, findings, delta, x) for axis in AXES),
        Table("distance", "Distances in units of delta_f", "", columns, tuple(rows)),
        legend=hollow_legend(cell, "hollow: beyond the bar"),
    )


def _shares(one: Finding, delta: float) -> list[float | None]:
    """The distances of a candidate in units of delta_f."""
    distances = [getattr(one, axis.field) for axis in AXES]
    return [None if distance is None else distance / delta for distance in distances]


def _reading(findings: Sequence[Finding], delta: float) -> str:
    measured = [(one.worst_axis, one.name) for one in findings if one.worst_axis is not None]
    within = sum(worst <= 1 for worst, _ in measured)
    least, nearest = min(measured, key=lambda one: one[0])
    return (
        f"{within} of {counted(len(findings), 'candidate')} lie within one δ_f = "
        f"{number(delta)} nats of a retrained model on all three axes, before gate and veto; the "
        f"nearest, {nearest}, is {number(least)} δ_f away on its worst"
    )


def _panel(
    cell: CellResult, axis: BarAxis, findings: Sequence[Finding], delta: float, x: Axis
) -> Panel:
    rows, points = [], []
    for place, one in enumerate(findings):
        distance = getattr(one, axis.field)
        if distance is None:
            rows.append(Row(one.name, "–"))
            continue
        share = distance / delta
        gated = axis.gate and "degeneracy gate" in one.failures
        fails = gated or axis.failure in one.failures
        rows.append(Row(one.name, two(share)))
        outcome = (
            "too good: degenerate" if gated else "beyond the bar" if fails else "within the bar"
        )
        label = f"{one.name}: {axis.title} {number(distance)} nats, {number(share)} δ_f, {outcome}"
        style = cell.methods[one.name]
        points.append(Point(max(share, BETTER), place, style, label, hollow=fails))
    return axis.panel(x, rows, points, notes="δ_f")
