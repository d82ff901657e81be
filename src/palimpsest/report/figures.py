"""Every figure of a run with its words, in the order a reader needs them.

Drawing is done in ``plots/``: each figure is one function there that returns a matplotlib figure.
A new figure is such a function and one function here that gives it a title, a sentence computed
from the numbers, and the table that holds its data.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from palimpsest.analysis import panel, trained_probe
from palimpsest.analysis.replication import replication_intervals
from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.analysis.subpanels import sub_panels
from palimpsest.criteria.axes import chosen
from palimpsest.criteria.screen import screen_alone
from palimpsest.report.bar_tables import BATTERIES, entries, panel_table
from palimpsest.report.formats import Share, counted, listed, number
from palimpsest.report.palette import MARKS, Style, in_order, styles
from palimpsest.report.paper_tables import matched_sentence
from palimpsest.report.plots import answer, cell, matrix, paper
from palimpsest.report.positions import (
    cell_axes,
    control_label,
    known,
    reference_distances,
)

MOST_ROWS = 40
"""Rows of candidates that a figure of one cell shows; all are in the tables."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure with its words."""

    name: str
    """File name without ending."""
    title: str
    reading: str
    """One sentence computed from the numbers."""
    alt: str
    """What is drawn, for somebody who does not see it."""
    data: str
    """The name of the table that holds its numbers."""
    figure: Figure
    narrow: Figure | None = None
    """The same for a phone."""


def all_figures(results: RunResults) -> tuple[Picture, ...]:
    """Return the figures that this run has the numbers for."""
    if not any(one.candidates for one in results.cells):
        return ()
    own = (
        (retrainings, forget_deltas, measures, relearning)
        if len(results.planned) == 1
        else (acceptance, axes_by_group, relearning_by_family)
    )
    shared = (diagnostic, fewer_probes, replication_noise, panel_acceptance)
    made = [draw(results) for draw in (*own, *shared)]
    return tuple(picture for picture in made if picture is not None)


# -- one cell -------------------------------------------------------------------------------------


def retrainings(results: RunResults) -> Picture | None:
    """Return the picture of the verdict: one row per axis, the retrainings as a band."""
    (one,) = results.cells
    references = reference_distances(one, results.rules)
    verdict = one.verdict
    if verdict is None or len(references) < results.rules.minimum_references:
        return None
    name = verdict.candidate or verdict.nearest
    compared = None if name is None else verdict.finding(name).comparison
    focus = None if name is None or compared is None else (name, known(compared))
    worst = None if compared is None else compared.worst.axis
    looks = styles(())
    shown = [
        answer.Shown("injected model", looks["injected"], {c.name: known(c.comparison)}, 6.5)
        for c in verdict.controls
        if c.kind == "injected" and c.comparison is not None
    ]
    for c in verdict.controls:
        if c.kind == "interpolation" and c.comparison is not None and c.share is not None:
            text, size = control_label(one, c), 4.2 + 3 * c.share
            models = {text: known(c.comparison)}
            shown.append(answer.Shown(text, looks["control"], models, size, hollow=c.share < 0.2))
    axes = cell_axes(one, results.rules)
    held = list(references.values())

    def draw(narrow: bool) -> Figure:
        return answer.retrainings(
            *(axes, held, shown, focus),
            certified=verdict.certified,
            worst=worst,
            narrow=narrow,
        )

    reading = f"{counted(len(held), 'retraining')} on {counted(len(axes), 'axis', 'axes')}."
    if focus is not None and compared is not None:
        outside = [
            axis.title
            for axis in axes
            if axis.name in focus[1]
            and not min(z[axis.name] for z in held)
            <= focus[1][axis.name]
            <= max(z[axis.name] for z in held)
        ]
        place = f"outside their range on {listed(outside)}" if outside else "within their range"
        reading = f"{name} lies {place} (p = {compared.p:.2g} over all axes)."
    return Picture(
        "retrainings",
        "The candidate among the retrainings" if focus else "The retrainings",
        reading,
        "Each row is one axis. Grey dots are the retrainings, their range is shaded; the line "
        "joins the values of one candidate, and its worst axis is highlighted. Squares are the "
        "injected model, thin diamonds the controls that keep a share of its weights. Distances "
        "are in standard deviations of the retrainings, linear up to 3 and logarithmic beyond; "
        "arrows point to models further out.",
        "positions",
        draw(False),
        draw(True),
    )


