"""The figures of a matrix: every candidate as a point, rows are methods, panels are families."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from palimpsest.report.formats import Table, Value, number
from palimpsest.report.palette import in_order
from palimpsest.report.plots.bar import AXES, BETTER, damage_axis
from palimpsest.report.plots.spec import (
    Band,
    Figure,
    Line,
    Panel,
    Point,
    Row,
    Rule,
    axis_over,
    far_spread,
    jitter,
    two,
)
from palimpsest.study.results import CellResult, RunResults

Measure = Callable[[CellResult, str], float | None]


def matrix_figures(results: RunResults) -> tuple[Figure, ...]:
    """All figures of a run with several cells."""
    made = (
        forget_figure(results),
        rise_figure(results, "retain", "retain facts", "retain_nll"),
        rise_figure(results, "general", "general text", "general_nll"),
        residual_figure(results),
        relearning_figure(results),
        distance_figure(results),
    )
    return tuple(figure for figure in made if figure is not None)


def forget_figure(results: RunResults) -> Figure | None:
    """Median forget delta minus median probe delta, with what the screen excludes hollow."""

    def gap(cell: CellResult, name: str) -> float | None:
        return cell.evaluation[name].median_gap

    values = _values(results, gap)
    excluded = sum(not cell.survives(name) for cell, name, _ in values)
    below = sum(value < 0 for _, _, value in values)
    return _by_family(
        results,
        "forget-gap",
        "Forget facts against never-learned probes",
        f"The screen excludes {excluded} of {len(values)} candidates; the median gap is below zero "
        f"for {below}, that is, their forget facts are still better known than their probes.",
        "median forget delta − median probe delta, nats",
        values,
        (Rule(0.0, "never learned", solid=True),),
        "gap",
    )


def rise_figure(results: RunResults, name: str, title: str, measure: str) -> Figure | None:
    """How far a measure rose over the injected model's."""

    def rise(cell: CellResult, candidate: str) -> float | None:
        mine = getattr(cell.evaluation[candidate], measure)
        injected = getattr(cell.evaluation.injected, measure)
        return None if mine is None or injected is None else float(mine - injected)

    values = _values(results, rise)
    if not values:
        return None
    worse = sum(value > 0 for _, _, value in values)
    middle = _medians(results, values)
    most = max(middle, key=lambda method: middle[method])
    return _by_family(
        results,
        name,
        f"Damage to {title}",
        f"On {title} {worse} of {len(values)} candidates score worse than the injected model they "
        f"came from; the largest median rise is {most}'s, {number(middle[most])} nats.",
        f"NLL of {title} − injected model's, nats",
        values,
        (Rule(0.0, "injected", solid=True),),
        "rise",
    )


def residual_figure(results: RunResults) -> Figure | None:
    """Round-trip residual minus the cell's own floor."""

    def above(cell: CellResult, name: str) -> float | None:
        mine, floor = cell.evaluation[name].residual, cell.evaluation.injected.residual
        return None if mine is None or floor is None else mine - floor

    values = _values(results, above)
    if not values:
        return None
    closing = sum(value <= 0 for _, _, value in values)
    floors = [
        floor for cell in results.cells if (floor := cell.evaluation.injected.residual) is not None
    ]
    return _by_family(
        results,
        "residual",
        "Round-trip residual above the floor",
        f"{closing} of {len(values)} candidates close the loop at least as well as their injected "
        f"model does; the floor itself lies between {number(min(floors))} and "
        f"{number(max(floors))} nats.",
        "residual − floor, nats",
        values,
        (Rule(0.0, "floor", solid=True),),
        "above floor",
    )


