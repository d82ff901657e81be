"""Tables over cells and candidates: what was done where, and every number behind a verdict."""

from palimpsest.report.formats import Share, Table, Value
from palimpsest.study.results import CellResult, RunResults


def cells_table(results: RunResults) -> Table:
    """Every planned cell: finished with its verdict, or why not."""
    rows: list[tuple[Value, ...]] = []
    found = {cell.id: cell for cell in results.cells}
    absent = {one.id: one for one in results.missing}
    for cell_id in results.planned:
        if cell_id in found:
            rows.append(_cell_row(found[cell_id]))
        else:
            one = absent[cell_id]
            nothing: tuple[Value, ...] = (None,) * 8
            rows.append((cell_id, None, one.state, *nothing, one.reason or None))
    certified = sum(cell.verdict is not None and cell.verdict.certified for cell in results.cells)
    reading = (
        f"{len(results.cells)} of {len(results.planned)} planned cells are finished; "
        f"{certified} of them certify a candidate under the run's rules"
    )
    reading += f", and {len(absent)} are missing and named below." if absent else "."
    columns: tuple[str, ...] = (
        "cell",
        "family",
        "state",
        "draws",
        "candidates",
        "failed",
        "survivors",
    )
    columns += ("floor", "injected retain NLL", "verdict", "candidate", "reason")
    return Table("cells", "Cells and their verdicts", reading, columns, tuple(rows))


def _cell_row(cell: CellResult) -> tuple[Value, ...]:
    verdict = cell.verdict
    injected = cell.evaluation.injected
    return (
        cell.id,
        cell.family,
        "finished",
        cell.draws,
        len(cell.candidates),
        len(cell.failed),
        Share(len(cell.survivors), len(cell.candidates)),
        injected.residual,
        injected.retain_nll,
        None if verdict is None else f"{verdict.status} ({verdict.mode})",
        None if verdict is None else verdict.candidate,
        None if verdict is None else verdict.reason,
    )


def candidates_table(results: RunResults, cell_id: str | None = None) -> Table:
    """Every candidate of the run, or of one cell, with every number the verdict looked at."""
    cells = [cell for cell in results.cells if cell_id is None or cell.id == cell_id]
    rows: list[tuple[Value, ...]] = []
    excluded = clearing = 0
    for cell in cells:
        for one in () if cell.verdict is None else cell.verdict.findings:
            model = cell.evaluation[one.name]
            excluded += one.excluded
            clearing += one.clears
            rows.append(
                (
                    cell.id,
                    one.name,
                    cell.methods[one.name],
                    one.p_value,
                    one.adjusted_p,
                    one.excluded,
                    one.median_gap,
                    model.forget_nll,
                    one.retain_nll,
                    model.general_nll,
                    one.residual,
                    model.oracle_kl,
                    one.forget_distance,
                    one.retain_damage,
                    one.residual_damage,
                    one.worst_axis,
                    one.fall,
                    "; ".join(one.failures) or "clears the bar",
                )
            )
    where = "" if cell_id is None else f" of {cell_id}"
    reading = (
        f"Of {len(rows)} candidates the screen excludes {excluded}, and {clearing} clear every "
        "axis of the bar."
    )
    columns: tuple[str, ...] = (
        "cell",
        "candidate",
        "method",
        "p",
        "adjusted p",
        "excluded",
        "median gap",
    )
    columns += ("held-out forget NLL", "retain NLL", "general NLL", "residual", "oracle-KL")
    columns += ("forget distance", "retain damage", "round-trip damage", "worst axis")
    columns += ("first-chunk fall", "outcome")
    name = "candidates" if cell_id is None else f"candidates-{cell_id}"
    return Table(name, f"Candidates{where}", reading, columns, tuple(rows))


def failed_table(results: RunResults) -> Table:
    """Candidates that could not be made, and methods that do not apply."""
    rows: list[tuple[Value, ...]] = []
    for cell in results.cells:
        rows += [(cell.id, name, "failed", reason) for name, reason in cell.failed.items()]
        rows += [(cell.id, name, "does not apply", None) for name in cell.not_applicable]
    failed = sum(len(cell.failed) for cell in results.cells)
    misfits = sum(len(cell.not_applicable) for cell in results.cells)
    reading = (
        f"{failed} planned candidates failed; {misfits} were never meant for their architecture; "
        f"{sum(len(cell.candidates) for cell in results.cells)} were judged."
    )
    columns: tuple[str, ...] = ("cell", "candidate", "state", "reason")
    return Table("not-made", "Candidates that were not made", reading, columns, tuple(rows))


def models_table(results: RunResults) -> Table:
    """Base, injected and reference of every cell: the operating point of the testbed."""
    rows: list[tuple[Value, ...]] = []
    for cell in results.cells:
        measures = cell.evaluation
        for name in ("base", "injected", *measures.references):
            model = measures[name]
            fall = None if model.curve is None else model.curve.first_fall
            rows.append(
                (
                    cell.id,
                    name,
                    model.forget_nll,
                    model.median_forget_delta,
                    model.median_gap,
                    model.retain_nll,
                    model.general_nll,
                    model.oracle_kl,
                    model.residual,
                    fall,
                )
            )
    reading = (
        "Held-out forget NLL, retain NLL and residual of the models every criterion refers to"
        + ("." if len(results.cells) == 1 else f", in {len(results.cells)} cells.")
    )
    columns: tuple[str, ...] = (
        "cell",
        "model",
        "held-out forget NLL",
        "median forget delta",
        "median gap",
    )
    columns += ("retain NLL", "general NLL", "oracle-KL", "residual", "first-chunk fall")
    return Table("models", "Base, injected and reference", reading, columns, tuple(rows))
