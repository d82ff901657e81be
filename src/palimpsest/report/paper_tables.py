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
        found = trained_probe.held_out(results, level)
        if found is None:
            continue
        mean = Estimate.of(found.interval, found.mean)
        rows.append(
            row("never-learned level|mean per fact|median per fact", level, mean, found.median)
            | row("facts|candidates|cells", found.facts, found.candidates, found.cells)
        )
        if level == "base":
            side = "below" if found.mean < 0 else "above"
            reading = (
                f"The {found.candidates} candidates rated adequate score held-out forget facts "
                f"{number(abs(found.mean))} nats {side} base, which never learned them."
            )
    title = "The trained-probe criterion on held-out facts"
    return Table.of("trained-probe", title, reading, rows)


def dichotomy_table(results: RunResults) -> Table:
    """Return what the held-out screen excludes, by method."""
    found = trained_probe.by_method(results)
    kinds = {cell.methods[name]: cell.kind(name) for cell, name in results.candidates()}
    rows: Rows = [
        row("method|kind", one.method, kinds[one.method])
        | row("rated adequate", Share(one.adequate, one.candidates))
        | row("excluded", Share(one.excluded, one.candidates))
        | row("share excluded|median gap", one.excluded / one.candidates, one.median_gap)
        | row("median oracle-KL", one.median_oracle_kl)
        | row("median rise of retain NLL", one.median_retain_rise)
        for one in found
    ]
    total, excluded = (
        sum(getattr(one, key) for one in found) for key in ("candidates", "excluded")
    )
    most = max(found, key=lambda one: one.excluded / one.candidates, default=None)
    reading = f"The held-out screen excludes {excluded} of {total} candidates"
    if most is not None and most.excluded:
        reading += f", most often those of {most.method} ({most.excluded} of {most.candidates})"
    return Table.of("dichotomy", "Candidates the screen excludes", f"{reading}.", rows)


def diagnostic_table(results: RunResults) -> Table:
    """Return restoration against suppression: oracle-KL by method, and at matched forgetting."""
    points = trained_probe.diagnostic(results)
    rows: Rows = []
    for method in results.methods:
        mine = [one for one in points if one.method == method]
        kl = [one.oracle_kl for one in mine]
        low, middle, high = (float(q) for q in np.quantile(kl, [0.25, 0.5, 0.75]))
        forget = [one.forget_nll - one.reference_forget_nll for one in mine]
        retain = [one.retain_nll - one.reference_retain_nll for one in mine]
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
        row("cell|candidate|method|kind", one.cell, one.candidate, one.method, one.kind)
        | row("oracle-KL|held-out forget NLL", one.oracle_kl, one.forget_nll)
        | row("retain NLL|reference forget NLL", one.retain_nll, one.reference_forget_nll)
        | row("reference retain NLL", one.reference_retain_nll)
        for one in trained_probe.diagnostic(results)
    ]
    reading = f"The data of the diagnostic figure: {len(rows)} candidates."
    return Table.of("diagnostic-points", "Diagnostic, every candidate", reading, rows)


def sub_panel_table(results: RunResults) -> Table:
    """Return the screen at every smaller number of probes."""
    found = sub_panels(results)
    rows: Rows = [
        row("probes|cells that can exclude", one.probes, Share(one.certifiable, one.cells))
        | row("excluded|at the smallest p", Share(one.excluded, one.candidates), one.at_floor)
        | row("smallest p|can exclude", one.smallest_p, not one.vacuous)
        for one in found
    ]
    vacuous = [one.probes for one in found if one.vacuous]
    reading = "Every number of probes can exclude a candidate."
    if vacuous:
        reading = (
            f"With {max(vacuous)} probes or fewer no candidate can be excluded at any effect size; "
            f"with {found[-1].probes} the screen excludes {found[-1].excluded} of "
            f"{found[-1].candidates}."
        )
    return Table.of("sub-panels", "The screen with fewer probes", reading, rows)


def survivors_table(results: RunResults) -> Table:
    """Return how far survivors lie from never-learned, and how many are equivalent to it."""
    found = survivors(results)

    names = "quantity|count|estimate|smallest margin|largest margin"
    alive = Share(found.survivors, found.candidates)
    gap = Estimate.of(found.gap, found.median_gap)
    rows: Rows = [
        row(names, "survivors", alive, None, None, None),
        row(names, "median |gap|, nats", None, gap, None, None),
    ]
    reading = f"{found.survivors} of {found.candidates} candidates survive the screen"
    for share in found.shares:
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
        mine = [one for one in audited if one.model == name]
        bars = [one.bar for one in mine]
        if name not in absolute.AUDITED:
            bars = list(absolute.candidate_bars(results, name))
        if not bars:
            continue
        counts = absolute.components(bars)
        passed = [counts.screen, counts.retain, counts.residual, counts.all]
        shares = [Share(count, counts.total) for count in passed]
        spreads = [_range([one.retain_nll for one in mine]), _range([one.residual for one in mine])]
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
        row("cell|family|model|p", one.cell, one.family, one.model, one.p_value)
        | row("screen|retain NLL|retain", one.bar.screen, one.retain_nll, one.bar.retain)
        | row("residual|residual at most the limit", one.residual, one.bar.residual)
        | row("all three", one.bar.clears)
        for one in audited
    ]
    failing = sum(not one.bar.clears for one in audited)
    reading = f"{failing} of {len(audited)} known models fail at least one component."
    return Table.of("absolute-bar-cells", "The absolute bar, cell by cell", reading, rows)


def budget_table(results: RunResults) -> Table:
    """Return the injected model's own residual by budget and family."""
    points = absolute.budget_curve(results)
    rows: Rows = [
        row("family|steps|median residual", one.family, one.step, one.residual.median)
        | row("smallest|largest", one.residual.low, one.residual.high)
        | row("at most the limit", Share(one.closes, one.cells))
        for one in points
    ]
    rising = 0
    for family in results.families:
        medians = [one.residual.median for one in points if one.family == family]
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
    for family, one in results.replication.items():
        found = replication_intervals(one, results.rules)
        cells = ", ".join(draws.cell for draws in one.cells)
        draws = sum(draws.tolerances.draws for draws in one.cells)
        left_out = Estimate(one.tolerances.delta_f, *found.delta_without_one_draw)
        rows.append(
            row("family|replicated cells|draws", family, cells, draws)
            | row("delta_f, bootstrap", Estimate.of(found.delta_f))
            | row("delta_f, one draw left out", left_out)
            | row("epsilon_f retain", Estimate.of(found.epsilon_retain))
            | row("epsilon_f residual", Estimate.of(found.epsilon_residual))
            | row("deviation of first-chunk falls", one.tolerances.fall_deviation)
        )
    deltas = [one.delta_f for one in results.tolerances.values()]
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
    one = absolute.summary(values)
    return Estimate(one.median, one.low, one.high)
