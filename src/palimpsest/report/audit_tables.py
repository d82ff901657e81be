"""Tables of the audits: absolute bar, trained probes, survivors, replication, sub-panels, panel."""

import numpy as np

from palimpsest.report.formats import Estimate, Share, Table, Value, number
from palimpsest.study import absolute, panel, trained_probe
from palimpsest.study.replication import median_delta, replication_intervals
from palimpsest.study.results import RunResults
from palimpsest.study.subpanels import sub_panels
from palimpsest.study.survivors import survivors


def absolute_table(results: RunResults) -> Table:
    """Reference, injected model and candidates by method under the absolute bar."""
    audited = absolute.audit_models(results)
    rows: list[tuple[Value, ...]] = []
    for name in absolute.AUDITED:
        mine = [row for row in audited if row.model == name]
        if mine:
            retain = absolute.summary([row.retain_nll for row in mine])
            residual = absolute.summary([row.residual for row in mine])
            counts = absolute.components([row.bar for row in mine])
            rows.append((name, *_shares(counts), _range(retain), _range(residual)))
    for method in (*results.methods, None):
        bars = absolute.candidate_bars(results, method)
        label = "all candidates" if method is None else method
        rows.append((label, *_shares(absolute.components(bars)), None, None))
    columns: tuple[str, ...] = ("model", "screen", "retain", "residual", "all three")
    columns += ("retain NLL, median and range", "residual, median and range")
    told = [
        f"the {row[0]} {_passes(row[4])}"
        for row in rows
        if row[0] in absolute.AUDITED and isinstance(row[4], Share)
    ]
    everyone = rows[-1][4]
    assert isinstance(everyone, Share)
    reading = (
        f"With limits of {results.rules.retain_limit:g} and {results.rules.residual_limit:g} nats "
        f"{', '.join(told) or 'no known model was scored'}, and {everyone.count} of "
        f"{everyone.total} candidates clear the bar."
    )
    return Table("absolute-bar", "The absolute bar", reading, columns, tuple(rows))


def absolute_cells_table(results: RunResults) -> Table:
    """Reference and injected model under the absolute bar, cell by cell."""
    audited = absolute.audit_models(results)
    rows = tuple(
        (
            *(row.cell, row.family, row.model, row.p_value, row.bar.screen, row.retain_nll),
            *(row.bar.retain, row.residual, row.bar.residual, row.bar.clears),
        )
        for row in audited
    )
    failing = sum(not row.bar.clears for row in audited)
    reading = f"{failing} of {len(audited)} passages of a known model fail at least one component."
    columns: tuple[str, ...] = (
        "cell",
        "family",
        "model",
        "p",
        "screen",
        "retain NLL",
        "retain",
        "residual",
    )
    columns += ("residual at most the limit", "all three")
    return Table(
        "absolute-bar-cells", "The absolute bar, cell by cell", reading, columns, tuple(rows)
    )


def budget_table(results: RunResults) -> Table:
    """The injected model's self-closure by budget and family."""
    points = absolute.budget_curve(results)
    rows = tuple(
        (
            *(one.family, one.step, one.residual.median, one.residual.low, one.residual.high),
            Share(one.closes, one.cells),
        )
        for one in points
    )
    rising = 0
    for family in results.families:
        medians = [one.residual.median for one in points if one.family == family]
        rising += len(medians) > 1 and medians[-1] > medians[0]
    floor = absolute.floors(results)
    reading = (
        f"The residual of the injected model itself rises from the shortest to the longest budget "
        f"in {rising} of {len(results.families)} families"
        + (f"; the median floor is {number(floor.median)} nats." if floor else ".")
    )
    columns: tuple[str, ...] = (
        "family",
        "steps",
        "median residual",
        "smallest",
        "largest",
        "closes its loop",
    )
    return Table("budget", "Round-trip floor by budget", reading, columns, rows)


def trained_probe_table(results: RunResults) -> Table:
    """What candidates rated adequate on trained probes score on held-out forget facts."""
    rows: list[tuple[Value, ...]] = []
    reading = "No candidate is rated adequate on trained probes."
    for level in trained_probe.LEVELS:
        found = trained_probe.held_out(results, level)
        if found is None:
            continue
        mean = Estimate.of(found.interval, found.mean)
        rows.append((level, mean, found.median, found.facts, found.candidates, found.cells))
        if level == "base":
            side = "below" if found.mean < 0 else "above"
            reading = (
                f"The {found.candidates} candidates rated adequate score held-out forget facts "
                f"{number(abs(found.mean))} nats {side} base, which never learned them."
            )
    columns: tuple[str, ...] = (
        "never-learned level",
        "mean per fact",
        "median per fact",
        "facts",
        "candidates",
    )
    return Table(
        "trained-probe",
        "The trained-probe criterion on held-out facts",
        reading,
        (*columns, "cells"),
        tuple(rows),
    )


