"""Every figure of a run with its words, in the order a reader needs them.

Drawing is done in ``plots/``: each figure is one function there that returns a matplotlib figure,
or a picture from the results themselves. A new figure is such a function, its line in
``all_figures`` and its title in ``template/words.toml``.
"""

import numpy as np
from numpy.typing import NDArray

from palimpsest.analysis.cost import cost_table, prices
from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.analysis.table import counted, listed
from palimpsest.criteria.axes import chosen
from palimpsest.criteria.controls import Control
from palimpsest.criteria.screen import screen_alone
from palimpsest.report.answer import acceptance_counts
from palimpsest.report.palette import MARKS, Style, in_order, styles
from palimpsest.report.plots import answer, cell_plots, matrix, paper
from palimpsest.report.plots.canvas import Picture
from palimpsest.report.positions import cell_axes, control_label, known, reference_distances
from palimpsest.report.tables import has_paper
from palimpsest.verdict import Finding

MOST_ROWS = 40
"""Rows of candidates that a figure of one cell shows; all are in the tables."""


def all_figures(results: RunResults) -> tuple[Picture, ...]:
    """Return the figures that this run has the numbers for."""
    if not any(cell.candidates for cell in results.cells):
        return ()
    single = (retrainings, forget_deltas, measures, relearning)
    many = (acceptance, axes_by_group, relearning_by_family)
    own = single if len(results.planned) == 1 else many
    last = (paper.diagnostic, paper.fewer_probes, paper.panel_acceptance)
    made = [draw(results) for draw in (*own, closeness, *(last if has_paper(results) else ()))]
    return tuple(picture for picture in made if picture is not None)


# -- one cell -------------------------------------------------------------------------------------


def retrainings(results: RunResults) -> Picture | None:
    """Return the picture of the verdict: one row per axis, the retrainings as a band."""
    (cell,) = results.cells
    references = reference_distances(cell, results.rules)
    verdict = cell.verdict
    if verdict is None or len(references) < results.rules.minimum_references:
        return None
    name = verdict.candidate or verdict.nearest
    compared = None if name is None else verdict.finding(name).comparison
    focus = None if name is None or compared is None else (name, known(compared))
    looks = styles(())
    shown = []
    for c in verdict.controls:
        if c.comparison is not None and c.kind in ("injected", "interpolation"):
            share = 1.0 if c.share is None else c.share
            text = "injected model" if c.share is None else control_label(cell, c)
            style = looks["injected" if c.share is None else "control"]
            size, models = 4.0 + 2.5 * share, {text: known(c.comparison)}
            shown.append(answer.Shown(text, style, models, size, hollow=share < 0.2))
    axes, held = cell_axes(cell, results.rules), list(references.values())
    certified = verdict.certified
    worst = None if compared is None else compared.worst.axis
    wide, narrow = (
        answer.retrainings(
            axes, held, shown, focus, certified=certified, worst=worst, narrow=narrow
        )
        for narrow in (False, True)
    )
    reading = f"{counted(len(held), 'retraining')} on {counted(len(axes), 'axis', 'axes')}."
    if focus is not None and compared is not None:
        outside = []
        for axis in axes:
            values = [z[axis.name] for z in held]
            if not min(values) <= focus[1].get(axis.name, values[0]) <= max(values):
                outside.append(axis.title)
        place = f"outside their range on {listed(outside)}" if outside else "within their range"
        reading = f"{name} lies {place} (p = {compared.p:.2g} over all axes)."
    return Picture("retrainings", reading, wide, narrow)


def forget_deltas(results: RunResults) -> Picture | None:
    """Return forget facts and probes of every candidate with the screen's p-value."""
    (cell,) = results.cells
    if cell.screen is None or cell.verdict is None:
        return None
    looks = styles(results.methods)
    names = [*cell.evaluation.of_role("injected"), *cell.evaluation.references[:3]]
    alone = {name: screen_alone(cell.evaluation[name], results.rules) for name in names}
    p_values = {name: passage.adjusted_p for name, passage in alone.items()}
    p_values |= {name: cell.screen[name].adjusted_p for name in cell.candidates}
    names += _rows(cell, results)
    excluded = [finding.name for finding in cell.verdict.findings if finding.excluded]
    reading = (
        f"The screen excludes {len(excluded)} of {counted(len(cell.candidates), 'candidate')}: "
        "their forget facts are known better than never-learned probes, beyond chance."
    )
    models = {name: cell.evaluation[name] for name in names}
    styled = {name: looks[_group(results, cell, name)] for name in names}
    figure = cell_plots.forget_deltas(models, styled, p_values, excluded)
    return Picture("forget-deltas", reading, figure)


