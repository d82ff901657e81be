"""Figures that every run has, of one cell or many: the diagnostic, and the instrument itself."""

import numpy as np

from palimpsest.report.formats import Table, Value, number
from palimpsest.report.palette import in_order
from palimpsest.report.plots.spec import (
    Axis,
    Figure,
    Line,
    Panel,
    Point,
    Row,
    Rule,
    axis_over,
    two,
)
from palimpsest.study import panel as sealed
from palimpsest.study.replication import replication_intervals
from palimpsest.study.results import RunResults
from palimpsest.study.subpanels import sub_panels
from palimpsest.study.trained_probe import Point as Candidate
from palimpsest.study.trained_probe import diagnostic, matched_forgetting

BATTERIES = (
    ("screen", "screen alone"),
    ("forward", "forward battery"),
    ("relearning", "with round trip and veto"),
)


def diagnostic_figure(results: RunResults) -> Figure | None:
    """The paper's first figure: oracle-KL against held-out forget NLL, all candidates by method."""
    candidates = _diagnosed(results)
    if not candidates:
        return None
    forget = [one.forget_nll for one in candidates]
    wide = min(forget) > 0 and max(forget) > max(12, 4 * min(forget))
    scale = "log" if wide else "linear"
    levels = [one.reference_forget_nll for one in candidates]
    level = float(np.median(levels))
    x = axis_over("held-out forget NLL, nats", forget, also=(level,), scale=scale)
    kl = [one.oracle_kl for one in candidates]
    log = min(kl) > 0 and max(kl) > 20 * min(kl)
    y = axis_over(
        "trained-probe KL to the reference, nats",
        kl,
        also=() if log else (0.0,),
        scale="log" if log else "linear",
    )
    methods = in_order(one.method for one in candidates)
    order = sorted(candidates, key=lambda one: methods.index(one.method))
    points = tuple(
        Point(
            one.forget_nll,
            one.oracle_kl,
            one.method,
            f"{one.candidate} in {one.cell}: held-out forget NLL {number(one.forget_nll)}, "
            f"oracle-KL {number(one.oracle_kl)}, retain NLL {number(one.retain_nll)}",
            small=len(candidates) > 100,
        )
        for one in order
    )
    name = "reference" if len(set(levels)) == 1 else "median reference"
    matched = matched_forgetting(candidates)
    if matched.restoration is None or matched.suppression is None:
        medians = {
            method: float(np.median([one.oracle_kl for one in candidates if one.method == method]))
            for method in methods
        }
        told = ", ".join(f"{method} {number(value)}" for method, value in medians.items())
        reading = f"Median trained-probe KL to the reference by method: {told}."
    else:
        reading = (
            f"Where a restoring and a suppressing candidate forget alike ({matched.pairs} pairs), "
            f"the median KL to the reference is {number(matched.restoration)} nats for restoration "
            f"and {number(matched.suppression)} for suppression."
        )
    rows: list[tuple[Value, ...]] = [
        (one.cell, one.candidate, one.method, one.forget_nll, one.oracle_kl, one.retain_nll)
        for one in candidates
    ]
    columns: tuple[str, ...] = ("cell", "candidate", "method", "held-out forget NLL", "oracle-KL")
    return Figure(
        "diagnostic",
        "Forgetting against closeness to the reference",
        reading,
        "Each marker is a candidate. Further right it forgets more, lower it answers the trained "
        "probes more like the matched retraining reference. The vertical line is the reference's "
        "own held-out forget NLL.",
        (Panel("", x, y, points=points, rules=(Rule(level, name),)),),
        Table("diagnostic", "Diagnostic", "", (*columns, "retain NLL"), tuple(rows)),
        legend=tuple((method, method, False) for method in methods),
        wide=True,
    )


def probes_figure(results: RunResults) -> Figure | None:
    """How many candidates the screen excludes with fewer probes."""
    found = sub_panels(results)
    if not found:
        return None
    x = axis_over("never-learned probes", [0.0, *(one.probes for one in found)], margin=0.02)
    most = max(one.candidates for one in found)
    y = Axis("excluded candidates", 0.0, most * 1.05)
    points = tuple(
        Point(
            one.probes,
            one.excluded,
            "injected",
            f"{one.probes} probes: {one.excluded} of {one.candidates} candidates excluded, "
            f"smallest p {one.smallest_p:.3g}; the screen can exclude somebody in "
            f"{one.certifiable} of {one.cells} cells",
            hollow=one.vacuous,
        )
        for one in found
    )
    line = Line(
        tuple(float(one.probes) for one in found),
        tuple(float(one.excluded) for one in found),
        "injected",
        "excluded candidates",
    )
    vacuous = [one.probes for one in found if one.vacuous]
    last = found[-1]
    reading = f"With {last.probes} probes the screen excludes {last.excluded} of {last.candidates}"
    reading += (
        f" candidates; with {max(vacuous)} or fewer it could exclude nobody, whatever they knew"
        if vacuous
        else " candidates"
    )
    bounds = [cell.screen.bound for cell in results.cells if cell.screen is not None]
    least = min(bounds, key=lambda bound: bound.arrangements / bound.required)
    reading += (
        f": {least.forget} forget facts among {least.probes} probes can be arranged in "
        f"{least.arrangements:,} ways, and {least.candidates} candidates need {least.required:,}."
    )
    rows: list[tuple[Value, ...]] = [
        (one.probes, one.certifiable, one.cells, one.excluded, one.candidates, one.smallest_p)
        for one in found
    ]
    columns = ("probes", "cells that can exclude", "cells", "excluded", "candidates", "smallest p")
    return Figure(
        "probes",
        "The screen with fewer probes",
        reading,
        "How many candidates the screen excludes as the number of never-learned probes grows; "
        "hollow markers are panels too small to exclude anybody.",
        (Panel("", x, y, points=points, lines=(line,)),),
        Table("probes", "The screen with fewer probes", "", columns, tuple(rows)),
        legend=(
            ("injected", "can exclude", False),
            ("injected", "too few probes to exclude anybody", True),
        ),
    )