def dichotomy_table(results: RunResults) -> Table:
    """What the held-out screen excludes, by method."""
    found = trained_probe.by_method(results)
    rows = tuple(
        (
            *(one.method, trained_probe.kind_of(one.method), Share(one.adequate, one.candidates)),
            *(Share(one.excluded, one.candidates), one.excluded / one.candidates),
            *(one.median_gap, one.median_oracle_kl, one.median_retain_rise),
        )
        for one in found
    )
    total = sum(one.candidates for one in found)
    excluded = sum(one.excluded for one in found)
    most = max(found, key=lambda one: one.excluded / one.candidates, default=None)
    reading = f"The held-out screen excludes {excluded} of {total} candidates"
    if most is not None and most.excluded:
        reading += f", most often those of {most.method} ({most.excluded} of {most.candidates})"
    columns: tuple[str, ...] = (
        "method",
        "kind",
        "rated adequate",
        "excluded",
        "share excluded",
        "median gap",
    )
    columns += ("median oracle-KL", "median rise of retain NLL")
    return Table("dichotomy", "What the screen excludes", f"{reading}.", columns, rows)


def diagnostic_table(results: RunResults) -> Table:
    """Restoration against suppression: oracle-KL by method, and at matched forgetting."""
    points = trained_probe.diagnostic(results)
    rows: list[tuple[Value, ...]] = []
    for method in results.methods:
        mine = [one for one in points if one.method == method]
        kl = [one.oracle_kl for one in mine]
        low, middle, high = (float(q) for q in np.quantile(kl, [0.25, 0.5, 0.75]))
        beyond = float(np.median([one.forget_nll - one.reference_forget_nll for one in mine]))
        retain = float(np.median([one.retain_nll - one.reference_retain_nll for one in mine]))
        rows.append((method, mine[0].kind, len(mine), Estimate(middle, low, high), beyond, retain))
    matched = trained_probe.matched_forgetting(points)
    if matched.restoration is None or matched.suppression is None:
        reading = "No restoration and suppression candidate of one cell forget alike."
    else:
        reading = (
            f"In {matched.pairs} pairs that forget alike (held-out forget NLL within "
            f"{trained_probe.MATCHED_WITHIN:g} nat) median oracle-KL is "
            f"{number(matched.restoration)} for restoration and {number(matched.suppression)} for "
            f"suppression; restoration is closer in {matched.closer}."
        )
    columns: tuple[str, ...] = ("method", "kind", "candidates", "oracle-KL, median and quartiles")
    columns += ("forget NLL beyond the reference", "retain NLL beyond the reference")
    return Table("diagnostic", "Restoration and suppression", reading, columns, tuple(rows))


def points_table(results: RunResults) -> Table:
    """Every candidate of the diagnostic figure."""
    rows = tuple(
        (
            *(one.cell, one.candidate, one.method, one.kind, one.oracle_kl, one.forget_nll),
            *(one.retain_nll, one.reference_forget_nll, one.reference_retain_nll),
        )
        for one in trained_probe.diagnostic(results)
    )
    columns: tuple[str, ...] = (
        "cell",
        "candidate",
        "method",
        "kind",
        "oracle-KL",
        "held-out forget NLL",
    )
    columns += ("retain NLL", "reference forget NLL", "reference retain NLL")
    reading = f"The data of the diagnostic figure: {len(rows)} candidates."
    return Table("diagnostic-points", "Diagnostic, every candidate", reading, columns, rows)


