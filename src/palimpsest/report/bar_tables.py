"""Tables of the paper's edition: known-label models and candidates under the recalibrated bar.

They are computed for comparison with the paper; no verdict depends on them.
"""

from palimpsest.analysis import panel, recalibration, self_audit
from palimpsest.analysis.recalibration import Bounded, Certification
from palimpsest.analysis.results import RunResults
from palimpsest.analysis.second_suite import Comparison
from palimpsest.analysis.suppression import let_through
from palimpsest.report.formats import Estimate, Share, Table, Value, counted, number, row

Rows = list[dict[str, Value]]
BATTERIES = {
    "screen": "screen alone",
    "equivalence": "equivalence",
    "retain": "retain axis",
    "forward": "forward battery",
    "round_trip": "with round trip",
    "relearning": "with round trip and relearn veto",
}
"""The paper's batteries, by name in ``panel.AXES``."""
_QUALITY = {
    "forget distance": "forget_distance",
    "retain damage+": "retain_damage",
    "round-trip damage+": "residual_damage",
    "trained-probe KL": "oracle_kl",
}


def entries(results: RunResults) -> dict[str, str]:
    """Return the registry's name of every known-label model, by its name in the cells."""
    return {
        name: str(role.get("entry", name))
        for cell in results.cells
        for name, role in cell.roles.items()
        if role.get("role") == "challenge"
    }


def panel_table(results: RunResults) -> Table:
    """Return in how many cells each battery accepts each known-label model, with upper bounds."""
    judged = panel.challenge_panel(results)
    short = entries(results)
    suppressors = {rate.challenge for rate in judged if rate.truth == "suppressed"}
    rows: Rows = []
    accepted: dict[str, list[tuple[int, int]]] = {"forward": [], "relearning": []}
    for name in panel.challenges(judged):
        rates = {axis: panel.acceptance(judged, results, name, axis) for axis in BATTERIES}
        values = row("model", short.get(name, name))
        values |= {BATTERIES[axis]: _share(rate) for axis, rate in rates.items()}
        for axis, label in (("forward", "forward"), ("relearning", "veto")):
            values |= _bounds(label, rates[axis])
            if name in suppressors:
                accepted[axis].append((rates[axis].count, rates[axis].total))
        rows.append(values)
    counts = {axis: [sum(part) for part in zip(*some)] for axis, some in accepted.items()}
    reading = "The panel was not run."
    if rows and not any(total for _, total in accepted["forward"]):
        reading = "Without tolerances the panel is judged by the screen alone."
    elif rows and accepted["forward"]:
        reading = (
            f"Known suppressors pass the forward battery {counts['forward'][0]} times of "
            f"{counts['forward'][1]}, and {counts['relearning'][0]} times of "
            f"{counts['relearning'][1]} with round trip and relearn veto."
        )
    elif rows:
        reading = f"{len(rows)} known models went through the paper's batteries."
    return Table.of("panel", "Known-label models: cells that accept them", reading, rows)


def panel_cells_table(results: RunResults) -> Table:
    """Return every known-label model in every cell."""
    short = entries(results)
    rows: Rows = []
    for model in panel.challenge_panel(results):
        values = row(
            "cell|model|p", model.cell, short.get(model.challenge, model.challenge), model.p_value
        )
        values |= row("median forget delta", model.median_forget_delta)
        values |= row("forget distance|first-chunk fall", model.forget_distance, model.fall)
        rows.append(values | {title: model.verdicts[axis] for axis, title in BATTERIES.items()})
    reading = f"{counted(len(rows), 'known-label model')} scored on the sealed pool."
    return Table.of("panel-cells", "Known-label models, cell by cell", reading, rows)


def versions_table(results: RunResults) -> Table:
    """Return the four versions of the recalibrated bar side by side."""
    rows: Rows = []
    versions = recalibration.versions(results)
    for version in versions:
        picked = recalibration.suppression_picked(results, version)
        deltas = [tolerance.delta_f for tolerance in version.tolerances.values()]
        total = sum(
            cell.kind(name) == "suppresses"
            for cell, name in results.candidates()
            if cell.id in version.verdicts
        )
        reasons = "; ".join(f"{reason} {n}" for reason, n in version.abstentions.items())
        passed = Share(len(version.certified), version.candidates)
        suppressing = Share(recalibration.suppression_certified(version), total)
        rows.append(
            row("version", version.title)
            | row("delta_f", f"{number(min(deltas))} to {number(max(deltas))}")
            | row("candidates that pass", passed)
            | row("cells with one", Share(len(version.certified_cells), version.cells))
            | row("reasons of the others", reasons or None)
            | row("suppressing candidates that pass", suppressing)
            | row("suppression picked", Share(picked.count, picked.total))
            | _bounds("picked", picked)
            | row("cells without tolerances", len(version.without_tolerances))
        )
    reading = "Without replicated references there is no recalibrated bar."
    if versions:
        bare, vetoed, smallest, _ = versions
        reading = f"The bar passes {_counted(bare)}; with the relearn veto {_counted(vetoed)}"
        if len(results.families) > 1:
            reading += f"; at the smallest delta_f of all families {_counted(smallest)}"
        reading += "."
    return Table.of("recalibrated-bar", "The recalibrated bar", reading, rows)