def forget_deltas(results: RunResults) -> Picture | None:
    """Return forget facts and probes of every candidate with the screen's p-value."""
    (one,) = results.cells
    if one.screen is None or one.verdict is None:
        return None
    looks = _looks(results)
    names = [*one.evaluation.of_role("injected"), *one.evaluation.references[:3]]
    p_values = {
        name: screen_alone(one.evaluation[name], results.rules).adjusted_p for name in names
    }
    p_values |= {name: one.screen[name].adjusted_p for name in one.candidates}
    names += _rows(one, results)
    excluded = [finding.name for finding in one.verdict.findings if finding.excluded]
    reading = (
        f"The screen excludes {len(excluded)} of {counted(len(one.candidates), 'candidate')}: "
        "their forget facts are known better than never-learned probes, beyond chance."
    )
    figure = cell.forget_deltas(
        {name: one.evaluation[name] for name in names},
        {name: looks[_group(results, one, name)] for name in names},
        p_values,
        excluded,
    )
    return Picture(
        "forget-deltas",
        "Forget facts and never-learned probes",
        reading,
        "Each row is a model. Large markers are its forget facts, thin ticks its probes, placed by "
        "held-out NLL minus base's. At the right the p-value of the screen, Holm-corrected for "
        "candidates; a cross marks those it excludes.",
        "forget-deltas",
        figure,
    )


def measures(results: RunResults) -> Picture | None:
    """Return every axis of one cell in its own unit."""
    (one,) = results.cells
    axes = cell_axes(one, results.rules) or chosen(results.rules)
    looks = _looks(results)
    names = _rows(one, results)
    references = [one.evaluation[name] for name in one.evaluation.references]
    anchors = {
        name: one.evaluation[name] for name in one.evaluation.of_role("injected")
    }
    figure = cell.measures(
        axes,
        references,
        {name: one.evaluation[name] for name in names},
        {name: looks[_group(results, one, name)] for name in names},
        anchors,
    )
    return Picture(
        "measures",
        "Every axis in its own unit",
        f"{counted(len(names), 'candidate')} on {counted(len(axes), 'axis', 'axes')}, with the "
        f"range of {counted(len(references), 'retraining')}.",
        "One panel per axis and one row per candidate. The shaded part is the range of the "
        "retrainings, the dashed line the injected model; at the right the value.",
        "positions",
        figure,
    )


def relearning(results: RunResults) -> Picture | None:
    """Return the relearning curves of one cell."""
    (one,) = results.cells

    mine = {n: c for n in _rows(one, results) if (c := one.evaluation[n].curve) is not None}
    held = [c for n in one.evaluation.references if (c := one.evaluation[n].curve) is not None]
    injected = [c for n in one.evaluation.of_role("injected") if (c := one.evaluation[n].curve)]
    if not mine and not held:
        return None
    looks = _looks(results)
    figure = cell.relearning(
        mine,
        {name: looks[_group(results, one, name)] for name in mine},
        held,
        injected[0] if injected else None,
    )
    reading = f"{counted(len(mine), 'candidate')} learned the forget facts again."
    if held and mine:
        last = [float(curve.forget_heldout_nll[-1]) for curve in held]
        below = sum(float(c.forget_heldout_nll[-1]) < min(last) for c in mine.values())
        reading = (
            f"{below} of {counted(len(mine), 'candidate')} end below every retraining: they "
            "relearn the forget facts further than a model that never knew them."
        )
    return Picture(
        "relearning",
        "Relearning the forget facts",
        reading,
        "Held-out forget NLL while the forget facts are trained again. The band is the range of "
        "the retrainings, the grey line their mean, the dashed line the injected model. A model "
        "that only hides the facts falls faster than the retrainings.",
        "relearning",
        figure,
    )


# -- many cells -----------------------------------------------------------------------------------


