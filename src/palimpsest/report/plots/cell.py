"""The figures of one cell: every candidate by name, in small panels, one a method."""

from collections.abc import Sequence

import numpy as np

from palimpsest.criteria.measures import RelearningCurve
from palimpsest.criteria.rules import Rules
from palimpsest.criteria.screen import screen_alone
from palimpsest.report.formats import Table, Value, counted, number
from palimpsest.report.palette import in_order
from palimpsest.report.plots.spec import (
    Axis,
    Band,
    Figure,
    Line,
    Panel,
    Point,
    Row,
    Rule,
    axis_over,
    far_spread,
    two,
)
from palimpsest.study.results import CellResult, RunResults
from palimpsest.verdict import Finding

AXES = (
    ("forget equivalence", "forget_distance", "forget distance"),
    ("retain damage", "retain_damage", "retain damage"),
    ("round-trip damage", "residual_damage", "round-trip damage"),
)
"""Axes of the recalibrated bar: its name in a verdict, the field of a finding, its title here."""


INSIDE = {"forget_distance": 0.0, "retain_damage": -1.0, "residual_damage": float("-inf")}
"""Where what retraining would do begins: retaining better by more than this is degenerate."""
GATES = {"retain_damage": (Rule(INSIDE["retain_damage"], "gate"),)}
BEYOND = {True: "beyond the bar", False: "within the bar"}
BETTER = -2.0
"""Where the axis of damage ends: how much better than retrained a model is does not matter."""


def damage_axis(values: Sequence[float]) -> Axis:
    """The axis of distances in units of delta_f; what is far better than the bar is at its end."""
    return axis_over(
        "units of retraining noise δ_f",
        [max(value, BETTER) for value in values],
        also=(0.0, 1.0),
        scale=far_spread(values),
    )


def groups(cell: CellResult) -> list[tuple[str, tuple[str, ...]]]:
    """Candidates by method in the palette's order, or all in one group when methods have one."""
    methods = in_order(cell.methods[name] for name in cell.candidates)
    if len(methods) > 9 or len(cell.candidates) < 2 * len(methods):
        ordered = tuple(name for method in methods for name in cell.of_method(method))
        return [("candidates", ordered)]
    return [(method, cell.of_method(method)) for method in methods]


def forget_figure(cell: CellResult, rules: Rules) -> Figure | None:
    """Forget and probe deltas of every candidate, with the screen's p-value."""
    if cell.verdict is None or cell.screen is None:
        return None
    known = ("injected", *cell.evaluation.references)
    models = [cell.evaluation[name] for name in (*known, *cell.candidates)]
    every = np.concatenate([np.r_[one.forget_deltas, one.probe_deltas] for one in models])
    x = axis_over("NLL − base's, nats", every.tolist(), also=(0.0,), scale=far_spread(every))
    panels = [_deltas_panel(cell, "known models", known, x, rules)]
    panels += [_deltas_panel(cell, title, names, x, rules) for title, names in groups(cell)]
    findings = cell.verdict.findings
    kept = [one for one in findings if not one.excluded]
    reading = (
        f"The screen excludes {len(findings) - len(kept)} of "
        f"{counted(len(findings), 'candidate')}, whose forget facts lie below their never-learned "
        "probes beyond chance"
    )
    gaps = [one.median_gap for one in kept]
    if len(kept) == 1:
        reading += f"; the median gap of the one survivor is {number(gaps[0])} nats"
    elif kept:
        reading += (
            f"; the median gap of the {len(kept)} survivors lies between {number(min(gaps))} and "
            f"{number(max(gaps))} nats"
        )
    rows: list[tuple[Value, ...]] = []
    for model in models:
        facts = [("forget", *one) for one in zip(model.forget_facts, model.forget_deltas)]
        facts += [("probe", *one) for one in zip(model.probe_facts, model.probe_deltas)]
        rows += [(model.name, which, fact, float(delta)) for which, fact, delta in facts]
    return Figure(
        "forget-deltas",
        "Forget and probe facts",
        f"{reading}.",
        "Each row is a model. Large markers are its forget facts, thin ticks its never-learned "
        "probes, placed by how much their held-out NLL rose over base. At the right the "
        "Holm-adjusted p-value of the screen; a cross marks an excluded candidate.",
        tuple(panels),
        Table("forget-deltas", "Deltas", "", ("model", "set", "fact", "delta"), tuple(rows)),
        legend=(
            *((method, method, False) for method in _methods(cell)),
            ("probe", "never-learned probe", False),
            ("excluded", "excluded by the screen", False),
        ),
    )


