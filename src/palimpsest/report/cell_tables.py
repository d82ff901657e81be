"""Tables over cells and models: what was done where, and every number behind a verdict."""

from collections.abc import Iterable

from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.analysis.table import Estimate, Row, Share, Table, counted, row
from palimpsest.criteria.axes import Axis, chosen
from palimpsest.criteria.controls import Control
from palimpsest.criteria.intervals import clopper_pearson
from palimpsest.criteria.retraining import Comparison
from palimpsest.report.positions import (
    ROLES,
    control_label,
    known,
    label,
    reference_distances,
)
from palimpsest.verdict import Finding

KINDS = {
    "injected": "injected model",
    "interpolation": "interpolation towards injected",
    "suppressor": "known-label model",
    "retraining": "fresh retraining",
    "reference": "reference against the others",
}
"""Kinds of controls, in words."""


def cells_table(results: RunResults) -> Table:
    """Return every planned cell: finished with its verdict, or why not."""
    finished = {cell.id: cell for cell in results.cells}
    missing = {absent.id: absent for absent in results.missing}
    first = "cell|family|state|references|candidates|failed|survive the screen"
    rows: list[Row] = []
    for cell_id in results.planned:
        if cell_id in missing:
            state, reason = missing[cell_id].state, missing[cell_id].reason or None
            values = row(first, cell_id, None, state, None, None, None, None)
            values |= row("verdict|candidate|reason|detection limit", None, None, reason, None)
        else:
            cell, verdict = finished[cell_id], finished[cell_id].verdict
            kept = Share(len(cell.survivors), len(cell.candidates))
            counts = (len(cell.evaluation.references), len(cell.candidates), len(cell.failed))
            values = row(first, cell_id, cell.family, "finished", *counts, kept)
            for key in ("status", "candidate", "reason", "detection_limit"):
                title = {"status": "verdict", "detection_limit": "detection limit"}.get(key, key)
                values[title] = None if verdict is None else getattr(verdict, key)
        rows.append(values)
    certified = results.certified
    reading = (
        f"{len(results.cells)} of {len(results.planned)} planned cells are finished; {certified} "
        f"of them {'certifies' if certified == 1 else 'certify'} a candidate"
    )
    reading += f", and {len(missing)} are missing." if missing else "."
    return Table.of("cells", "Cells and their verdicts", reading, rows, {"detection limit": ".0%"})


def candidates_table(results: RunResults, cell_id: str | None = None) -> Table:
    """Return every candidate of the run, or of one cell, with every number behind the verdict."""
    axes = chosen(results.rules)
    rows: list[Row] = []
    excluded = accepted = 0
    for cell, verdict in results.judged:
        for finding in verdict.findings if cell_id in (None, cell.id) else ():
            excluded += finding.excluded
            accepted += finding.comparison is not None and finding.comparison.accepted
            rows.append(_candidate(cell, finding, axes))
    name = "candidates" if cell_id is None else f"candidates-{cell_id}"
    title = "Candidates" if cell_id is None else f"Candidates of {cell_id}"
    reading = (
        f"The screen excludes {excluded} of {counted(len(rows), 'candidate')}; {accepted} "
        f"{'is' if accepted == 1 else 'are'} indistinguishable from a retraining."
    )
    return Table.of(name, title, reading, rows, _forms(axes))


def _candidate(cell: CellResult, finding: Finding, axes: Iterable[Axis]) -> Row:
    method = cell.methods.get(finding.name)
    return (
        row("cell|candidate|method|outcome", cell.id, finding.name, method, outcome(finding))
        | compared(finding.comparison, axes)
        | row("screen p|screen p (Holm)", finding.p_value, finding.adjusted_p)
        | row("excluded by the screen|median gap", finding.excluded, finding.median_gap)
        | {f"{axis.title}, {axis.unit}": finding.values.get(axis.name) for axis in axes}
    )


