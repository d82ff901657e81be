"""What unlearning cost every candidate: retain facts, general text, and the round trip."""

from collections.abc import Sequence

from palimpsest.report.formats import Table, Value, counted, number
from palimpsest.report.plots.cell.shared import hollow_legend, listed
from palimpsest.report.plots.spec import Axis, Figure, Panel, Point, Row, Rule, axis_over, two
from palimpsest.study.results import CellResult


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
        known = _measured(cell, ("injected", *cell.evaluation.references[:1]), measure)
        rules = tuple(Rule(value, name) for name, value in known.items())
        if measure == "retain_nll" and bar is not None:
            rules += (Rule(bar, "bar", solid=True),)
        also = [rule.value for rule in rules]
        x = axis_over(f"NLL of {title}, nats", values.values(), also=also)
        panels.append(_panel(cell, title, measure, x, rules))
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
        _table(cell, "retain", ("retain_nll", "general_nll")),
        legend=hollow_legend(cell),
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
    panels = [_panel(cell, "residual", "residual", x, rules)]
    for title, measure in (
        ("its part on retain facts", "residual_retain"),
        ("its part on general text", "residual_general"),
    ):
        parts = _measured(cell, cell.candidates, measure)
        floors = _measured(cell, ("injected",), measure)
        marks = tuple(Rule(value, "floor") for value in floors.values())
        along = axis_over(x.label, parts.values(), also=[0.0, *floors.values()])
        panels.append(_panel(cell, title, measure, along, marks))
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
        _table(cell, "residual", ("residual", "residual_retain", "residual_general")),
        legend=hollow_legend(cell),
    )


def _retain_bar(cell: CellResult) -> float | None:
    """The largest retain NLL the recalibrated bar lets pass."""
    injected = cell.evaluation.injected.retain_nll
    if cell.tolerances is None or injected is None or not cell.evaluation.references:
        return None
    return injected - cell.tolerances.epsilon_retain + cell.tolerances.delta_f


def _measured(cell: CellResult, names: Sequence[str], measure: str) -> dict[str, float]:
    found = {name: getattr(cell.evaluation[name], measure) for name in names}
    return {name: float(value) for name, value in found.items() if value is not None}


def _panel(cell: CellResult, title: str, measure: str, x: Axis, rules: tuple[Rule, ...]) -> Panel:
    names = listed(cell)
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


def _table(cell: CellResult, name: str, measures: tuple[str, ...]) -> Table:
    names = ("base", "injected", *cell.evaluation.references, *cell.candidates)
    rows: list[tuple[Value, ...]] = [
        (model, *(getattr(cell.evaluation[model], measure) for measure in measures))
        for model in names
        if model in cell.evaluation
    ]
    titles = (measure.replace("_nll", " NLL").replace("_", ", ") for measure in measures)
    return Table(name, name, "", ("model", *titles), tuple(rows))