def groups(results: RunResults) -> dict[str, tuple[Style, list[matrix.Judged]]]:
    """Return every judged model of every cell, by kind: controls first, then methods."""
    looks = _looks(results)
    styled = {
        "retraining": looks["retraining"],
        "reference": looks["reference"],
        "injected": looks["injected"],
        "interpolation": looks["control"],
        "suppressor": looks["challenge"],
    }
    found: dict[str, tuple[Style, list[matrix.Judged]]] = {}

    def add(row: str, style: Style, one: CellResult, judged: object) -> None:
        comparison = getattr(judged, "comparison", None)
        if comparison is not None:
            name = f"{getattr(judged, 'name', '')} in {one.id}"
            model = matrix.Judged(name, known(comparison), comparison.accepted)
            found.setdefault(row, (style, []))[1].append(model)

    for kind, style in styled.items():
        for one in results.cells:
            for control in () if one.verdict is None else one.verdict.controls:
                if control.kind == kind:
                    words = {"retraining": "fresh retrainings", "reference": "references, left out"}
                    add(words.get(kind) or control_label(one, control), style, one, control)
    for method in in_order(results.methods):
        for one in results.cells:
            for finding in () if one.verdict is None else one.verdict.findings:
                if one.methods[finding.name] == method:
                    add(method, looks[method], one, finding)
    return found


def acceptance(results: RunResults) -> Picture | None:
    """Return how far every kind of model lies from retraining, over all cells."""
    found = groups(results)
    if not found:
        return None
    alpha = results.rules.alpha
    return Picture(
        "acceptance",
        "Which models pass for a retraining",
        _acceptance_reading(results),
        "Each row is a kind of model and each marker one model in one cell, placed by its largest "
        "distance from the mean retraining on any axis. Filled markers are accepted as one more "
        "retraining, hollow ones rejected; at the right how many are accepted.",
        "positions",
        matrix.acceptance(found, alpha),
        matrix.acceptance(found, alpha, narrow=True),
    )


def _acceptance_reading(results: RunResults) -> str:
    judged = [
        control
        for one in results.cells
        if one.verdict is not None
        for control in one.verdict.controls
        if control.comparison is not None
    ]
    parts = []
    for expected, verb, what in (("accept", "accepted", "retrainings"), ("reject", "rejected",
                                 "models known to keep knowledge")):  # fmt: skip
        mine = [one for one in judged if one.expected == expected]
        if mine:
            right = sum(bool(one.as_expected) for one in mine)
            parts.append(f"{right} of {len(mine)} {what} are {verb}")
    findings = [f for one in results.cells if one.verdict for f in one.verdict.findings]
    accepted = sum(bool(one.comparison and one.comparison.accepted) for one in findings)
    parts.append(f"{accepted} of {len(findings)} candidates cannot be told from a retraining")
    return f"{listed(parts)}."


def axes_by_group(results: RunResults) -> Picture | None:
    """Return every axis over all cells."""
    found = groups(results)
    if not found:
        return None
    axes = chosen(results.rules)
    return Picture(
        "axes",
        "Every axis, over all cells",
        f"{sum(len(models) for _, models in found.values())} models in "
        f"{counted(len(results.cells), 'cell')}, in standard deviations of retraining.",
        "One panel per axis and one row per kind of model; each marker is a model in one cell. "
        "The shaded part is within two standard deviations of the mean retraining.",
        "positions",
        matrix.axes_by_group(axes, found),
    )


def relearning_by_family(results: RunResults) -> Picture | None:
    """Return median relearning curves by family and method."""
    curves: dict[str, dict[str, list[NDArray[np.float64]]]] = {}
    steps: list[int] = []
    for one in results.cells:
        base = one.evaluation.models.get("base")
        for name in one.evaluation:
            curve = one.evaluation[name].curve
            group = _group(results, one, name)
            if curve is None or base is None or group not in ("reference", "injected", *results.methods):
                continue
            steps = steps or curve.step.tolist()
            if curve.step.tolist() == steps:
                mine = curves.setdefault(one.family, {}).setdefault(group, [])
                mine.append(curve.forget_heldout_nll - base.forget_nll)
    if not curves:
        return None
    order = ["reference", "injected", *in_order(results.methods)]
    stacked = {
        family: {name: np.stack(found[name]) for name in order if name in found}
        for family, found in curves.items()
    }
    return Picture(
        "relearning",
        "Relearning by family",
        f"Median curves of {counted(len(stacked), 'family', 'families')}.",
        "Held-out forget NLL, from base, while the forget facts are trained again: the median of "
        "each method. The band is the range of all retrainings of the family, the grey line their "
        "median, the dashed line the injected models'.",
        "relearning",
        matrix.relearning_by_family(stacked, steps, _looks(results)),
    )