def replication_figure(results: RunResults) -> Figure | None:
    """delta_f and epsilon_f of each family, with their intervals."""
    if not results.replication:
        return None
    found = {
        family: replication_intervals(one, results.rules)
        for family, one in results.replication.items()
    }
    parts = (
        ("δ_f, held-out forget", "delta_f"),
        ("ε_f, retain NLL", "epsilon_retain"),
        ("ε_f, residual", "epsilon_residual"),
    )
    panels = []
    for title, field in parts:
        values = {family: getattr(one, field) for family, one in found.items()}
        ends = [end for one in values.values() for end in (one.low, one.high, one.estimate)]
        x = axis_over("nats", ends, also=(0.0,))
        points, lines = [], []
        for place, (family, one) in enumerate(values.items()):
            label = (
                f"{family}: {title} {number(one.estimate)} nats, {one.confidence:.0%} interval "
                f"{number(one.low)} to {number(one.high)}"
            )
            points.append(Point(one.estimate, place, "reference", label))
            lines.append(Line((one.low, one.high), (place, place), "reference", label))
        rows = tuple(Row(family, two(one.estimate)) for family, one in values.items())
        panels.append(Panel(title, x, rows=rows, points=tuple(points), lines=tuple(lines)))
    deltas = {family: one.delta_f.estimate for family, one in found.items()}
    least, most = min(deltas, key=lambda f: deltas[f]), max(deltas, key=lambda f: deltas[f])
    draws = sum(
        draws.tolerances.draws for one in results.replication.values() for draws in one.cells
    )
    if len(deltas) == 1:
        reading = (
            f"Independent retrainings ({draws} draws) move a held-out forget fact by "
            f"{number(deltas[least])} nats at percentile {results.rules.tolerance_percentile:g}; "
            "this is the unit of every distance above."
        )
    else:
        reading = (
            f"Retraining noise differs between families: from {number(deltas[least])} nats in "
            f"{least} to {number(deltas[most])} in {most} ({draws} draws)."
        )
    table_rows: list[tuple[Value, ...]] = []
    for family, intervals in found.items():
        for title, field in parts:
            one = getattr(intervals, field)
            table_rows.append((family, title, one.estimate, one.low, one.high))
    return Figure(
        "replication",
        "Replication noise of the reference",
        reading,
        "Each row is a model family; the marker is the tolerance measured on independent "
        "retrainings of the reference, the line its bootstrap interval.",
        tuple(panels),
        Table(
            "replication",
            "Replication noise",
            "",
            ("family", "tolerance", "estimate", "low", "high"),
            tuple(table_rows),
        ),
    )


def panel_figure(results: RunResults) -> Figure | None:
    """Share of cells that accept each known-label model, battery by battery."""
    rows_found = sealed.challenge_panel(results)
    if not rows_found or len(results.cells) < 2:
        return None
    names = sealed.challenges(rows_found)
    x = Axis("share of cells that accept", 0.0, 1.0)
    panels, told = [], []
    table_rows: list[tuple[Value, ...]] = []
    for axis, title in BATTERIES:
        points, rows = [], []
        for place, name in enumerate(names):
            one = sealed.acceptance(rows_found, results, name, axis)
            short = name.removeprefix("panel:")
            if not one.total:
                rows.append(Row(short, "–"))
                continue
            rows.append(Row(short, f"{one.count}/{one.total}"))
            style = name if name in ("base", "injected", "reference") else "panel"
            label = f"{short}: {title} accepts in {one.count} of {one.total} cells"
            points.append(Point(one.count / one.total, place, style, label))
            table_rows.append((short, title, one.count, one.total, one.upper))
            if name == "panel:suppression":
                told.append(f"{title} {one.count} of {one.total}")
        if points:
            panels.append(Panel(title, x, rows=tuple(rows), points=tuple(points)))
    reading = f"{len(names)} models whose truth is known went through the battery."
    if told:
        reading = f"Cells that take logit suppression for forgetting: {', '.join(told)}."
    return Figure(
        "panel",
        "The sealed panel",
        reading,
        "Each row is a model whose truth is known, placed by the share of cells in which the "
        "battery accepts it. The reference should be accepted, every other model rejected.",
        tuple(panels),
        Table(
            "panel",
            "The sealed panel",
            "",
            ("challenge", "battery", "accepting cells", "cells", "upper bound"),
            tuple(table_rows),
        ),
        legend=(("reference", "reference", False), ("panel", "known not to be restored", False)),
    )


def _diagnosed(results: RunResults) -> tuple[Candidate, ...]:
    for cell, name in results.candidates():
        model = cell.evaluation[name]
        if "reference" not in cell.evaluation or model.oracle_kl is None:
            return ()
        if model.retain_nll is None or cell.evaluation["reference"].retain_nll is None:
            return ()
    return diagnostic(results)