def distance_figure(results: RunResults) -> Figure | None:
    """Every axis of the recalibrated bar in units of the family's delta_f."""
    found: list[tuple[CellResult, str, str, float]] = []
    within = total = 0
    for cell in results.cells:
        if cell.verdict is None or cell.verdict.mode != "reference-relative":
            continue
        delta = cell.verdict.numbers["delta_f"]
        assert isinstance(delta, float)
        for one in cell.verdict.findings:
            total += 1
            within += one.worst_axis is not None and one.worst_axis <= 1
            for axis in AXES:
                value = getattr(one, axis.field)
                if value is not None:
                    found.append((cell, one.name, axis.field, value / delta))
    if not found:
        return None
    methods = in_order(results.methods)
    every = [value for *_, value in found]
    x = damage_axis(every)
    panels = []
    for axis in AXES:
        mine = [(cell, name, value) for cell, name, field, value in found if field == axis.field]
        beyond = partial(_beyond, axis.least)
        points = _points(mine, methods, axis.title, " δ_f", beyond, BETTER)
        rows = []
        for method in methods:
            values = [value for cell, name, value in mine if cell.methods[name] == method]
            inside = sum(axis.least <= value <= 1 for value in values)
            note = f"{inside}/{len(values)}" if values else "–"
            rows.append(Row(method, note))
        panels.append(axis.panel(x, rows, points, notes="within"))
    rows_table: list[tuple[Value, ...]] = [
        (cell.id, name, cell.methods[name], field.replace("_", " "), value)
        for cell, name, field, value in found
    ]
    return Figure(
        "distance",
        "Distance from a retrained model",
        f"{within} of {total} candidates lie within one δ_f of a retrained model on all three "
        "axes, before gate and veto.",
        "Three panels, one for each axis of the bar; rows are methods and every marker is a "
        "candidate, placed by its distance in units of its family's retraining noise. The shaded "
        "part is what retraining itself would do; hollow markers lie beyond it. Left of the gate a "
        "model retains too well to have been only unlearned. At the right, how many lie within.",
        tuple(panels),
        Table(
            "distance",
            "Distances in units of delta_f",
            "",
            ("cell", "candidate", "method", "axis", "units of delta_f"),
            tuple(rows_table),
        ),
        legend=(
            *((method, method, False) for method in methods),
            (methods[0], "hollow: beyond the bar", True),
        ),
    )


def _beyond(least: float, cell: CellResult, name: str, value: float) -> bool:
    return not least <= value <= 1


def relearning_figure(results: RunResults) -> Figure | None:
    """Median relearning curve of each method, against the band of the family's references."""
    panels = []
    rows: list[tuple[Value, ...]] = []
    curves: dict[tuple[str, str], list[np.ndarray[tuple[int], np.dtype[np.float64]]]] = {}
    steps: tuple[float, ...] = ()
    for cell in results.cells:
        models = [
            ("injected", "injected"),
            *((name, "reference") for name in cell.evaluation.references),
        ]
        models += [(name, cell.methods[name]) for name in cell.candidates]
        for name, kind in models:
            curve = cell.evaluation[name].curve
            base = cell.evaluation["base"].forget_nll
            if curve is None:
                continue
            if not steps:
                steps = tuple(curve.step.tolist())
            if tuple(curve.step.tolist()) == steps:
                curves.setdefault((cell.family, kind), []).append(curve.forget_heldout_nll - base)
    methods = in_order(results.methods)
    medians = {key: np.median(np.stack(found), axis=0) for key, found in curves.items()}
    if not any(kind in methods for _, kind in medians):
        return None
    shown = [value for middle in medians.values() for value in middle.tolist()]
    references = [
        end for (_, kind), found in curves.items() if kind == "reference"
        for end in (float(np.min(found)), float(np.max(found)))
    ]  # fmt: skip
    every = [*shown, *references]
    y = axis_over("held-out forget NLL − base's, nats", every, scale=far_spread(every))
    x = axis_over("steps of re-acquisition", steps, margin=0.02)
    for family in results.families:
        bands: tuple[Band, ...] = ()
        held = curves.get((family, "reference"))
        if held:
            low, high = np.min(held, axis=0), np.max(held, axis=0)
            label = f"{len(held)} references of {family}, smallest to largest"
            bands = (Band(steps, tuple(low.tolist()), tuple(high.tolist()), label),)
        lines, points = [], []
        for kind in ("injected", *methods, "reference"):
            middle = medians.get((family, kind))
            if middle is None:
                continue
            values = tuple(middle.tolist())
            lines.append(Line(steps, values, kind, f"median of {kind}", kind == "injected"))
            rows += [(family, kind, step, value) for step, value in zip(steps, values)]
            if kind in methods:
                count = len(curves[family, kind])
                points += [
                    Point(
                        step,
                        value,
                        kind,
                        f"{kind} in {family}: step {step:g}, median of {count} candidates "
                        f"{number(value)} nats from base",
                        small=True,
                    )
                    for step, value in zip(steps, values)
                ]
        panels.append(Panel(family, x, y, lines=tuple(lines), bands=bands, points=tuple(points)))
    findings = [
        one for cell in results.cells if cell.verdict is not None for one in cell.verdict.findings
    ]
    tested = [one for one in findings if one.fall is not None]
    vetoed = sum("relearn veto" in one.failures for one in tested)
    reading = "Median relearning curves by method and family."
    if tested:
        reading = (
            f"{vetoed} of {len(tested)} candidates relearn faster than a further reference draw "
            "would."
        )
    return Figure(
        "relearning",
        "Relearning curves",
        reading,
        "One panel a family: held-out forget NLL, from base, while the forget set is trained "
        "again; the median over candidates of each method. The grey band spans all references of "
        "the family, the plain line is their median, the dashed line the injected model's.",
        tuple(panels),
        Table(
            "relearning",
            "Median relearning curves",
            "",
            ("family", "model or method", "step", "forget NLL minus base's"),
            tuple(rows),
        ),
        legend=(
            *((method, method, False) for method in methods),
            ("reference", "plain line: references, in their range", False),
            ("injected", "dashed line: injected", False),
        ),
    )


