"""Tables of the paper's edition: trained probes, the screen, the absolute bar, replication noise.

They are computed for comparison with the paper; no verdict depends on them.
"""

import numpy as np

from palimpsest.analysis import absolute, trained_probe
from palimpsest.analysis.replication import median_delta, replication_intervals
from palimpsest.analysis.results import RunResults
from palimpsest.analysis.subpanels import sub_panels
from palimpsest.analysis.survivors import survivors
from palimpsest.report.formats import Estimate, Share, Table, Value, number, row

Rows = list[dict[str, Value]]


def trained_probe_table(results: RunResults) -> Table:
    """Return what candidates rated adequate on trained probes score on held-out forget facts."""
    rows: Rows = []
    reading = "No candidate is rated adequate on trained probes."
    for level in trained_probe.LEVELS:
        scores = trained_probe.held_out(results, level)
        if scores is None:
            continue
        mean = Estimate.of(scores.interval, scores.mean)
        rows.append(
            row("never-learned level|mean per fact|median per fact", level, mean, scores.median)
            | row("facts|candidates|cells", scores.facts, scores.candidates, scores.cells)
        )
        if level == "base":
            side = "below" if scores.mean < 0 else "above"
            reading = (
                f"The {scores.candidates} candidates rated adequate score held-out forget facts "
                f"{number(abs(scores.mean))} nats {side} base, which never learned them."
            )
    title = "The trained-probe criterion on held-out facts"
    return Table.of("trained-probe", title, reading, rows)


def dichotomy_table(results: RunResults) -> Table:
    """Return what the held-out screen excludes, by method."""
    methods = trained_probe.by_method(results)
    kinds = {cell.methods[name]: cell.kind(name) for cell, name in results.candidates()}
    rows: Rows = [
        row("method|kind", method.method, kinds[method.method])
        | row("rated adequate", Share(method.adequate, method.candidates))
        | row("excluded", Share(method.excluded, method.candidates))
        | row("share excluded|median gap", method.excluded / method.candidates, method.median_gap)
        | row("median oracle-KL", method.median_oracle_kl)
        | row("median rise of retain NLL", method.median_retain_rise)
        for method in methods
    ]
    total, excluded = (
        sum(getattr(method, key) for method in methods) for key in ("candidates", "excluded")
    )
    most = max(methods, key=lambda method: method.excluded / method.candidates, default=None)
    reading = f"The held-out screen excludes {excluded} of {total} candidates"
    if most is not None and most.excluded:
        reading += f", most often those of {most.method} ({most.excluded} of {most.candidates})"
    return Table.of("dichotomy", "Candidates the screen excludes", f"{reading}.", rows)


def diagnostic_table(results: RunResults) -> Table:
    """Return restoration against suppression: oracle-KL by method, and at matched forgetting."""
    points = trained_probe.diagnostic(results)
    rows: Rows = []
    for method in results.methods:
        mine = [point for point in points if point.method == method]
        kl = [point.oracle_kl for point in mine]
        low, middle, high = (float(q) for q in np.quantile(kl, [0.25, 0.5, 0.75]))
        forget = [point.forget_nll - point.reference_forget_nll for point in mine]
        retain = [point.retain_nll - point.reference_retain_nll for point in mine]
        rows.append(
            row("method|kind|candidates", method, mine[0].kind, len(mine))
            | row("oracle-KL, median and quartiles", Estimate(middle, low, high))
            | row("forget NLL beyond the reference", float(np.median(forget)))
            | row("retain NLL beyond the reference", float(np.median(retain)))
        )
    return Table.of("diagnostic", "Restoration and suppression", matched_sentence(points), rows)


def matched_sentence(points: tuple[trained_probe.Point, ...]) -> str:
    """Return the comparison of restoration and suppression at matched forgetting, in words."""
    matched = trained_probe.matched_forgetting(points)
    if matched.restoration is None or matched.suppression is None:
        return "No restoring and no suppressing candidate of one cell forget to the same extent."
    return (
        f"In {matched.pairs} pairs that forget to the same extent (held-out forget NLL within "
        f"{trained_probe.MATCHED_WITHIN:g} nat) the median oracle-KL is "
        f"{number(matched.restoration)} for restoration and {number(matched.suppression)} for "
        f"suppression; restoration is closer in {matched.closer}."
    )


def points_table(results: RunResults) -> Table:
    """Return every candidate of the diagnostic figure."""
    rows: Rows = [
        row("cell|candidate|method|kind", point.cell, point.candidate, point.method, point.kind)
        | row("oracle-KL|held-out forget NLL", point.oracle_kl, point.forget_nll)
        | row("retain NLL|reference forget NLL", point.retain_nll, point.reference_forget_nll)
        | row("reference retain NLL", point.reference_retain_nll)
        for point in trained_probe.diagnostic(results)
    ]
    reading = f"The data of the diagnostic figure: {len(rows)} candidates."
    return Table.of("diagnostic-points", "Diagnostic, every candidate", reading, rows)


def sub_panel_table(results: RunResults) -> Table:
    """Return the screen at every smaller number of probes."""
    sizes = sub_panels(results)
    rows: Rows = [
        row("probes|cells that can exclude", size.probes, Share(size.certifiable, size.cells))
        | row("excluded|at the smallest p", Share(size.excluded, size.candidates), size.at_floor)
        | row("smallest p|can exclude", size.smallest_p, not size.vacuous)
        for size in sizes
    ]
    vacuous = [size.probes for size in sizes if size.vacuous]
    reading = "Every number of probes can exclude a candidate."
    if vacuous:
        reading = (
            f"With {max(vacuous)} probes or fewer no candidate can be excluded at any effect size; "
            f"with {sizes[-1].probes} the screen excludes {sizes[-1].excluded} of "
            f"{sizes[-1].candidates}."
        )
    return Table.of("sub-panels", "The screen with fewer probes", reading, rows)