def replication_table(results: RunResults) -> Table:
    """delta_f and epsilon_f of each family with their uncertainty."""
    rows: list[tuple[Value, ...]] = []
    for family, one in results.replication.items():
        found = replication_intervals(one, results.rules)
        low, high = found.delta_without_one_draw
        rows.append(
            (
                family,
                ", ".join(draws.cell for draws in one.cells),
                sum(draws.tolerances.draws for draws in one.cells),
                Estimate.of(found.delta_f),
                Estimate(one.tolerances.delta_f, low, high),
                Estimate.of(found.epsilon_retain),
                Estimate.of(found.epsilon_residual),
                one.tolerances.fall_deviation,
            )
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
    columns: tuple[str, ...] = ("family", "replicated cells", "draws", "delta_f, bootstrap")
    columns += ("delta_f, one draw left out", "epsilon_f retain", "epsilon_f residual")
    columns += ("deviation of first-chunk falls",)
    return Table("replication", "Replication noise", reading, columns, tuple(rows))


def survivors_table(results: RunResults) -> Table:
    """How far survivors lie from never-learned, and how many are equivalent to it."""
    found = survivors(results)
    rows: list[tuple[Value, ...]] = [
        ("survivors", Share(found.survivors, found.candidates), None, None, None),
        ("median |gap|, nats", None, Estimate.of(found.gap, found.median_gap), None, None),
    ]
    reading = f"{found.survivors} of {found.candidates} candidates survive the screen"
    for share in found.shares:
        part = share.equivalent / share.total if share.total else None
        rows.append(
            (
                f"equivalent at {share.margin}",
                Share(share.equivalent, share.total),
                Estimate.of(share.share, part),
                share.smallest,
                share.largest,
            )
        )
        if share.margin == "median delta_f":
            reading += (
                f", and {share.equivalent} of them are equivalent to never-learned within "
                f"{number(share.largest)} nats"
            )
    columns: tuple[str, ...] = ("what", "count", "estimate", "smallest margin", "largest margin")
    return Table("survivors", "Surviving is not equivalence", f"{reading}.", columns, tuple(rows))


def sub_panel_table(results: RunResults) -> Table:
    """The screen at every smaller number of probes."""
    found = sub_panels(results)
    rows = tuple(
        (
            *(one.probes, Share(one.certifiable, one.cells), Share(one.excluded, one.candidates)),
            *(one.at_floor, one.smallest_p, "vacuous" if one.vacuous else "can exclude"),
        )
        for one in found
    )
    vacuous = [one.probes for one in found if one.vacuous]
    reading = "Every number of probes can exclude a candidate."
    if vacuous:
        reading = (
            f"With {max(vacuous)} probes or fewer no candidate can be excluded at any effect size"
        )
        reading += (
            f"; with {found[-1].probes} the screen excludes {found[-1].excluded} of "
            f"{found[-1].candidates}."
        )
    columns: tuple[str, ...] = (
        "probes",
        "cells that can exclude",
        "excluded",
        "at the floor",
        "smallest p",
        "reach",
    )
    return Table("sub-panels", "The screen with fewer probes", reading, columns, rows)


_AXES = ("screen", "equivalence", "retain axis", "forward battery", "with round trip", "with veto")


def panel_table(results: RunResults) -> Table:
    """Acceptance of the sealed panel by challenge, with exact upper bounds."""
    rows_found = panel.challenge_panel(results)
    rows: list[tuple[Value, ...]] = []
    for challenge in panel.challenges(rows_found):
        found = [panel.acceptance(rows_found, results, challenge, axis) for axis in panel.AXES]
        shares = [Share(one.count, one.total) if one.total else None for one in found]
        forward, last = found[3], found[5]
        bounds = (forward.upper, forward.upper_clustered, last.upper, last.upper_clustered)
        rows.append((challenge.removeprefix("panel:"), *shares, *bounds))
    told = {row[0]: row for row in rows}
    reading = "The panel was not run."
    if "suppression" in told:
        row = told["suppression"]
        forward_share, veto_share = row[4], row[6]
        if isinstance(forward_share, Share) and isinstance(veto_share, Share):
            reading = (
                f"Logit suppression passes the forward battery in {forward_share.count} of "
                f"{forward_share.total} cells and all axes with the relearn veto in "
                f"{veto_share.count} of {veto_share.total}."
            )
        else:
            reading = "Without tolerances the panel is read on the screen alone."
    columns: tuple[str, ...] = (
        "challenge",
        *_AXES,
        "forward, upper bound",
        "forward, upper bound by architecture",
    )
    columns += ("veto, upper bound", "veto, upper bound by architecture")
    return Table("panel", "The sealed panel: cells that accept", reading, columns, tuple(rows))


def panel_family_table(results: RunResults) -> Table:
    """Acceptance of the sealed panel by challenge and family."""
    rows_found = panel.challenge_panel(results)
    rows: list[tuple[Value, ...]] = []
    for challenge in panel.challenges(rows_found):
        for family in results.families:
            found = [
                panel.acceptance(rows_found, results, challenge, axis, family)
                for axis in panel.AXES
            ]
            shares = [Share(one.count, one.total) if one.total else None for one in found]
            bounds = (found[3].upper, found[5].upper)
            rows.append((challenge.removeprefix("panel:"), family, *shares, *bounds))
    reading = f"The same by family: {len(results.families)} families."
    columns: tuple[str, ...] = (
        "challenge",
        "family",
        *_AXES,
        "forward, upper bound",
        "veto, upper bound",
    )
    return Table("panel-by-family", "The sealed panel by family", reading, columns, tuple(rows))


def panel_cells_table(results: RunResults) -> Table:
    """The sealed panel, every model in every cell."""
    found = panel.challenge_panel(results)
    rows = tuple(
        (
            *(one.cell, one.challenge.removeprefix("panel:"), one.p_value),
            *(one.median_forget_delta, one.forget_distance, one.fall),
            *(getattr(one, axis) for axis in panel.AXES),
        )
        for one in found
    )
    reading = f"{len(rows)} passages through the battery, read on the sealed pool."
    columns: tuple[str, ...] = ("cell", "challenge", "p", "median forget delta", "forget distance")
    columns += ("first-chunk fall", *_AXES)
    return Table("panel-cells", "The sealed panel, cell by cell", reading, columns, rows)


def _passes(share: Share) -> str:
    if share.total == 1:
        return f"{'passes' if share.count else 'does not pass'} all three components"
    return f"passes all three components in {share.count} of {share.total} cells"


def _shares(counts: absolute.ComponentCounts) -> tuple[Share, Share, Share, Share]:
    total = counts.total
    passing = (counts.screen, counts.retain, counts.residual, counts.all)
    first, second, third, fourth = (Share(count, total) for count in passing)
    return first, second, third, fourth


def _range(one: absolute.Summary) -> Estimate:
    return Estimate(one.median, one.low, one.high)