def compared(comparison: Comparison | None, axes: Iterable[Axis]) -> Row:
    """Return the columns of a comparison with retrainings: p, worst axis, z and gap per axis."""
    if comparison is None:
        columns = row("p|test|restored|worst axis", None, None, None, None)
    else:
        worst = comparison.worst.axis.replace("_", " ")
        columns = row("p|test|restored", comparison.p, comparison.test, comparison.restored)
        columns |= row("worst axis", worst)
    z = {} if comparison is None else comparison.z
    gaps = {} if comparison is None else comparison.gaps
    columns |= {axis.title: z.get(axis.name) for axis in axes}
    for part in ("share", "bound"):
        title = "gap" if part == "share" else "gap bound"
        columns |= {f"{title} {a.title}": getattr(gaps.get(a.name), part, None) for a in axes}
    return columns


def _forms(axes: Iterable[Axis]) -> dict[str, str]:
    forms = {"p": ".2g", "restored": ".0%", "screen p": ".2g", "screen p (Holm)": ".2g"}
    for axis in axes:
        forms[axis.title] = "+.1f"
        forms[f"gap {axis.title}"] = forms[f"gap bound {axis.title}"] = ".0%"
    return forms


def outcome(finding: Finding) -> str:
    """Return what became of a candidate, in a few words."""
    if finding.excluded:
        return "excluded by the screen"
    if finding.comparison is None:
        return "not compared"
    if finding.failure is not None:
        return finding.failure
    if finding.comparison.accepted:
        return "equivalent" if finding.comparison.equivalent else "indistinguishable"
    worst = finding.comparison.worst
    return f"{worst.axis.replace('_', ' ')} too {worst.direction}"


def controls_table(results: RunResults) -> Table:
    """Return every control of every cell and whether it came out as it should."""
    axes = chosen(results.rules)
    rows: list[Row] = []
    right = total = 0
    for cell, verdict in results.judged:
        for control in verdict.controls:
            if control.as_expected is not None:
                right, total = right + control.as_expected, total + 1
            was = "rejected" if control.rejected else "accepted"
            wanted = "rejected" if control.expected == "reject" else "accepted"
            rows.append(
                row("cell|control", cell.id, control_label(cell, control))
                | row("kind|should be", KINDS.get(control.kind, control.kind), wanted)
                | row("was", was if control.comparison else f"missing: {control.missing}")
                | compared(control.comparison, axes)
            )
    reading = f"{right} of {counted(total, 'control')} came out as they should."
    return Table.of("controls", "Controls", reading, rows, _forms(axes))


def models_table(results: RunResults) -> Table:
    """Return the known models of every cell in the units of the axes."""
    axes = chosen(results.rules)
    rows: list[Row] = []
    for cell in results.cells:
        for name, role in cell.roles.items():
            if name in cell.evaluation and role.get("role") not in ("candidate", None):
                model = cell.evaluation[name]
                words = ROLES.get(str(role["role"]), str(role["role"]).replace("_", " "))
                fall = None if model.curve is None else model.curve.first_fall
                rows.append(
                    row("cell|model|role", cell.id, label(cell, name), words)
                    | {f"{axis.title}, {axis.unit}": axis.read(model) for axis in axes}
                    | row("oracle-KL|first-chunk fall", model.oracle_kl, fall)
                )
    reading = "The models that every candidate is compared with, on every axis"
    reading += "." if len(results.cells) == 1 else f", in {len(results.cells)} cells."
    return Table.of("models", "Known models", reading, rows)


def positions_table(results: RunResults) -> Table:
    """Return every model on every axis on which it was measured, one row each: the data of the
    figures of axes. Distances are the verdict's; those of the references are from the same bag."""
    rows: list[Row] = []
    for cell in results.cells:
        judged: list[Finding | Control] = []
        if cell.verdict is not None:
            judged += [*cell.verdict.findings, *cell.verdict.controls]
        distances = {model.name: known(model.comparison) for model in judged}
        distances |= reference_distances(cell, results.rules)
        names = {name: str(cell.roles.get(name, {}).get("role", "")) for name in cell.evaluation}
        for role, name in ((role, name) for role in ROLES for name in names if names[name] == role):
            for axis in chosen(results.rules):
                value = axis.read(cell.evaluation[name])
                z = distances.get(name, {}).get(axis.name)
                if value is not None:
                    rows.append(
                        row("cell|model|role|axis", cell.id, name, role, axis.name)
                        | row("value|standard deviations from retraining", value, z)
                    )
    reading = f"The data of the figures of axes: {len(rows)} rows."
    return Table.of("positions", "Every model on every axis", reading, rows)