def retain_figure(cell: CellResult) -> Figure | None:
    """Retain NLL and general NLL of every candidate."""
    if cell.verdict is None:
        return None
    injected = cell.evaluation.injected
    bar = _retain_bar(cell)
    panels, readings = [], []
    for title, measure in (("retain facts", "retain_nll"), ("general text", "general_nll")):
        values = _measured(cell, cell.candidates, measure)
        if not values:
            continue
        rules = _known_rules(cell, measure)
        if measure == "retain_nll" and bar is not None:
            rules = (*rules, Rule(bar, "bar", solid=True))
        also = [rule.value for rule in rules]
        x = axis_over(f"NLL of {title}, nats", values.values(), also=also)
        panels.append(_measure_panel(cell, title, measure, x, rules))
        base = getattr(injected, measure)
        if base is not None:
            worse = sum(value > base for value in values.values())
            readings.append(
                f"{worse} of {counted(len(values), 'candidate')} score worse on {title}"
            )
    if not panels:
        return None
    return Figure(
        "retain",
        "Retain facts and general text",
        f"Against the injected model, {' and '.join(readings)}."
        if readings
        else f"Retain and general NLL of {len(cell.candidates)} candidates.",
        "Each row is a candidate, placed by its NLL on retain facts (left) and on general text "
        "(right). Dashed lines are the injected model and the reference.",
        tuple(panels),
        _measures_table(cell, "retain", ("retain_nll", "general_nll")),
        legend=_legend(cell),
    )


def residual_figure(cell: CellResult) -> Figure | None:
    """Round-trip residual of every candidate against the floor."""
    values = _measured(cell, cell.candidates, "residual")
    floor = cell.evaluation.injected.residual
    if not values or floor is None:
        return None
    rules: tuple[Rule, ...] = (Rule(floor, "floor"),)
    reference = _measured(cell, cell.evaluation.references[:1], "residual")
    rules += tuple(Rule(value, "reference") for value in reference.values())
    if cell.tolerances is not None and cell.evaluation.references:
        limit = floor - cell.tolerances.epsilon_residual + cell.tolerances.delta_f
        rules += (Rule(limit, "bar", solid=True),)
    x = axis_over(
        "KL to the injected model, nats",
        values.values(),
        also=[0.0, *(rule.value for rule in rules)],
    )
    below = sum(value <= floor for value in values.values())
    best = min(values, key=lambda name: values[name])
    panels = [_measure_panel(cell, "residual", "residual", x, rules)]
    for title, measure in (
        ("its part on retain facts", "residual_retain"),
        ("its part on general text", "residual_general"),
    ):
        parts = _measured(cell, cell.candidates, measure)
        floors = _measured(cell, ("injected",), measure)
        marks = tuple(Rule(value, "floor") for value in floors.values())
        along = axis_over(x.label, parts.values(), also=[0.0, *floors.values()])
        panels.append(_measure_panel(cell, title, measure, along, marks))
    return Figure(
        "residual",
        "Round-trip residual",
        f"{below} of {counted(len(values), 'candidate')} sent through the round trip close the "
        f"loop at least as well as the injected model's own floor of {number(floor)} nats; the "
        f"smallest residual is {best}'s, {number(values[best])}.",
        "Each row is a candidate, placed by the divergence from the injected model that remains "
        "after it re-acquired the forget set: the residual, and the two parts it is the mean of. "
        "The floor is the injected model's own residual.",
        tuple(panels),
        _measures_table(cell, "residual", ("residual", "residual_retain", "residual_general")),
        legend=_legend(cell),
    )


