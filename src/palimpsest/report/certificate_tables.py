"""Tables of the recalibrated certificate: counts, abstentions, selection quality, suppression."""

from palimpsest.report.formats import Estimate, Share, Table, Value, number
from palimpsest.study import recalibration, self_audit
from palimpsest.study.recalibration import Certification
from palimpsest.study.results import SUPPRESSION, RunResults
from palimpsest.study.second_suite import Comparison
from palimpsest.study.suppression import let_through

_QUALITY = (
    ("forget distance", "forget_distance"),
    ("retain damage+", "retain_damage"),
    ("round-trip damage+", "residual_damage"),
    ("trained-probe KL", "oracle_kl"),
)
_BATTERY = {
    "screen": "screen alone",
    "forward": "forward battery",
    "round_trip": "with round trip",
    "relearning": "with round trip and relearn veto",
}


def versions_table(results: RunResults) -> Table:
    """The four versions of the recalibrated bar side by side."""
    rows: list[tuple[Value, ...]] = []
    versions = recalibration.versions(results)
    for version in versions:
        picked = recalibration.suppression_picked(results, version)
        deltas = [one.delta_f for one in version.tolerances.values()]
        total = sum(
            len(cell.of_method(method))
            for cell in results.cells
            if cell.id in version.verdicts
            for method in SUPPRESSION
        )
        rows.append(
            (
                version.title,
                f"{number(min(deltas))} to {number(max(deltas))}",
                Share(len(version.certified), version.candidates),
                Share(len(version.certified_cells), version.cells),
                "; ".join(f"{reason} {count}" for reason, count in version.abstentions.items())
                or None,
                Share(recalibration.suppression_certified(version), total),
                Share(picked.count, picked.total),
                picked.upper,
                picked.upper_clustered,
                len(version.without_tolerances),
            )
        )
    reading = "Without replicated references there is no recalibrated bar."
    if versions:
        bare, vetoed, smallest, _ = versions
        reading = f"The bar certifies {_counted(bare)}; with the relearn veto {_counted(vetoed)}"
        if len(results.families) > 1:
            reading += f"; at the smallest delta_f of all families {_counted(smallest)}"
        reading += "."
    columns: tuple[str, ...] = (
        "version",
        "delta_f",
        "certified candidates",
        "certified cells",
        "abstentions",
    )
    columns += ("GA and NPO certified", "GA or NPO picked", "picked, upper bound")
    columns += ("picked, upper bound by architecture", "cells without tolerances")
    return Table("certificate", "The recalibrated certificate", reading, columns, tuple(rows))


def certified_table(results: RunResults) -> Table:
    """Certified candidates by method and family, without and with the veto."""
    rows: list[tuple[Value, ...]] = []
    versions = recalibration.versions(results)[:2]
    families = [family for family in results.families if family in results.tolerances]
    for version in versions:
        for method in (*results.methods, None):
            counts: list[Value] = []
            for family in (*families, None):
                total = sum(
                    (method is None or cell.methods[name] == method)
                    and (family is None or cell.family == family)
                    and cell.id in version.verdicts
                    for cell, name in results.candidates()
                )
                certified = version.count(method=method, family=family)
                counts.append(Share(certified, total) if total else None)
            rows.append((version.title, method or "all methods", *counts))
    reading = "Without replicated references nobody is certified relative to one."
    if versions:
        reading = "; ".join(f"{one.title}: {_leader(results, one)}" for one in versions) + "."
    columns: tuple[str, ...] = ("version", "method", *families, "all families")
    return Table("certified", "Certified candidates", reading, columns, tuple(rows))


def _leader(results: RunResults, version: Certification) -> str:
    counts = {method: version.count(method=method) for method in results.methods}
    best = max(counts, key=lambda method: counts[method], default=None)
    if best is None or not counts[best]:
        return "none is certified"
    return f"{best} leads with {counts[best]} of {len(version.certified)} certified"


def selection_table(results: RunResults) -> Table:
    """Three selectors on the cells where the certificate does not abstain."""
    rows: list[tuple[Value, ...]] = []
    readings = []
    for version in recalibration.versions(results)[:2]:
        quality = recalibration.selection_quality(results, version)
        for one in quality:
            values = [
                Estimate.of(one.interval(axis, version.rules), one.mean(axis))
                for _, axis in _QUALITY
            ]
            within = Share(one.within_noise, len(one.picks)) if one.picks else None
            rows.append((version.title, one.selector, len(one.picks), *values, within))
        ours, trained = quality[0].mean("forget_distance"), quality[2].mean("forget_distance")
        if ours is not None and trained is not None:
            readings.append(
                f"{version.title}: on {len(quality[0].picks)} "
                f"{'cell' if len(quality[0].picks) == 1 else 'cells'} the certified pick lies "
                f"{number(ours)} nats from the reference and the trained-probe best "
                f"{number(trained)}"
            )
    reading = "; ".join(readings) + "." if readings else "No cell is certified."
    columns: tuple[str, ...] = ("version", "selector", "cells", *(title for title, _ in _QUALITY))
    columns += ("within delta_f",)
    return Table("selection", "Selection quality on the same cells", reading, columns, tuple(rows))


