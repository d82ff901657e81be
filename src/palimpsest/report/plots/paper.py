"""Figures of the paper's edition: the diagnostic, fewer probes, the panel."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from palimpsest.analysis.table import Share, number
from palimpsest.analysis.trained_probes import Point, SubPanel
from palimpsest.report.palette import Style, styles
from palimpsest.report.plots.canvas import drawing, key, legend, points, rows, rule, sheet


@drawing()
def diagnostic(candidates: Sequence[Point], looks: Mapping[str, Style]) -> Figure:
    """Draw oracle-KL against held-out forget NLL, all candidates by method (the first figure)."""
    figure, (panel,) = sheet(1, 1, (7.0, 4.2))
    forget = [point.forget_nll for point in candidates]
    kl = [point.oracle_kl for point in candidates]
    if min(forget) > 0 and max(forget) > max(12, 4 * min(forget)):
        panel.set_xscale("log")
    if min(kl) > 0 and max(kl) > 20 * min(kl):
        panel.set_yscale("log")
    methods = [name for name in looks if name in {point.method for point in candidates}]
    for method in methods:
        mine = [point for point in candidates if point.method == method]
        names = [
            f"{point.candidate} in {point.cell}: held-out forget NLL {number(point.forget_nll)}, "
            f"oracle-KL {number(point.oracle_kl)}, retain NLL {number(point.retain_nll)}"
            for point in mine
        ]
        where = [(point.forget_nll, point.oracle_kl) for point in mine]
        points(panel, where, looks[method], names, size=3.5 if len(kl) > 100 else 5, alpha=0.85)
    levels = [point.reference_forget_nll for point in candidates]
    name = "reference" if len(set(levels)) == 1 else "median reference"
    rule(panel, float(np.median(levels)), name)
    panel.grid(visible=True)
    panel.set_xlabel("held-out forget NLL, nats")
    panel.set_ylabel("trained-probe KL to the reference, nats")
    legend(figure, [key(looks[method], method) for method in methods])
    return figure


@drawing()
def fewer_probes(sizes: Sequence[SubPanel]) -> Figure:
    """Draw how many candidates the screen excludes as the number of probes grows."""
    figure, (panel,) = sheet(1, 1, (5.4, 2.9))
    style = styles(())["nearest"]
    panel.plot(
        [size.probes for size in sizes], [size.excluded for size in sizes], color=style.light
    )
    for vacuous in (False, True):
        mine = [size for size in sizes if size.vacuous is vacuous]
        names = [
            f"{size.probes} probes: {size.excluded} of {size.candidates} candidates excluded, "
            f"smallest p {size.smallest_p:.3g}; the screen can exclude size in {size.certifiable} "
            f"of {size.cells} cells"
            for size in mine
        ]
        points(panel, [(size.probes, size.excluded) for size in mine], style, names, hollow=vacuous)
    panel.set_ylim(0, None)
    panel.grid(visible=True)
    panel.set_xlabel("never-learned probes")
    panel.set_ylabel("excluded candidates")
    few = "too few probes to exclude any candidate"
    legend(figure, [key(style, "can exclude"), key(style, few, hollow=True)])
    return figure


@drawing()
def panel_acceptance(parts: Mapping[str, Mapping[str, Share | None]]) -> Figure:
    """Draw the share of cells that accept each known-label model; ``parts``: by battery, model."""
    figure, panels = sheet(len(parts), 3, (3.0, 0.22 * max(map(len, parts.values())) + 0.7))
    known = styles(())
    for panel, (title, models) in zip(panels, parts.items()):
        notes = [
            "–" if share is None else f"{share.count}/{share.total}" for share in models.values()
        ]
        rows(panel, list(models), notes)
        for place, (name, share) in enumerate(models.items()):
            if share is not None:
                text = f"{name}: {title} accepts it in {share.count} of {share.total} cells"
                where = [(share.count / share.total, place)]
                points(panel, where, known.get(name, known["challenge"]), [text])
        panel.set_xlim(-0.03, 1.03)
        panel.set_title(title)
        panel.set_xlabel("share of cells that accept")
    return figure