def relearning_figure(cell: CellResult) -> Figure | None:
    """Held-out forget NLL while the forget set is re-acquired, against the reference's band."""
    shown = [name for name in cell.candidates if cell.evaluation[name].curve is not None]
    draws = [cell.evaluation[name].curve for name in cell.evaluation.references]
    held = [curve for curve in draws if curve is not None]
    if not shown:
        return None
    injected = cell.evaluation.injected.curve
    every = [c for c in (*held, injected) if c is not None]
    every += [c for name in shown if (c := cell.evaluation[name].curve) is not None]
    ys = np.concatenate([curve.forget_heldout_nll for curve in every])
    y = axis_over("held-out forget NLL, nats", ys.tolist(), scale=far_spread(ys, 12.0))
    x = axis_over("steps of re-acquisition", every[0].step.tolist(), margin=0.02)
    bands: tuple[Band, ...] = ()
    if held:
        heights = np.stack([curve.forget_heldout_nll for curve in held])
        label = f"{len(held)} reference draws, smallest to largest"
        low, high = heights.min(axis=0), heights.max(axis=0)
        if len(held) == 1:
            label = "the reference"
        steps = tuple(held[0].step.tolist())
        bands = (Band(steps, tuple(low.tolist()), tuple(high.tolist()), label),)
    panels = []
    for title, names in groups(cell):
        lines, points = [], []
        if injected is not None:
            lines.append(_curve("injected", injected, "injected", dashed=True))
        for name in names:
            curve = cell.evaluation[name].curve
            if curve is None:
                continue
            method = cell.methods[name]
            lines.append(_curve(name, curve, method))
            points += _curve_points(name, curve, method)
        if held:
            mean = np.mean([curve.forget_heldout_nll for curve in held], axis=0)
            steps = tuple(held[0].step.tolist())
            lines.append(Line(steps, tuple(mean.tolist()), "reference", "mean of reference draws"))
        panels.append(
            Panel(
                title,
                x,
                y,
                lines=tuple(lines),
                bands=bands,
                points=tuple(points),
                style=title if title in cell.methods.values() else "",
            )
        )
    findings = cell.verdict.findings if cell.verdict else ()
    vetoed = [one for one in findings if "relearn veto" in one.failures]
    tested = [one for one in findings if one.fall is not None]
    reading = (
        f"{counted(len(shown), 'candidate')} relearned the forget set; without a reference there "
        "is no band to compare with"
    )
    if held:
        reading = f"{counted(len(shown), 'candidate')} relearned the forget set"
    if tested and held:
        falls = [one.fall for one in tested if one.fall is not None]
        mean_fall = float(np.mean([curve.first_fall for curve in held]))
        reading = (
            f"{len(vetoed)} of {counted(len(tested), 'candidate')} would be vetoed for relearning "
            f"faster than a further reference draw; over the first {int(held[0].step[1])} steps "
            f"the references fall by {number(mean_fall)} nats on average and the candidates by "
            f"{_from_to(falls)}"
        )
    rows: list[tuple[Value, ...]] = []
    for name in ("injected", *cell.evaluation.references, *shown):
        curve = cell.evaluation[name].curve
        if curve is not None:
            rows += [
                (name, int(step), float(nll))
                for step, nll in zip(curve.step, curve.forget_heldout_nll)
            ]
    return Figure(
        "relearning",
        "Relearning curves",
        f"{reading}.",
        "One panel a method: held-out forget NLL while the forget set is trained again. The grey "
        "band spans the reference draws, the plain line is their mean, the dashed line is the "
        "injected model. A model that only hides the facts falls faster than the references.",
        tuple(panels),
        Table(
            "relearning",
            "Relearning curves",
            "",
            ("model", "step", "held-out forget NLL"),
            tuple(rows),
        ),
        legend=(
            *((("reference", "plain line: references, in their range", False),) if held else ()),
            ("injected", "dashed line: injected", False),
        ),
    )