def survivors_table(results: RunResults) -> Table:
    """Return how far survivors lie from never-learned, and how many are equivalent to it."""
    summary = survivors(results)

    names = "quantity|count|estimate|smallest margin|largest margin"
    alive = Share(summary.survivors, summary.candidates)
    gap = Estimate.of(summary.gap, summary.median_gap)
    rows: Rows = [
        row(names, "survivors", alive, None, None, None),
        row(names, "median |gap|, nats", None, gap, None, None),
    ]
    reading = f"{summary.survivors} of {summary.candidates} candidates survive the screen"
    for share in summary.shares:
        part = Estimate.of(share.share, share.equivalent / share.total if share.total else None)
        count = Share(share.equivalent, share.total)
        title = f"equivalent at {share.margin}"
        rows.append(row(names, title, count, part, share.smallest, share.largest))
        if share.margin == "median delta_f":
            reading += (
                f", and {share.equivalent} of them are equivalent to never-learned within "
                f"{number(share.largest)} nats"
            )
    return Table.of("survivors", "Survivors and equivalence", f"{reading}.", rows)


def absolute_table(results: RunResults) -> Table:
    """Return reference, injected model and candidates by method under the absolute bar."""
    audited = absolute.audit_models(results)
    rows: Rows = []
    passing = []

    for name in (*absolute.AUDITED, *results.methods, None):
        mine = [model for model in audited if model.model == name]
        bars = [model.bar for model in mine]
        if name not in absolute.AUDITED:
            bars = list(absolute.candidate_bars(results, name))
        if not bars:
            continue
        counts = absolute.components(bars)
        passed = [counts.screen, counts.retain, counts.residual, counts.all]
        shares = [Share(count, counts.total) for count in passed]
        spreads = [
            _range([model.retain_nll for model in mine]),
            _range([model.residual for model in mine]),
        ]
        rows.append(
            row("model|screen|retain|residual|all three", name or "all candidates", *shares)
            | row("retain NLL, median and range|residual, median and range", *spreads)
        )
        if mine:
            passing.append(f"the {name} passes in {counts.all} of {counts.total} cells")
    reading = (
        f"With limits of {results.rules.retain_limit:g} and {results.rules.residual_limit:g} nats "
        f"{', '.join(passing) or 'no known model was scored'}, and {counts.all} of {counts.total} "
        "candidates pass."
    )
    return Table.of("absolute-bar", "The absolute bar", reading, rows)


def absolute_cells_table(results: RunResults) -> Table:
    """Return reference and injected model under the absolute bar, cell by cell."""
    audited = absolute.audit_models(results)
    rows: Rows = [
        row("cell|family|model|p", model.cell, model.family, model.model, model.p_value)
        | row("screen|retain NLL|retain", model.bar.screen, model.retain_nll, model.bar.retain)
        | row("residual|residual at most the limit", model.residual, model.bar.residual)
        | row("all three", model.bar.clears)
        for model in audited
    ]
    failing = sum(not model.bar.clears for model in audited)
    reading = f"{failing} of {len(audited)} known models fail at least one component."
    return Table.of("absolute-bar-cells", "The absolute bar, cell by cell", reading, rows)


def budget_table(results: RunResults) -> Table:
    """Return the injected model's own residual by budget and family."""
    points = absolute.budget_curve(results)
    rows: Rows = [
        row("family|steps|median residual", point.family, point.step, point.residual.median)
        | row("smallest|largest", point.residual.low, point.residual.high)
        | row("at most the limit", Share(point.closes, point.cells))
        for point in points
    ]
    rising = 0
    for family in results.families:
        medians = [point.residual.median for point in points if point.family == family]
        rising += len(medians) > 1 and medians[-1] > medians[0]
    floor = absolute.floors(results)
    reading = (
        "The residual of the injected model itself rises from the shortest to the longest budget "
        f"in {rising} of {len(results.families)} families"
        + (f"; the median floor is {number(floor.median)} nats." if floor else ".")
    )
    return Table.of("budget", "Round-trip floor by budget", reading, rows)


def replication_table(results: RunResults) -> Table:
    """Return delta_f and epsilon_f of each family with their uncertainty."""
    rows: Rows = []
    for family, replication in results.replication.items():
        intervals = replication_intervals(replication, results.rules)
        cells = ", ".join(draws.cell for draws in replication.cells)
        draws = sum(draws.tolerances.draws for draws in replication.cells)
        left_out = Estimate(replication.tolerances.delta_f, *intervals.delta_without_one_draw)
        rows.append(
            row("family|replicated cells|draws", family, cells, draws)
            | row("delta_f, bootstrap", Estimate.of(intervals.delta_f))
            | row("delta_f, one draw left out", left_out)
            | row("epsilon_f retain", Estimate.of(intervals.epsilon_retain))
            | row("epsilon_f residual", Estimate.of(intervals.epsilon_residual))
            | row("deviation of first-chunk falls", replication.tolerances.fall_deviation)
        )
    deltas = [replication.delta_f for replication in results.tolerances.values()]
    middle = median_delta(results.tolerances)
    reading = "No cell has several reference draws, so there are no tolerances."
    if middle is not None:
        reading = (
            f"Retraining moves held-out deltas by {number(min(deltas))} to {number(max(deltas))} "
            f"nats across {len(deltas)} families (median {number(middle)}), at percentile "
            f"{results.rules.tolerance_percentile:g}."
        )
    return Table.of("replication", "Replication noise", reading, rows)


def _range(values: list[float]) -> Estimate | None:
    if not values:
        return None
    summary = absolute.summary(values)
    return Estimate(summary.median, summary.low, summary.high)
