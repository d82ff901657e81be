"""Tables of the paper's edition: trained probes, the screen, the absolute bar, replication noise.

They are computed for comparison with the paper; no verdict depends on them.
"""

import numpy as np

from palimpsest.analysis import absolute, trained_probe
from palimpsest.analysis.replication import median_delta, replication_intervals
from palimpsest.analysis.results import RunResults
from palimpsest.analysis.subpanels import sub_panels
from palimpsest.analysis.survivors import survivors
from palimpsest.report.formats import Estimate, Share, Table, Value, number

Rows = list[dict[str, Value]]


def trained_probe_table(results: RunResults) -> Table:
    """Return what candidates rated adequate on trained probes score on held-out forget facts."""
    rows: Rows = []
    reading = "No candidate is rated adequate on trained probes."
    for level in trained_probe.LEVELS:
        found = trained_probe.held_out(results, level)
        if found is None:
            continue
        rows.append(
            {
                "never-learned level": level,
                "mean per fact": Estimate.of(found.interval, found.mean),
                "median per fact": found.median,
                "facts": found.facts,
                "candidates": found.candidates,
                "cells": found.cells,
            }
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
        {
            "method": one.method,
            "kind": kinds[one.method],
            "rated adequate": Share(one.adequate, one.candidates),
            "excluded": Share(one.excluded, one.candidates),
            "share excluded": one.excluded / one.candidates,
            "median gap": one.median_gap,
            "median oracle-KL": one.median_oracle_kl,
            "median rise of retain NLL": one.median_retain_rise,
        }
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
            {
                "method": method,
                "kind": mine[0].kind,
                "candidates": len(mine),
                "oracle-KL, median and quartiles": Estimate(middle, low, high),
                "forget NLL beyond the reference": float(np.median(forget)),
                "retain NLL beyond the reference": float(np.median(retain)),
            }
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
        {
            "cell": one.cell,
            "candidate": one.candidate,
            "method": one.method,
            "kind": one.kind,
            "oracle-KL": one.oracle_kl,
            "held-out forget NLL": one.forget_nll,
            "retain NLL": one.retain_nll,
            "reference forget NLL": one.reference_forget_nll,
            "reference retain NLL": one.reference_retain_nll,
        }
        for one in trained_probe.diagnostic(results)
    ]
    reading = f"The data of the diagnostic figure: {len(rows)} candidates."
    return Table.of("diagnostic-points", "Diagnostic, every candidate", reading, rows)


def sub_panel_table(results: RunResults) -> Table:
    """Return the screen at every smaller number of probes."""
    found = sub_panels(results)
    rows: Rows = [
        {
            "probes": one.probes,
            "cells that can exclude": Share(one.certifiable, one.cells),
            "excluded": Share(one.excluded, one.candidates),
            "at the smallest p": one.at_floor,
            "smallest p": one.smallest_p,
            "can exclude": not one.vacuous,
        }
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

    def row(what: str, *values: Value) -> dict[str, Value]:
        names = ("count", "estimate", "smallest margin", "largest margin")
        return {"quantity": what} | dict(zip(names, values))

    rows: Rows = [
        row("survivors", Share(found.survivors, found.candidates), None, None, None),
        row("median |gap|, nats", None, Estimate.of(found.gap, found.median_gap), None, None),
    ]
    reading = f"{found.survivors} of {found.candidates} candidates survive the screen"
    for share in found.shares:
        part = Estimate.of(share.share, share.equivalent / share.total if share.total else None)
        count = Share(share.equivalent, share.total)
        rows.append(
            row(f"equivalent at {share.margin}", count, part, share.smallest, share.largest)
        )
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

    def row(label: str, counts: absolute.ComponentCounts, *spreads: Estimate | None) -> None:
        shares = {
            name: Share(getattr(counts, field), counts.total)
            for name, field in (
                ("screen", "screen"),
                ("retain", "retain"),
                ("residual", "residual"),
                ("all three", "all"),
            )
        }
        names = ("retain NLL, median and range", "residual, median and range")
        rows.append({"model": label} | shares | dict(zip(names, spreads)))

    for name in absolute.AUDITED:
        mine = [one for one in audited if one.model == name]
        if mine:
            counts = absolute.components([one.bar for one in mine])
            row(
                name,
                counts,
                _range([m.retain_nll for m in mine]),
                _range([m.residual for m in mine]),
            )
            passing.append(f"the {name} passes in {counts.all} of {counts.total} cells")
    for method in (*results.methods, None):
        counts = absolute.components(absolute.candidate_bars(results, method))
        row("all candidates" if method is None else method, counts, None, None)
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
        {
            "cell": one.cell,
            "family": one.family,
            "model": one.model,
            "p": one.p_value,
            "screen": one.bar.screen,
            "retain NLL": one.retain_nll,
            "retain": one.bar.retain,
            "residual": one.residual,
            "residual at most the limit": one.bar.residual,
            "all three": one.bar.clears,
        }
        for one in audited
    ]
    failing = sum(not one.bar.clears for one in audited)
    reading = f"{failing} of {len(audited)} known models fail at least one component."
    return Table.of("absolute-bar-cells", "The absolute bar, cell by cell", reading, rows)


def budget_table(results: RunResults) -> Table:
    """Return the injected model's own residual by budget and family."""
    points = absolute.budget_curve(results)
    rows: Rows = [
        {
            "family": one.family,
            "steps": one.step,
            "median residual": one.residual.median,
            "smallest": one.residual.low,
            "largest": one.residual.high,
            "at most the limit": Share(one.closes, one.cells),
        }
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
        rows.append(
            {
                "family": family,
                "replicated cells": ", ".join(draws.cell for draws in one.cells),
                "draws": sum(draws.tolerances.draws for draws in one.cells),
                "delta_f, bootstrap": Estimate.of(found.delta_f),
                "delta_f, one draw left out": Estimate(
                    one.tolerances.delta_f, *found.delta_without_one_draw
                ),
                "epsilon_f retain": Estimate.of(found.epsilon_retain),
                "epsilon_f residual": Estimate.of(found.epsilon_residual),
                "deviation of first-chunk falls": one.tolerances.fall_deviation,
            }
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


def _range(values: list[float]) -> Estimate:
    one = absolute.summary(values)
    return Estimate(one.median, one.low, one.high)