# -- the paper's edition --------------------------------------------------------------------------


def diagnostic(results: RunResults) -> Picture | None:
    """Return the paper's first figure."""
    for one, name in results.candidates():
        if not one.evaluation.references or one.evaluation[name].oracle_kl is None:
            return None
        if one.evaluation[name].retain_nll is None:
            return None
    points = trained_probe.diagnostic(results)
    looks = _looks(results)
    ordered = {name: looks[name] for name in in_order(results.methods)}
    return Picture(
        "diagnostic",
        "Forgetting against closeness to the reference",
        matched_sentence(points),
        "Each marker is a candidate. Further right it forgets more; lower it answers trained "
        "questions more like the reference. The vertical line is the reference's own held-out "
        "forget NLL.",
        "diagnostic-points",
        paper.diagnostic(points, ordered),
    )


def fewer_probes(results: RunResults) -> Picture | None:
    """Return how many candidates the screen excludes with fewer probes."""
    found = sub_panels(results)
    if not found:
        return None
    last = found[-1]
    vacuous = [one.probes for one in found if one.vacuous]
    reading = f"With {last.probes} probes the screen excludes {last.excluded} of {last.candidates}"
    reading += f"; with {max(vacuous)} or fewer it can exclude none." if vacuous else "."
    return Picture(
        "probes",
        "The screen with fewer probes",
        reading,
        "How many candidates the screen excludes as the number of never-learned probes grows; "
        "hollow markers are numbers of probes with which it cannot exclude any.",
        "sub-panels",
        paper.fewer_probes(found),
    )


def replication_noise(results: RunResults) -> Picture | None:
    """Return the tolerances of the paper's edition by family."""
    if not results.replication:
        return None
    found = {f: replication_intervals(r, results.rules) for f, r in results.replication.items()}
    parts = {
        "δ_f, held-out forget": {family: one.delta_f for family, one in found.items()},
        "ε_f, retain NLL": {family: one.epsilon_retain for family, one in found.items()},
        "ε_f, residual": {family: one.epsilon_residual for family, one in found.items()},
    }
    deltas = [one.delta_f.estimate for one in found.values()]
    return Picture(
        "replication",
        "Replication noise of the reference",
        f"Retraining moves a held-out forget fact by {number(min(deltas))} to "
        f"{number(max(deltas))} nats at percentile {results.rules.tolerance_percentile:g}.",
        "Each row is a model family; the marker is the tolerance measured on independent "
        "retrainings, the line its bootstrap interval.",
        "replication",
        paper.replication_noise(parts),
    )


def panel_acceptance(results: RunResults) -> Picture | None:
    """Return the share of cells in which the paper's batteries accept each known-label model."""
    judged = panel.challenge_panel(results)
    if not judged or len(results.cells) < 2:
        return None
    short = entries(results)
    parts: dict[str, Mapping[str, Share | None]] = {}
    for axis in ("screen", "forward", "relearning"):
        shares: dict[str, Share | None] = {}
        for name in panel.challenges(judged):
            one = panel.acceptance(judged, results, name, axis)
            shares[short.get(name, name)] = Share(one.count, one.total) if one.total else None
        if any(shares.values()):
            parts[BATTERIES[axis]] = shares
    return Picture(
        "panel",
        "Known-label models under the paper's batteries",
        panel_table(results).reading,
        "Each row is a model whose truth is known, placed by the share of cells in which the "
        "battery accepts it. Only the reference should be accepted.",
        "panel",
        paper.panel_acceptance(parts),
    )


# -- pieces ---------------------------------------------------------------------------------------


def _looks(results: RunResults) -> dict[str, Style]:
    return styles(results.methods)


def _group(results: RunResults, one: CellResult, name: str) -> str:
    """Return the style of a model: its method, or its role; an audit's candidates have no method
    and are each its own, unless they are too many for a marker each."""
    role = one.roles.get(name, {})
    if role.get("role") != "candidate":
        return str(role.get("role", ""))
    if not role.get("method") and len(results.methods) > MARKS:
        return "candidate"
    return one.methods[name]


def _rows(one: CellResult, results: RunResults) -> list[str]:
    """Return the candidates in the order of the palette, as many as a figure shows."""
    order = in_order(results.methods)
    ranked = sorted(one.candidates, key=lambda name: order.index(one.methods[name]))
    return ranked[:MOST_ROWS]