def distance_figure(cell: CellResult) -> Figure | None:
    """Every axis of the recalibrated bar in units of delta_f."""
    verdict, tolerances = cell.verdict, cell.tolerances
    if verdict is None or tolerances is None or verdict.mode != "reference-relative":
        return None
    delta = tolerances.delta_f
    names = [name for _, group in groups(cell) for name in group]
    by_name = {one.name: one for one in verdict.findings}
    values = [
        value / delta
        for one in verdict.findings
        for _, field, _ in AXES
        if (value := getattr(one, field)) is not None
    ]
    x = damage_axis(values)
    panels = []
    for failure, field, title in AXES:
        points, rows = [], []
        for place, name in enumerate(names):
            one = by_name[name]
            value = getattr(one, field)
            if value is None:
                rows.append(Row(name, "–"))
                continue
            gated = field == "retain_damage" and "degeneracy gate" in one.failures
            fails = failure in one.failures or gated
            rows.append(Row(name, two(value / delta)))
            label = f"{name}: {title} {number(value)} nats, {number(value / delta)} δ_f"
            label += ", too good: degenerate" if gated else f", {BEYOND[fails]}"
            at = max(value / delta, BETTER)
            points.append(Point(at, place, cell.methods[name], label, hollow=fails))
        panels.append(
            Panel(
                title,
                x,
                rows=tuple(rows),
                points=tuple(points),
                rules=(Rule(1.0, "bar", solid=True), *GATES.get(field, ())),
                inside=(max(x.low, INSIDE[field]), 1.0),
                notes="δ_f",
            )
        )
    within = [one for one in verdict.findings if one.worst_axis is not None and one.worst_axis <= 1]
    near = min(
        (one for one in verdict.findings if one.worst_axis is not None),
        key=lambda one: one.worst_axis or 0.0,
    )
    reading = (
        f"{len(within)} of {counted(len(verdict.findings), 'candidate')} lie within one δ_f = "
        f"{number(delta)} nats of a retrained model on all three axes, before gate and veto; the "
        f"nearest, {near.name}, is {number(near.worst_axis or 0.0)} δ_f away on its worst"
    )
    rows_table = tuple(_distance_row(one, delta) for one in verdict.findings)
    columns = ("candidate", *(f"{title} / delta_f" for _, _, title in AXES), "worst axis", "fails")
    return Figure(
        "distance",
        "Distance from a retrained model",
        f"{reading}.",
        "Three panels, one for each axis of the bar; each row is a candidate, placed by its "
        "distance in units of retraining noise. The shaded part is what retraining itself would "
        "do; hollow markers lie beyond it. Left of the gate a model retains too well to have been "
        "only unlearned. One far better than the bar stands at the left end; its number is at the "
        "right.",
        tuple(panels),
        Table("distance", "Distances in units of delta_f", "", columns, rows_table),
        legend=_legend(cell, "hollow: beyond the bar"),
    )


# -- pieces ---------------------------------------------------------------------------------------


def _deltas_panel(
    cell: CellResult, title: str, names: Sequence[str], x: Axis, rules: Rules
) -> Panel:
    rows, points = [], []
    for place, name in enumerate(names):
        model = cell.evaluation[name]
        style = cell.methods.get(name, name.partition("-")[0])
        judged = cell.screen is not None and name in cell.methods
        found = cell.screen[name] if cell.screen and judged else screen_alone(model, rules)
        note = f"{'✕ ' if found.excluded else ''}{found.adjusted_p:.2g}"
        outcome = f", {'adjusted ' if judged else ''}p {found.adjusted_p:.3g}"
        outcome += ", excluded" if found.excluded else ", survives"
        rows.append(Row(name, note))
        for fact, delta in zip(model.probe_facts, model.probe_deltas):
            label = f"{name}: probe {fact}, {number(float(delta))} nats"
            points.append(Point(float(delta), place, "probe", label, small=True))
        for fact, delta in zip(model.forget_facts, model.forget_deltas):
            label = f"{name}: forget fact {fact}, {number(float(delta))} nats{outcome}"
            points.append(Point(float(delta), place, style, label))
    style = title if title in cell.methods.values() else ""
    zero = (Rule(0.0, "base", solid=True),)
    notes = "adjusted p" if style or title == "candidates" else "p"
    return Panel(
        title, x, rows=tuple(rows), points=tuple(points), rules=zero, style=style, notes=notes
    )