def measures(results: RunResults) -> Picture | None:
    """Return every axis of one cell in its own unit."""
    (cell,) = results.cells
    axes = cell_axes(cell, results.rules) or chosen(results.rules)
    looks = styles(results.methods)
    names = _rows(cell, results)
    references = [cell.evaluation[name] for name in cell.evaluation.references]
    anchors = {name: cell.evaluation[name] for name in cell.evaluation.of_role("injected")}
    models = {name: cell.evaluation[name] for name in names}
    styled = {name: looks[_group(results, cell, name)] for name in names}
    reading = (
        f"{counted(len(names), 'candidate')} on {counted(len(axes), 'axis', 'axes')}, with the "
        f"range of {counted(len(references), 'retraining')}."
    )
    return Picture(
        "measures", reading, cell_plots.measures(axes, references, models, styled, anchors)
    )


def relearning(results: RunResults) -> Picture | None:
    """Return the relearning curves of one cell."""
    (cell,) = results.cells
    logged = {name: c for name in cell.evaluation if (c := cell.evaluation[name].curve) is not None}
    mine = {n: logged[n].forget_heldout_nll for n in _rows(cell, results) if n in logged}
    held = [logged[n].forget_heldout_nll for n in cell.evaluation.references if n in logged]
    injected = [logged[n].forget_heldout_nll for n in cell.evaluation.of_role("injected")]
    if not mine and not held:
        return None
    looks = styles(results.methods)
    styled = {name: looks[_group(results, cell, name)] for name in mine}
    steps = next(iter(logged.values())).step.tolist()
    part = cell_plots.Relearned(steps, mine, held, injected[0] if injected else None)
    figure = cell_plots.relearning({"": part}, styled, "held-out forget NLL, nats")
    reading = f"{counted(len(mine), 'candidate')} learned the forget facts again."
    if held and mine:
        last = min(float(values[-1]) for values in held)
        below = sum(float(values[-1]) < last for values in mine.values())
        reading = (
            f"{below} of {counted(len(mine), 'candidate')} end below every retraining: they "
            "relearn the forget facts further than a model that never knew them."
        )
    return Picture("relearning", reading, figure)


# -- many cells -----------------------------------------------------------------------------------


def groups(results: RunResults) -> dict[str, tuple[Style, list[matrix.Judged]]]:
    """Return every judged model of every cell, by kind: controls first, then methods."""
    looks = styles(results.methods)
    styled = {
        "retraining": (looks["retraining"], "fresh retrainings"),
        "reference": (looks["reference"], "each reference"),
        "injected": (looks["injected"], ""),
        "interpolation": (looks["control"], ""),
        "suppressor": (looks["challenge"], ""),
    }
    rows: dict[str, tuple[Style, list[matrix.Judged]]] = {}

    def add(row: str, style: Style, cell: CellResult, judged: Finding | Control) -> None:
        if judged.comparison is not None:
            z, accepted = known(judged.comparison), judged.comparison.accepted
            model = matrix.Judged(f"{judged.name} in {cell.id}", z, accepted)
            rows.setdefault(row, (style, []))[1].append(model)

    verdicts = [(cell, cell.verdict) for cell in results.cells if cell.verdict is not None]
    for kind, (style, words) in styled.items():
        for cell, verdict in verdicts:
            for control in verdict.controls:
                if control.kind == kind:
                    row = words or control_label(cell, control).replace("weights ", "")
                    add(row, style, cell, control)
    for method in in_order(results.methods):
        for cell, verdict in verdicts:
            for finding in verdict.findings:
                if cell.methods[finding.name] == method:
                    add(method, looks[method], cell, finding)
    return rows


