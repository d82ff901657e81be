"""Tables over cells and models: what was done where, and every number behind a verdict."""

from collections import Counter
from collections.abc import Iterable

from palimpsest.analysis.results import CellResult, RunResults
from palimpsest.criteria.axes import Axis, chosen
from palimpsest.criteria.retraining import Comparison
from palimpsest.report.formats import Share, Table, Value, counted
from palimpsest.report.positions import ROLES, control_label, label, positions
from palimpsest.verdict import Finding

Rows = list[dict[str, Value]]
KINDS = {
    "injected": "injected model",
    "interpolation": "interpolation towards injected",
    "suppressor": "known suppressor",
    "retraining": "fresh retraining",
    "reference": "reference, left out",
}
"""Kinds of controls, in words."""


def cells_table(results: RunResults) -> Table:
    """Return every planned cell: finished with its verdict, or why not."""
    finished = {cell.id: cell for cell in results.cells}
    missing = {one.id: one for one in results.missing}
    rows: Rows = []
    for cell_id in results.planned:
        cell = finished.get(cell_id)
        verdict = None if cell is None else cell.verdict
        rows.append(
            {
                "cell": cell_id,
                "family": None if cell is None else cell.family,
                "state": "finished" if cell is not None else missing[cell_id].state,
                "references": None if cell is None else len(cell.evaluation.references),
                "candidates": None if cell is None else len(cell.candidates),
                "failed": None if cell is None else len(cell.failed),
                "survive the screen": None
                if cell is None
                else Share(len(cell.survivors), len(cell.candidates)),
                "verdict": None if verdict is None else verdict.status,
                "candidate": None if verdict is None else verdict.candidate,
                "reason": (missing[cell_id].reason or None)
                if cell is None
                else None
                if verdict is None
                else verdict.reason,
                "detection limit": None if verdict is None else verdict.detection_limit,
            }
        )
    certified = sum(cell.verdict is not None and cell.verdict.certified for cell in results.cells)
    reading = (
        f"{len(results.cells)} of {len(results.planned)} planned cells are finished; {certified} "
        f"of them {'certifies' if certified == 1 else 'certify'} a candidate"
    )
    reading += f", and {len(missing)} are missing." if missing else "."
    return Table.of("cells", "Cells and their verdicts", reading, rows, {"detection limit": ".0%"})


def candidates_table(results: RunResults, cell_id: str | None = None) -> Table:
    """Return every candidate of the run, or of one cell, with every number behind the verdict."""
    axes = chosen(results.rules)
    rows: Rows = []
    excluded = accepted = 0
    for cell in results.cells:
        if cell.verdict is None or cell_id not in (None, cell.id):
            continue
        for one in cell.verdict.findings:
            excluded += one.excluded
            accepted += one.comparison is not None and one.comparison.accepted
            rows.append(_candidate(cell, one, axes))
    name = "candidates" if cell_id is None else f"candidates-{cell_id}"
    title = "Candidates" if cell_id is None else f"Candidates of {cell_id}"
    reading = (
        f"The screen excludes {excluded} of {counted(len(rows), 'candidate')}; {accepted} cannot "
        "be told from a retraining."
    )
    return Table.of(name, title, reading, rows, _forms(axes))


def _candidate(cell: CellResult, one: Finding, axes: Iterable[Axis]) -> dict[str, Value]:
    row: dict[str, Value] = {
        "cell": cell.id,
        "candidate": one.name,
        "method": cell.methods.get(one.name),
        "outcome": outcome(one),
        **compared(one.comparison, axes),
        "screen p": one.p_value,
        "screen p (Holm)": one.adjusted_p,
        "excluded by the screen": one.excluded,
        "median gap": one.median_gap,
    }
    return row | {f"{axis.title}, {axis.unit}": one.values.get(axis.name) for axis in axes}


