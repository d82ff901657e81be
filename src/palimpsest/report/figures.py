"""The figures of a run, drawn from results read once.

A further figure is one function here and its entry in ``FIGURES``; it returns None for a run that
lacks its numbers. ``palimpsest.plots`` offers each to Python callers.
"""

from collections.abc import Callable

import numpy as np

from palimpsest.report.canvas import (
    BAND,
    KNOWN,
    QUIET,
    STRIPE,
    Picture,
    Style,
    bend,
    distances,
    figure,
    jitter,
    key,
    method_styles,
    points,
    rows,
    sheet,
)
from palimpsest.report.results import CellResult, RunResults, cell_positions
from palimpsest.report.table import Share
from palimpsest.stats.axes import Sign, chosen
from palimpsest.stats.items import Values
from palimpsest.stats.words import describe, percent

MOST_ROWS = 40
"""Candidates that a figure of one cell shows; all are in the tables."""
SIZES = {"retraining": 3.0, "mixture": 3.5, "injected": 6.0, "candidate": 8.0}


@figure()
def retrainings(results: RunResults, candidate: str | None = None) -> Picture | None:
    """Return where a candidate of one cell lies among the retrainings, one row per axis; by default
    the one that is certified, or the nearest."""
    cell, verdict = results.judged[0] if results.judged else (None, None)
    if cell is None or verdict is None or len(results.cells) > 1:
        return None
    positions = cell_positions(cell, results.rules)
    name = candidate or verdict.candidate or verdict.nearest or verdict.findings[0].name
    groups = {group: [p for p in positions if p.group == group] for group in SIZES}
    groups["candidate"] = [position for position in groups["candidate"] if position.name == name]
    if not groups["candidate"]:
        return None
    names = ["retrainings and their range", "retrainings with a share of the injected weights"]
    names += ["injected model", name]
    axes = [axis for axis in chosen(results.rules) if axis.name in positions[0].sd]
    entries = [key(KNOWN[group], text) for group, text in zip(SIZES, names)]
    figure, (panel,) = sheet((5.8, 0.38 * len(axes)), entries)
    clip = distances(panel, [sd for some in groups.values() for p in some for sd in p.sd.values()])
    own = groups["candidate"][0].sd
    notes = [f"{own[axis.name]:+.1f} sd" if axis.name in own else "–" for axis in axes]
    rows(panel, [axis.title for axis in axes], notes)
    for row, axis in enumerate(axes):
        values = [position.sd[axis.name] for position in groups["retraining"]]
        low, high = min(values), max(values)
        panel.barh(row, high - low, 0.62, left=low, color=BAND, linewidth=0, zorder=1.2)
        for order, (group, some) in enumerate(groups.items(), 2):
            spread = 0.75 if len(some) > 1 else 0.0
            found = [(n, p.sd[axis.name]) for n, p in enumerate(some) if axis.name in p.sd]
            where = [(clip(sd), row + spread * jitter(n)) for n, sd in found]
            points(panel, where, KNOWN[group], size=SIZES[group], order=order)
    panel.set_xlabel("distance from the mean retraining, in standard deviations of the retrainings")
    turned = [axis.title for axis in axes if axis.high.sign is Sign.KNOWS]
    right = f", on {', '.join(turned)} at the right" if turned else ""
    about = (
        "Each row is one axis. Gray dots are the retrainings, with their range shaded; large "
        f"diamonds are the candidate. Knowledge of the facts shows at the left{right}. "
        "The scale is linear up to 3 and logarithmic beyond; values further out are drawn at the "
        "edge."
    )
    title, reading = "The candidate compared with the retrainings", describe(verdict.finding(name))
    return Picture("retrainings", title, reading, about, figure)


@figure()
def forget_deltas(results: RunResults) -> Picture | None:
    """Return forget facts and probes of every candidate of one cell, by NLL minus base's, with the
    screen's p-value."""
    cell, verdict = results.judged[0] if results.judged else (None, None)
    if cell is None or verdict is None or len(results.cells) > 1:
        return None
    looks = _looks(results, cell)
    screened = {finding.name: finding.screened for finding in verdict.findings}
    marks = {n: f"{s.adjusted_p:.2g}{' ✕' if s.excluded else ''}" for n, s in screened.items()}
    styles = method_styles(results.methods)
    entries = [key(style, method) for method, style in styles.items()]
    entries.append(key(KNOWN["probe"], "never-learned probes"))
    figure, (panel,) = sheet((5.6, 0.2 * len(looks)), entries)
    rows(panel, list(looks), [marks.get(name, "") for name in looks], "screen p")
    every: list[float] = []
    for row, (name, style) in enumerate(looks.items()):
        model = cell.evaluation[name]
        for deltas, look in ((model.probe_deltas, KNOWN["probe"]), (model.forget_deltas, style)):
            points(panel, [(float(delta), row) for delta in deltas], look)
            every += deltas.tolist()
    bend(panel, every)
    panel.axvline(0.0, color=QUIET, linewidth=0.8, zorder=1.5)
    panel.set_xlabel("held-out NLL minus base's, nats (left: better known than by base)")
    excluded = Share.of(passage.excluded for passage in screened.values())
    reading = f"The screen excludes {excluded} candidates."
    about = (
        "Each row is a model: large markers are its forget facts, thin ticks its probes. At the "
        "right is the Holm-corrected p-value of the screen; a cross marks models that it excludes. "
        "With references, an excluded model must also lie beyond the references' own gaps."
    )
    title = "Forget facts and never-learned probes"
    return Picture("forget-deltas", title, reading, about, figure)