def passing_table(results: RunResults) -> Table:
    """Return the candidates that pass the bar by method and family, without and with the veto."""
    rows: Rows = []
    versions = recalibration.versions(results)[:2]
    families = [family for family in results.families if family in results.tolerances]
    for version in versions:
        for method in (*results.methods, None):
            values = row("version|method", version.title, method or "all methods")
            for family in (*families, None):
                total = sum(
                    (method is None or cell.methods[name] == method)
                    and (family is None or cell.family == family)
                    and cell.id in version.verdicts
                    for cell, name in results.candidates()
                )
                count = version.count(method=method, family=family)
                values[family or "all families"] = Share(count, total) if total else None
            rows.append(values)
    reading = "Without replicated references there is no bar relative to them."
    if versions:
        reading = (
            "; ".join(f"{version.title}: {_leader(results, version)}" for version in versions) + "."
        )
    title = "Candidates that pass the recalibrated bar"
    return Table.of("recalibrated-passing", title, reading, rows)


def selection_table(results: RunResults) -> Table:
    """Return three selectors on the cells where a candidate passes the bar."""
    rows: Rows = []
    readings = []
    for version in recalibration.versions(results)[:2]:
        quality = recalibration.selection_quality(results, version)
        for selector in quality:
            values = row(
                "version|selector|cells", version.title, selector.selector, len(selector.picks)
            )
            for title, field in _QUALITY.items():
                values[title] = Estimate.of(
                    selector.interval(field, version.rules), selector.mean(field)
                )
            within = Share(selector.within_noise, len(selector.picks)) if selector.picks else None
            rows.append(values | row("within delta_f", within))
        ours, trained = quality[0].mean("forget_distance"), quality[2].mean("forget_distance")
        if ours is not None and trained is not None:
            readings.append(
                f"{version.title}: on {counted(len(quality[0].picks), 'cell')} the bar's pick lies "
                f"{number(ours)} nats from the reference and the trained-probe best "
                f"{number(trained)}"
            )
    reading = "; ".join(readings) + "." if readings else "No candidate passes the bar in any cell."
    return Table.of("selection", "Selection quality on the same cells", reading, rows)


def suppression_table(results: RunResults) -> Table:
    """Return how much suppression each battery lets through."""
    short = entries(results)
    rows: Rows = []
    for battery in let_through(results):
        values = row("battery", BATTERIES[battery.battery])
        for name, accepted in battery.panel.items():
            label = short.get(name, name)
            values |= row(f"{label} accepted", _share(accepted)) | _bounds(label, accepted)
        for name, (count, total) in battery.candidates.items():
            values[f"{name} candidates accepted"] = Share(count, total) if total else None
        rows.append(values | row("cells accepting any", _share(battery.cells)))
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
    title = "Suppression that each battery lets through"
    return Table.of("suppression", title, f"{reading}.", rows)


def self_check_table(results: RunResults) -> Table:
    """Return held-out references and the injected model under the recalibrated bar itself."""
    groups = {
        "held-out references": self_audit.held_out_draws(results),
        "injected models": self_audit.injected_models(results),
    }
    rows: Rows = []
    accepted = []
    for label, models in groups.items():
        if models:
            passed = Share(sum(model.accepted for model in models), len(models))
            values = row("models|accepted", label, passed)
            for failure in self_audit.FAILURES:
                count = sum(failure in model.failures for model in models)
                values[f"fails {failure}"] = Share(count, len(models))
            rows.append(values)
            accepted.append(f"{sum(model.accepted for model in models)} of {len(models)} {label}")
    reading = "There are too few references to check the recalibrated bar against them."
    if accepted:
        reading = f"The recalibrated bar with its veto accepts {' and '.join(accepted)}."
    title = "The recalibrated bar on its own references"
    return Table.of("self-check", title, reading, rows)


def second_suite_table(comparisons: tuple[Comparison, ...]) -> Table:
    """Return the frozen picks on the second pool."""
    rows: Rows = [
        row(
            "selector|cells|forget distance",
            comparison.selector,
            comparison.cells,
            comparison.distance,
        )
        | row("trained-probe best's", comparison.trained_probe_distance)
        | row(
            "difference",
            Estimate.of(
                comparison.difference, comparison.distance - comparison.trained_probe_distance
            ),
        )
        | row("nearer", Share(comparison.nearer, comparison.cells))
        | row("within delta_f", Share(comparison.within_noise, comparison.cells))
        | row("excluded by the screen", Share(comparison.excluded, comparison.cells))
        for comparison in comparisons
    ]
    ours = next(
        (comparison for comparison in comparisons if comparison.selector == "recalibrated"), None
    )
    reading = "No pick of the recalibrated bar was scored on the second pool."
    if ours is not None:
        reading = (
            f"On a pool that no choice used, the bar's picks in {counted(ours.cells, 'cell')} lie "
            f"{number(ours.distance)} nats from the reference and the trained-probe best "
            f"{number(ours.trained_probe_distance)}."
        )
    return Table.of("second-suite", "Frozen picks on a second pool", reading, rows)


def _share(rate: Bounded) -> Share | None:
    return Share(rate.count, rate.total) if rate.total else None


def _bounds(label: str, rate: Bounded) -> dict[str, Value]:
    """Return the one-sided upper bounds of a count, over cells and over architectures."""
    columns = f"{label}, upper bound|{label}, upper bound by architecture"
    return row(columns, rate.upper, rate.upper_clustered)


def _leader(results: RunResults, version: Certification) -> str:
    counts = {method: version.count(method=method) for method in results.methods}
    best = max(counts, key=lambda method: counts[method], default=None)
    if best is None or not counts[best]:
        return "no candidate passes"
    return f"{best} leads with {counts[best]} of {len(version.certified)}"


def _counted(version: Certification) -> str:
    text = f"{len(version.certified)} of {version.candidates} candidates"
    if version.cells > 1:
        text += f" in {len(version.certified_cells)} of {version.cells} cells"
    return text