def compared(comparison: Comparison | None, axes: Iterable[Axis]) -> dict[str, Value]:
    """Return the columns of a comparison with retrainings: p, worst axis, z and gap per axis."""
    known = comparison
    columns: dict[str, Value] = {
        "p": None if known is None else known.p,
        "test": None if known is None else known.test,
        "restored": None if known is None else known.restored,
        "worst axis": None if known is None else known.worst.axis.replace("_", " "),
    }
    for axis in axes:
        columns[axis.title] = None if known is None else known.z.get(axis.name)
    for axis in axes:
        gap = None if known is None else known.gaps.get(axis.name)
        columns[f"gap {axis.title}"] = None if gap is None else gap.share
    for axis in axes:
        gap = None if known is None else known.gaps.get(axis.name)
        columns[f"gap bound {axis.title}"] = None if gap is None else gap.bound
    return columns


def _forms(axes: Iterable[Axis]) -> dict[str, str]:
    forms = {"p": ".2g", "restored": ".0%", "screen p": ".2g", "screen p (Holm)": ".2g"}
    for axis in axes:
        forms[axis.title] = "+.1f"
        forms[f"gap {axis.title}"] = forms[f"gap bound {axis.title}"] = ".0%"
    return forms


def outcome(one: Finding) -> str:
    """Return what became of a candidate, in a few words."""
    if one.excluded:
        return "excluded by the screen"
    if one.comparison is None:
        return "not compared"
    if one.failure is not None:
        return one.failure
    if one.comparison.accepted:
        return "equivalent" if one.comparison.equivalent else "indistinguishable"
    worst = one.comparison.worst
    return f"{worst.axis.replace('_', ' ')} too {worst.direction}"


def controls_table(results: RunResults) -> Table:
    """Return every control of every cell and whether it came out as it should."""
    axes = chosen(results.rules)
    rows: Rows = []
    right = total = 0
    for cell in results.cells:
        for one in () if cell.verdict is None else cell.verdict.controls:
            if one.as_expected is not None:
                right, total = right + one.as_expected, total + 1
            rows.append(
                {
                    "cell": cell.id,
                    "control": control_label(cell, one),
                    "kind": KINDS.get(one.kind, one.kind),
                    "should be": "rejected" if one.expected == "reject" else "accepted",
                    "was": f"missing: {one.missing}"
                    if one.comparison is None
                    else "rejected"
                    if one.rejected
                    else "accepted",
                    **compared(one.comparison, axes),
                }
            )
    reading = f"{right} of {counted(total, 'control')} came out as they should."
    return Table.of("controls", "Controls", reading, rows, _forms(axes))


def models_table(results: RunResults) -> Table:
    """Return the known models of every cell in the units of the axes."""
    axes = chosen(results.rules)
    rows: Rows = []
    for cell in results.cells:
        for name, role in cell.roles.items():
            if name in cell.evaluation and role.get("role") not in ("candidate", None):
                model = cell.evaluation[name]
                row: dict[str, Value] = {"cell": cell.id, "model": label(cell, name)}
                row["role"] = ROLES.get(str(role["role"]), str(role["role"]).replace("_", " "))
                row |= {f"{axis.title}, {axis.unit}": axis.read(model) for axis in axes}
                row["oracle-KL"] = model.oracle_kl
                row["first-chunk fall"] = None if model.curve is None else model.curve.first_fall
                rows.append(row)
    reading = "The models that every candidate is compared with, on every axis"
    reading += "." if len(results.cells) == 1 else f", in {len(results.cells)} cells."
    return Table.of("models", "Known models", reading, rows)


def positions_table(results: RunResults) -> Table:
    """Return every model on every axis, one row each: the data of the figures of axes."""
    rows: Rows = [
        {
            "cell": one.cell,
            "model": one.model,
            "role": one.role,
            "axis": one.axis.name,
            "value": one.value,
            "standard deviations from retraining": one.z,
        }
        for cell in results.cells
        for one in positions(cell, results.rules)
    ]
    reading = f"The data of the figures of axes: {len(rows)} rows."
    return Table.of("positions", "Every model on every axis", reading, rows)