@figure()
def relearning(results: RunResults) -> Picture | None:
    """Return held-out forget NLL while the forget facts are re-acquired, one panel per family:
    every candidate of one cell, or the median of every method over several."""
    curves: dict[str, dict[str, list[Values]]] = {}
    styles: dict[str, Style] = {}
    steps: list[int] = []
    for cell in results.cells:
        base, references = cell.evaluation["base"].forget_nll, cell.evaluation.references
        looks = dict.fromkeys(references, KNOWN["retraining"]) | _looks(results, cell)
        for name, style in looks.items():
            curve = cell.evaluation[name].curve
            if curve is None or (steps and curve.step.tolist() != steps):
                continue
            steps = curve.step.tolist()
            group = name if len(results.cells) == 1 else cell.models[name].method or name
            group = "retrainings: range and median" if name in references else group
            styles.setdefault(group, style)
            mine = curves.setdefault(cell.family, {}).setdefault(group, [])
            mine.append(curve.forget_heldout_nll - base)
    if not curves:
        return None
    entries = [key(style, name, line="-", size=3) for name, style in styles.items()]
    figure, panels = sheet((4.6, 2.8), entries, panels=len(curves), left=0.7, right=0.4)
    for panel, (family, groups) in zip(panels, curves.items()):
        for name, mine in groups.items():
            style = styles[name]
            if style is KNOWN["retraining"]:
                low, high = np.min(mine, axis=0), np.max(mine, axis=0)
                panel.fill_between(steps, low, high, color=BAND, linewidth=0)
            line, middle = "--" if name == "injected" else "-", np.median(mine, axis=0)
            panel.plot(steps, middle, line, color=style.color, marker=style.marker, markersize=3)
        panel.grid(visible=True)
        panel.set_title(family)
        panel.set_xlabel("steps of re-acquisition")
    panels[0].set_ylabel("held-out forget NLL minus base's, nats")
    reading = "A model that only hides the facts lies below the retrainings."
    about = "Held-out forget NLL during re-acquisition of the forget facts."
    return Picture("relearning", "Relearning the forget facts", reading, about, figure)


@figure()
def acceptance(results: RunResults) -> Picture | None:
    """Return how far every kind of model lies from retraining, over several cells."""
    found: dict[str, tuple[Style, list[tuple[float, bool]]]] = {}
    for cell, verdict in results.judged if len(results.planned) > 1 else ():
        judged = {control.name: control.comparison for control in verdict.controls}
        judged |= {finding.name: finding.comparison for finding in verdict.findings}
        styles = method_styles(results.methods)
        for position in cell_positions(cell, results.rules):
            if (comparison := judged.get(position.name)) is not None:
                method = cell.models[position.name].method
                style = styles[method] if method else KNOWN[position.group]
                model = (max(map(abs, position.sd.values())), comparison.accepted)
                found.setdefault(method or position.label, (style, []))[1].append(model)
    if not found:
        return None
    plain = KNOWN["retraining"]
    entries = [key(plain, "accepted as a retraining"), key(plain, "rejected", hollow=True)]
    figure, (panel,) = sheet((5.6, 0.3 * len(found)), entries, left=2.1)
    accepted = {label: Share.of(ok for _, ok in mine) for label, (_, mine) in found.items()}
    rows(panel, list(found), list(map(str, accepted.values())), "accepted")
    clip = distances(panel, [sd for _, mine in found.values() for sd, _ in mine], signed=False)
    for row, (style, mine) in enumerate(found.values()):
        if row % 2:
            panel.axhspan(row - 0.5, row + 0.5, color=STRIPE, linewidth=0, zorder=0)
        for ok in (False, True):
            where = [(clip(sd), row + jitter(n)) for n, (sd, was) in enumerate(mine) if was is ok]
            points(panel, where, style, size=4, hollow=not ok)
    panel.set_xlabel("largest distance from the mean retraining on any axis, standard deviations")
    counts = [f"{label} {accepted[label]}" for label in found if label in results.methods]
    reading = f"Candidates accepted as one more retraining: {', '.join(counts)}."
    about = (
        "Each row is a kind of model and each marker one model in one cell. By design at least "
        f"{percent(1 - results.rules.alpha)} of true retrainings are accepted."
    )
    return Picture("acceptance", "Which models pass as a retraining", reading, about, figure)


def _looks(results: RunResults, cell: CellResult) -> dict[str, Style]:
    """Return the injected model, two references and the candidates with their styles, in order."""
    styles = method_styles(results.methods)
    order = list(styles)
    named = sorted(cell.candidates, key=lambda name: order.index(cell.method(name)))[:MOST_ROWS]
    looks = {"injected": KNOWN["injected"]} if "injected" in cell.evaluation else {}
    looks |= dict.fromkeys(cell.evaluation.references[:2], KNOWN["retraining"])
    return looks | {name: styles[cell.method(name)] for name in named}


FigureFn = Callable[[RunResults], Picture | None]
FIGURES: tuple[FigureFn, ...] = (retrainings, acceptance, forget_deltas, relearning)


def all_figures(results: RunResults) -> dict[str, Picture]:
    """Return the figures that this run has the numbers for, by name."""
    pictures = [function(results) for function in FIGURES]
    return {picture.name: picture for picture in pictures if picture is not None}