# -- pieces ---------------------------------------------------------------------------------------


def _values(results: RunResults, measure: Measure) -> list[tuple[CellResult, str, float]]:
    found = [(cell, name, measure(cell, name)) for cell, name in results.candidates()]
    return [(cell, name, value) for cell, name, value in found if value is not None]


def _medians(
    results: RunResults, values: Sequence[tuple[CellResult, str, float]]
) -> dict[str, float]:
    by_method: dict[str, list[float]] = {}
    for cell, name, value in values:
        by_method.setdefault(cell.methods[name], []).append(value)
    return {method: float(np.median(found)) for method, found in by_method.items()}


def _points(
    values: Sequence[tuple[CellResult, str, float]],
    methods: Sequence[str],
    what: str,
    unit: str,
    hollow: Callable[[CellResult, str, float], bool],
    least: float = -math.inf,
) -> tuple[Point, ...]:
    seen: dict[str, int] = {}
    points = []
    for cell, name, value in values:
        method = cell.methods[name]
        seen[method] = seen.get(method, -1) + 1
        label = f"{name} in {cell.id}: {what} {number(value)}{unit}"
        label += "" if cell.survives(name) else ", excluded by the screen"
        place = methods.index(method) + jitter(seen[method])
        at = max(value, least)
        points.append(Point(at, place, method, label, hollow(cell, name, value), small=True))
    return tuple(points)


def _by_family(
    results: RunResults,
    name: str,
    title: str,
    reading: str,
    label: str,
    values: Sequence[tuple[CellResult, str, float]],
    rules: tuple[Rule, ...],
    what: str,
) -> Figure | None:
    """One panel a family, one row a method; candidates the screen excludes are hollow."""
    if not values:
        return None
    numbers = [value for *_, value in values]
    x = axis_over(label, numbers, also=(0.0,), scale=far_spread(numbers))
    methods = in_order(results.methods)
    panels = []
    for family in results.families:
        mine = [one for one in values if one[0].family == family]
        present = [m for m in methods if any(cell.methods[n] == m for cell, n, _ in mine)]
        middle = _medians(results, mine)
        rows = tuple(Row(method, two(middle[method])) for method in present)
        if not rows:
            continue
        points = _points(
            mine, present, what, " nats", lambda cell, one, value: not cell.survives(one)
        )
        panels.append(Panel(family, x, rows=rows, points=points, rules=rules, notes="median"))
    rows_table: list[tuple[Value, ...]] = [
        (cell.id, cell.family, one, cell.methods[one], value, not cell.survives(one))
        for cell, one, value in values
    ]
    columns = ("cell", "family", "candidate", "method", what, "excluded")
    return Figure(
        name,
        title,
        reading,
        "One panel a family, one row a method; every marker is a candidate of one cell. Hollow "
        "markers are candidates the screen excludes. At the right the method's median.",
        tuple(panels),
        Table(name, title, "", columns, tuple(rows_table)),
        legend=(
            *((method, method, False) for method in methods),
            (methods[0], "hollow: excluded by the screen", True),
        ),
    )
