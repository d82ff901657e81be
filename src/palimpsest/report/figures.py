"""Every figure of a run with its words, in the order a reader needs them.

Drawing is done in ``plots/``. A new figure is one function from the results to a picture, its line
in ``all_figures`` and its title in ``template/words.toml``.
"""

from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.analysis.table import counted, listed
from palimpsest.criteria.axes import chosen
from palimpsest.criteria.controls import Control
from palimpsest.report.answer import acceptance_counts
from palimpsest.report.palette import Style, in_order, styles
from palimpsest.report.plots import answer, matrix
from palimpsest.report.plots.canvas import Picture
from palimpsest.report.plots.cell_plots import (
    forget_deltas,
    measures,
    relearning,
    relearning_by_family,
)
from palimpsest.report.plots.matrix import closeness
from palimpsest.report.plots.paper import diagnostic, fewer_probes, panel_acceptance
from palimpsest.report.positions import cell_axes, control_label, known, reference_distances
from palimpsest.report.tables import has_paper
from palimpsest.verdict import Finding


def all_figures(results: RunResults) -> tuple[Picture, ...]:
    """Return the figures that this run has the numbers for."""
    if not any(cell.candidates for cell in results.cells):
        return ()
    single = (retrainings, forget_deltas, measures, relearning)
    many = (acceptance, axes_by_group, relearning_by_family)
    own = single if len(results.planned) == 1 else many
    last = (diagnostic, fewer_probes, panel_acceptance) if has_paper(results) else ()
    made = [draw(results) for draw in (*own, closeness, *last)]
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

    for kind, (style, words) in styled.items():
        for cell, verdict in results.judged:
            for control in verdict.controls:
                if control.kind == kind:
                    row = words or control_label(cell, control).replace("weights ", "")
                    add(row, style, cell, control)
    for method in in_order(results.methods):
        for cell, verdict in results.judged:
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
    verdicts = [verdict for _, verdict in results.judged]
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