def suppression_table(results: RunResults) -> Table:
    """What each battery lets through of models that only suppress."""
    found = let_through(results)
    panels = list(dict.fromkeys(name for one in found for name in one.panel))
    methods = list(dict.fromkeys(name for one in found for name in one.candidates))
    rows: list[tuple[Value, ...]] = []
    for one in found:
        values: list[Value] = []
        for name in panels:
            accepted = one.panel[name]
            share = Share(accepted.count, accepted.total) if accepted.total else None
            values += [share, accepted.upper, accepted.upper_clustered]
        values += [
            Share(*one.candidates[name]) if one.candidates[name][1] else None for name in methods
        ]
        cells = Share(one.cells.count, one.cells.total) if one.cells.total else None
        rows.append((_BATTERY[one.battery], *values, cells))
    selected = recalibration.residual_selects_suppression(results)
    reading = (
        f"Selection by the smallest residual picks a suppression method in {selected.count} of "
        f"{selected.total} cells"
    )
    if selected.upper is not None and selected.upper_clustered is not None:
        reading += (
            f" (one-sided upper bound {selected.upper:.1%}, by architecture "
            f"{selected.upper_clustered:.1%})"
        )
    columns: tuple[str, ...] = ("battery",)
    for name in panels:
        short = name.removeprefix("panel:")
        columns += (f"{short} accepted", f"{short}, upper bound")
        columns += (f"{short}, upper bound by architecture",)
    columns += (*(f"{name} candidates accepted" for name in methods), "cells accepting any")
    title = "Suppression each battery lets through"
    return Table("suppression", title, f"{reading}.", columns, tuple(rows))


def self_audit_table(results: RunResults) -> Table:
    """Held-out reference draws and the injected model under the recalibrated bar itself."""
    draws, injected = self_audit.held_out_draws(results), self_audit.injected_models(results)
    rows: list[tuple[Value, ...]] = []
    for label, found in (("reference draw, held out", draws), ("injected", injected)):
        if found:
            failed = [
                Share(sum(failure in one.failures for one in found), len(found))
                for failure in self_audit.FAILURES
            ]
            rows.append((label, Share(sum(one.accepted for one in found), len(found)), *failed))
    told = []
    if draws:
        told.append(
            f"{sum(one.accepted for one in draws)} of {len(draws)} held-out reference draws"
        )
    if injected:
        told.append(f"{sum(one.accepted for one in injected)} of {len(injected)} injected models")
    reading = (
        f"The recalibrated bar with its veto accepts {' and '.join(told)}."
        if told
        else "There are too few reference draws to audit the recalibrated bar."
    )
    columns = ("model", "accepted", *(f"fails {failure}" for failure in self_audit.FAILURES))
    title = "The recalibrated bar against its own reference"
    return Table("self-audit", title, reading, columns, tuple(rows))


def second_suite_table(found: tuple[Comparison, ...]) -> Table:
    """Frozen picks on the untouched second pool."""
    rows = tuple(
        (
            *(one.selector, one.cells, one.distance, one.trained_probe_distance),
            Estimate.of(one.difference, one.distance - one.trained_probe_distance),
            *(Share(one.nearer, one.cells), Share(one.within_noise, one.cells)),
            Share(one.excluded, one.cells),
        )
        for one in found
    )
    ours = next((one for one in found if one.selector == "recalibrated"), None)
    reading = "No certified pick was scored on the second pool."
    if ours is not None:
        reading = (
            f"On a pool no choice ever used, the certified picks of {ours.cells} cells lie "
            f"{number(ours.distance)} nats from the reference and the trained-probe best "
            f"{number(ours.trained_probe_distance)}."
        )
    columns: tuple[str, ...] = ("selector", "cells", "forget distance", "trained-probe best's")
    columns += ("difference", "nearer", "within delta_f", "excluded by the screen")
    return Table("second-suite", "Frozen picks on a second suite", reading, columns, rows)


def _counted(version: Certification) -> str:
    counted = f"{len(version.certified)} of {version.candidates} candidates"
    if version.cells > 1:
        counted += f" in {len(version.certified_cells)} of {version.cells} cells"
    return counted