def acceptance(results: RunResults) -> Picture | None:
    """Return how far every kind of model lies from retraining, over all cells."""
    rows = groups(results)
    if not rows:
        return None
    divide = sum(row not in results.methods for row in rows)
    wide, narrow = (
        matrix.acceptance(rows, results.rules.alpha, divide=divide, narrow=narrow)
        for narrow in (False, True)
    )
    return Picture("acceptance", _acceptance_reading(results), wide, narrow)


def _acceptance_reading(results: RunResults) -> str:
    verdicts = [cell.verdict for cell in results.cells if cell.verdict is not None]
    controls = tuple(control for verdict in verdicts for control in verdict.controls)
    findings = [finding for verdict in verdicts for finding in verdict.findings]
    accepted = sum(bool(f.comparison and f.comparison.accepted) for f in findings)
    parts = [f"{counts} {words}" for counts, words in acceptance_counts(controls)]
    parts.append(f"{accepted} of {len(findings)} candidates accepted")
    return f"As one more retraining: {listed(parts)}."


def axes_by_group(results: RunResults) -> Picture | None:
    """Return every axis over all cells."""
    rows = groups(results)
    if not rows:
        return None
    reading = (
        f"{sum(len(models) for _, models in rows.values())} models in "
        f"{counted(len(results.cells), 'cell')}, in standard deviations of retraining."
    )
    return Picture("axes", reading, matrix.axes_by_group(chosen(results.rules), rows))


def relearning_by_family(results: RunResults) -> Picture | None:
    """Return median relearning curves by family and method."""
    curves: dict[str, dict[str, list[NDArray[np.float64]]]] = {}
    order = ["reference", "injected", *in_order(results.methods)]
    steps: list[int] = []
    for cell in results.cells:
        base = cell.evaluation.models.get("base")
        for name in cell.evaluation:
            curve, group = cell.evaluation[name].curve, _group(results, cell, name)
            if curve is None or base is None or group not in order:
                continue
            steps = steps or curve.step.tolist()
            if curve.step.tolist() == steps:
                mine = curves.setdefault(cell.family, {}).setdefault(group, [])
                mine.append(curve.forget_heldout_nll - base.forget_nll)
    if not curves:
        return None
    parts = {
        family: cell_plots.Relearned(
            steps,
            {name: np.median(curves_of[name], axis=0) for name in order[2:] if name in curves_of},
            curves_of.get("reference", ()),
            np.median(curves_of["injected"], axis=0) if "injected" in curves_of else None,
        )
        for family, curves_of in curves.items()
    }
    label = "held-out forget NLL − base's, nats"
    figure = cell_plots.relearning(parts, styles(results.methods), label)
    reading = f"Median curves of each method in {counted(len(parts), 'family', 'families')}."
    return Picture("relearning", reading, figure)


def closeness(results: RunResults) -> Picture | None:
    """Return how near to retraining every candidate comes, against its cost."""
    priced = prices(results)
    if not priced:
        return None
    verdicts = [cell.verdict for cell in results.cells if cell.verdict is not None]
    distances = [
        abs(control.comparison.worst.sd)
        for verdict in verdicts
        for control in verdict.controls
        if control.expected == "accept"
        and control.comparison is not None
        and control.comparison.worst.sd is not None
    ]
    usual = float(np.median(distances)) if distances else None
    figure = matrix.closeness(priced, styles(results.methods), usual)
    return Picture("cost", cost_table(results).reading, figure)


# -- pieces ---------------------------------------------------------------------------------------


def _group(results: RunResults, cell: CellResult, name: str) -> str:
    """Return the style of a model: its method, or its role; an audit's candidates have no method
    and are each its own, unless they are too many for a marker each."""
    role = cell.roles.get(name, {})
    if role.get("role") != "candidate":
        return str(role.get("role", ""))
    if not role.get("method") and len(results.methods) > MARKS:
        return "candidate"
    return cell.methods[name]


def _rows(cell: CellResult, results: RunResults) -> list[str]:
    """Return the candidates in the order of the palette, as many as a figure shows."""
    order, methods = in_order(results.methods), cell.methods
    return sorted(cell.candidates, key=lambda name: order.index(methods[name]))[:MOST_ROWS]