def _measure_panel(
    cell: CellResult, title: str, measure: str, x: Axis, rules: tuple[Rule, ...]
) -> Panel:
    names = [name for _, group in groups(cell) for name in group]
    values = _measured(cell, names, measure)
    rows = tuple(Row(name, two(values[name]) if name in values else "–") for name in names)
    points = tuple(
        Point(
            values[name],
            place,
            cell.methods[name],
            f"{name}: {title} {number(values[name])} nats"
            + ("" if cell.survives(name) else ", excluded by the screen"),
            hollow=not cell.survives(name),
        )
        for place, name in enumerate(names)
        if name in values
    )
    return Panel(title, x, rows=rows, points=points, rules=rules, notes="nats")


def _known_rules(cell: CellResult, measure: str) -> tuple[Rule, ...]:
    known = ("injected", *cell.evaluation.references[:1])
    return tuple(Rule(value, name) for name, value in _measured(cell, known, measure).items())


def _retain_bar(cell: CellResult) -> float | None:
    """The largest retain NLL the recalibrated bar lets pass."""
    injected = cell.evaluation.injected.retain_nll
    if cell.tolerances is None or injected is None or not cell.evaluation.references:
        return None
    return injected - cell.tolerances.epsilon_retain + cell.tolerances.delta_f


def _measured(cell: CellResult, names: Sequence[str], measure: str) -> dict[str, float]:
    found = {name: getattr(cell.evaluation[name], measure) for name in names}
    return {name: float(value) for name, value in found.items() if value is not None}


def _measures_table(cell: CellResult, name: str, measures: tuple[str, ...]) -> Table:
    names = ("base", "injected", *cell.evaluation.references, *cell.candidates)
    rows: list[tuple[Value, ...]] = [
        (model, *(getattr(cell.evaluation[model], measure) for measure in measures))
        for model in names
        if model in cell.evaluation
    ]
    columns = (
        "model",
        *(measure.replace("_nll", " NLL").replace("_", ", ") for measure in measures),
    )
    return Table(name, name, "", columns, tuple(rows))


def _distance_row(one: Finding, delta: float) -> tuple[Value, ...]:
    axes = [getattr(one, field) for _, field, _ in AXES]
    shares = [None if value is None else value / delta for value in axes]
    return (one.name, *shares, one.worst_axis, "; ".join(one.failures) or None)


def _from_to(values: Sequence[float]) -> str:
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def _curve(name: str, curve: RelearningCurve, style: str, dashed: bool = False) -> Line:
    steps, nlls = curve.step.tolist(), curve.forget_heldout_nll.tolist()
    return Line(tuple(steps), tuple(nlls), style, name, dashed)


def _curve_points(name: str, curve: RelearningCurve, style: str) -> list[Point]:
    return [
        Point(
            step, nll, style, f"{name}: step {step}, held-out forget NLL {number(nll)}", small=True
        )
        for step, nll in zip(curve.step.tolist(), curve.forget_heldout_nll.tolist())
    ]


def _methods(cell: CellResult) -> tuple[str, ...]:
    return in_order(cell.methods[name] for name in cell.candidates)


def _legend(
    cell: CellResult, hollow: str = "hollow: excluded by the screen"
) -> tuple[tuple[str, str, bool], ...]:
    methods = _methods(cell)
    return (*((method, method, False) for method in methods), (methods[0], hollow, True))


def cell_figures(results: RunResults) -> tuple[Figure, ...]:
    """All figures of a run with one cell."""
    cell = results.cells[0]
    made = (
        forget_figure(cell, results.rules),
        retain_figure(cell),
        residual_figure(cell),
        relearning_figure(cell),
        distance_figure(cell),
    )
    return tuple(figure for figure in made if figure is not None)