def deltas_table(results: RunResults) -> Table:
    """Return the held-out delta of every forget fact and probe of every model."""
    rows: Rows = []
    for cell in results.cells:
        for name in cell.evaluation:
            model = cell.evaluation[name]
            facts = [("forget", *pair) for pair in zip(model.forget_facts, model.forget_deltas)]
            facts += [("probe", *pair) for pair in zip(model.probe_facts, model.probe_deltas)]
            rows += [
                {"cell": cell.id, "model": name, "set": which, "fact": fact, "delta": float(delta)}
                for which, fact, delta in facts
            ]
    reading = "Held-out NLL of every fact minus base's, in nats."
    return Table.of("forget-deltas", "Deltas of forget facts and probes", reading, rows)


def curves_table(results: RunResults) -> Table:
    """Return the re-acquisition log of every model."""
    rows: Rows = []
    for cell in results.cells:
        for name in cell.evaluation:
            curve = cell.evaluation[name].curve
            if curve is not None:
                rows += [
                    {"cell": cell.id, "model": name, "step": step, "held-out forget NLL": nll}
                    for step, nll in zip(curve.step.tolist(), curve.forget_heldout_nll.tolist())
                ]
    reading = "Held-out forget NLL while the forget facts are learned again, in nats."
    return Table.of("relearning", "Relearning curves", reading, rows)


def failed_table(results: RunResults) -> Table:
    """Return candidates that could not be made, and methods that do not apply."""
    rows: Rows = []
    for cell in results.cells:
        for name, reason in cell.failed.items():
            rows.append({"cell": cell.id, "candidate": name, "state": "failed", "reason": reason})
        for name in cell.not_applicable:
            state = "does not apply"
            rows.append({"cell": cell.id, "candidate": name, "state": state, "reason": None})
    failed = sum(len(cell.failed) for cell in results.cells)
    reading = (
        f"{counted(failed, 'planned candidate')} failed; {len(rows) - failed} do not apply to the "
        f"architecture; {sum(len(cell.candidates) for cell in results.cells)} were judged."
    )
    return Table.of("not-made", "Candidates that were not made", reading, rows)


def methods_table(results: RunResults) -> Table:
    """Return one row per method: how many of its candidates pass each stage."""
    rows: Rows = []
    for method in results.methods:
        mine = [
            (cell, one)
            for cell in results.cells
            for one in (() if cell.verdict is None else cell.verdict.findings)
            if cell.methods[one.name] == method
        ]
        known = [one.comparison for _, one in mine if one.comparison is not None]
        restored = sorted(one.restored for one in known if one.restored is not None)
        worst = Counter(one.worst.axis for one in known if not one.accepted).most_common(1)
        rows.append(
            {
                "method": method,
                "candidates": len(mine),
                "survive the screen": Share(sum(not one.excluded for _, one in mine), len(mine)),
                "accepted": Share.where(one.accepted for one in known),
                "certified in": Share(
                    len({cell.id for cell, one in mine if _certifies(cell, one)}),
                    len({cell.id for cell, _ in mine}),
                ),
                "restored, median": restored[len(restored) // 2] if restored else None,
                "restored, best": restored[-1] if restored else None,
                "most frequent worst axis": worst[0][0].replace("_", " ") if worst else None,
            }
        )
    accepted = sum(row["accepted"].count for row in rows if isinstance(row["accepted"], Share))
    reading = (
        f"{accepted} of {counted(sum(int(str(row['candidates'])) for row in rows), 'candidate')} "
        f"of {counted(len(rows), 'method')} cannot be told from a retraining."
    )
    forms = {"restored, median": ".0%", "restored, best": ".0%"}
    return Table.of("methods", "Methods", reading, rows, forms)


def _certifies(cell: CellResult, one: Finding) -> bool:
    return cell.verdict is not None and cell.verdict.certified and one.clears