def deltas_table(results: RunResults) -> Table:
    """Return the held-out delta of every forget fact and probe of every model."""
    rows: list[Row] = []
    for cell in results.cells:
        for name in cell.evaluation:
            model = cell.evaluation[name]
            facts = [("forget", *pair) for pair in zip(model.forget_facts, model.forget_deltas)]
            facts += [("probe", *pair) for pair in zip(model.probe_facts, model.probe_deltas)]
            rows += [
                row("cell|model|set|fact|delta", cell.id, name, which, fact, float(delta))
                for which, fact, delta in facts
            ]
    reading = "Held-out NLL of every fact minus base's, in nats."
    return Table.of("forget-deltas", "Deltas of forget facts and probes", reading, rows)


def curves_table(results: RunResults) -> Table:
    """Return the re-acquisition log of every model."""
    rows: list[Row] = []
    for cell in results.cells:
        for name in cell.evaluation:
            curve = cell.evaluation[name].curve
            if curve is not None:
                rows += [
                    row("cell|model|step|held-out forget NLL", cell.id, name, step, nll)
                    for step, nll in zip(curve.step.tolist(), curve.forget_heldout_nll.tolist())
                ]
    reading = "Held-out forget NLL while the forget facts are learned again, in nats."
    return Table.of("relearning", "Relearning curves", reading, rows)


def failed_table(results: RunResults) -> Table:
    """Return candidates that could not be made, and methods that do not apply."""
    rows: list[Row] = []
    for cell in results.cells:
        candidates = [(name, "failed", reason) for name, reason in cell.failed.items()]
        candidates += [(name, "does not apply", "") for name in cell.not_applicable]
        rows += [
            row("cell|candidate|state|reason", cell.id, *candidate) for candidate in candidates
        ]
    failed = sum(len(cell.failed) for cell in results.cells)
    reading = (
        f"{counted(failed, 'planned candidate')} failed; {len(rows) - failed} do not apply to the "
        f"architecture; {sum(len(cell.candidates) for cell in results.cells)} were judged."
    )
    return Table.of("not-made", "Candidates that were not made", reading, rows)


def control_rates_table(results: RunResults) -> Table:
    """Return how often each kind of control came out as it should, over all cells.

    Each share has an exact interval over models; models that share a bag of references share its
    luck, so the count of cells is given too.
    """
    groups: dict[tuple[str, float | str | None], list[tuple[str, bool]]] = {}
    missing = 0
    for cell, verdict in results.judged:
        for control in verdict.controls:
            which: float | str | None = control.share
            if control.kind == "suppressor":
                which = str(cell.roles[control.name].get("entry") or control.name)
            if control.comparison is None:
                missing += 1
            else:
                event = (cell.id, bool(control.as_expected))
                groups.setdefault((control.kind, which), []).append(event)
    titles: dict[tuple[str, float | str | None], str] = {
        ("reference", None): "references accepted",
        ("retraining", None): "fresh retrainings accepted",
        ("injected", None): "injected models rejected",
    }
    shares = sorted((which for _, which in groups if isinstance(which, float)), reverse=True)
    for share in shares:
        left = f"{100 * share:g} % of the injected weights left, rejected"
        titles["interpolation", share] = left
    titles |= {key: f"{key[1]} rejected" for key in groups if key[0] == "suppressor"}
    rows: list[Row] = []
    for key, title in titles.items():
        events = groups.get(key, [])
        if events:
            right = sum(expected for _, expected in events)
            interval = clopper_pearson(right, len(events), results.rules.confidence)
            rows.append(
                row("control|models", title, Share(right, len(events)))
                | row("cells", len({cell for cell, _ in events}))
                | row("share and interval", Estimate.of(interval))
            )
    cells = {cell for events in groups.values() for cell, _ in events}
    reading = f"Controls of {counted(len(cells), 'cell')}; {missing} could not be compared."
    return Table.of("control-rates", "Controls over all cells", reading, rows)
