"""Figures of the paper's edition: the diagnostic, fewer probes, the panel."""

import numpy as np

from palimpsest.analysis import panel, trained_probes
from palimpsest.analysis.results import RunResults
from palimpsest.analysis.table import number
from palimpsest.report.palette import in_order, styles
from palimpsest.report.plots.canvas import (
    Picture,
    drawing,
    key,
    legend,
    plain_numbers,
    points,
    rows,
    rule,
    sheet,
)


@drawing()
def diagnostic(results: RunResults) -> Picture:
    """Draw oracle-KL against held-out forget NLL, all candidates by method (the first figure)."""
    candidates = trained_probes.diagnostic(results)
    looks = styles(results.methods)
    figure, (axes,) = sheet(1, 1, (7.0, 4.2))
    forget = [point.forget_nll for point in candidates]
    kl = [point.oracle_kl for point in candidates]
    if min(forget) > 0 and max(forget) > max(12, 4 * min(forget)):
        axes.set_xscale("log")
        plain_numbers(axes.xaxis)
    if min(kl) > 0 and max(kl) > 20 * min(kl):
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
    methods = in_order(results.methods)
    for method in methods:
        mine = [point for point in candidates if point.method == method]
        names = [
            f"{point.candidate} in {point.cell}: held-out forget NLL {number(point.forget_nll)}, "
            f"oracle-KL {number(point.oracle_kl)}, retain NLL {number(point.retain_nll)}"
            for point in mine
        ]
        where = [(point.forget_nll, point.oracle_kl) for point in mine]
        points(axes, where, looks[method], names, size=3.5 if len(kl) > 100 else 5, alpha=0.85)
    levels = [point.reference_forget_nll for point in candidates]
    name = "reference" if len(set(levels)) == 1 else "median reference"
    rule(axes, float(np.median(levels)), name)
    axes.grid(visible=True)
    axes.set_xlabel("held-out forget NLL, nats")
    axes.set_ylabel("trained-probe KL to the reference, nats")
    legend(figure, [key(looks[method], method) for method in methods])
    reading = trained_probes.matched_sentence(candidates, results.rules.matched_within)
    return Picture("diagnostic", reading, figure)


@drawing()
def fewer_probes(results: RunResults) -> Picture:
    """Draw how many candidates the screen excludes as the number of probes grows."""
    sizes = trained_probes.sub_panels(results)
    figure, (axes,) = sheet(1, 1, (5.4, 2.9))
    style = styles(())["nearest"]
    axes.plot([size.probes for size in sizes], [size.excluded for size in sizes], color=style.light)
    for vacuous in (False, True):
        mine = [size for size in sizes if size.vacuous is vacuous]
        names = [
            f"{size.probes} probes: {size.excluded} of {size.candidates} candidates excluded, "
            f"smallest p {size.smallest_p:.3g}; the screen can exclude one in {size.certifiable} "
            f"of {size.cells} cells"
            for size in mine
        ]
        points(axes, [(size.probes, size.excluded) for size in mine], style, names, hollow=vacuous)
    axes.set_ylim(0, None)
    axes.grid(visible=True)
    axes.set_xlabel("never-learned probes")
    axes.set_ylabel("excluded candidates")
    few = "too few probes to exclude any candidate"
    legend(figure, [key(style, "can exclude"), key(style, few, hollow=True)])
    return Picture("probes", trained_probes.sub_panel_table(results).reading, figure)


@drawing()
def panel_acceptance(results: RunResults) -> Picture | None:
    """Draw the share of cells in which the paper's batteries accept each known-label model; None
    where no panel was run in several cells."""
    judged = panel.by_challenge(panel.challenge_panel(results))
    if not judged or len(results.cells) < 2:
        return None
    rates = {
        battery: {n: panel.acceptance(m, battery, results.rules) for n, m in judged.items()}
        for battery in ("screen", "forward", "relearning")
    }
    shown = {
        battery: some for battery, some in rates.items() if any(r.total for r in some.values())
    }
    figure, panels = sheet(len(shown), 3, (3.0, 0.22 * len(judged) + 0.7))
    known = styles(())
    for axes, (battery, some) in zip(panels, shown.items()):
        title = panel.BATTERIES[battery]
        notes = [f"{rate.count}/{rate.total}" if rate.total else "–" for rate in some.values()]
        rows(axes, list(some), notes)
        for place, (name, rate) in enumerate(some.items()):
            if rate.total:
                text = f"{name}: {title} accepts it in {rate.count} of {rate.total} cells"
                where = [(rate.count / rate.total, place)]
                points(axes, where, known.get(name, known["challenge"]), [text])
        axes.set_xlim(-0.03, 1.03)
        axes.set_title(title)
        axes.set_xlabel("share of cells that accept")
    return Picture("panel", panel.panel_table(results).reading, figure)
