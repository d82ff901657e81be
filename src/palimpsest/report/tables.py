"""Every table of a run, in the order a reader needs them; all computed from stored files."""

from collections.abc import Callable, Mapping

from palimpsest.analysis.results import RunResults
from palimpsest.analysis.second_suite import compare
from palimpsest.criteria.measures import CellMeasures
from palimpsest.report import bar_tables, cell_tables, paper_tables
from palimpsest.report.cell_tables import candidates_table
from palimpsest.report.formats import Table, as_csv, as_latex, as_markdown

__all__ = ["all_tables", "as_csv", "as_latex", "as_markdown", "candidates_table", "has_paper"]

CELL: tuple[Callable[[RunResults], Table], ...] = (
    cell_tables.cells_table,
    cell_tables.candidates_table,
    cell_tables.controls_table,
    cell_tables.control_rates_table,
    cell_tables.methods_table,
    cell_tables.models_table,
    cell_tables.positions_table,
    cell_tables.deltas_table,
    cell_tables.curves_table,
    cell_tables.failed_table,
)
"""Tables that every run has."""
PAPER = {
    "trained-probe": paper_tables.trained_probe_table,
    "dichotomy": paper_tables.dichotomy_table,
    "diagnostic": paper_tables.diagnostic_table,
    "diagnostic-points": paper_tables.points_table,
    "sub-panels": paper_tables.sub_panel_table,
    "survivors": paper_tables.survivors_table,
    "absolute-bar": paper_tables.absolute_table,
    "absolute-bar-cells": paper_tables.absolute_cells_table,
    "budget": paper_tables.budget_table,
    "replication": paper_tables.replication_table,
    "panel": bar_tables.panel_table,
    "panel-cells": bar_tables.panel_cells_table,
    "recalibrated-bar": bar_tables.versions_table,
    "recalibrated-passing": bar_tables.passing_table,
    "selection": bar_tables.selection_table,
    "suppression": bar_tables.suppression_table,
    "self-check": bar_tables.self_check_table,
}
"""Tables of the paper's edition by name, for runs that have what they need."""


def all_tables(
    results: RunResults, second: Mapping[str, CellMeasures] | None = None
) -> tuple[Table, ...]:
    """Return every table that the run has the numbers for.

    ``second`` holds the scores of a second suite (``second_suite.read_second``).
    """
    made = [table(results) for table in CELL]
    if has_paper(results):
        made += [table(results) for table in PAPER.values()]
        compared = compare(results, second)
        made += [bar_tables.second_suite_table(compared)] if compared else []
    return tuple(made)


def has_paper(results: RunResults) -> bool:
    """Return whether the paper's edition can be computed: references, round trip and oracle-KL."""
    known = ("retain_nll", "residual", "oracle_kl")
    return bool(results.cells) and all(
        cell.candidates
        and cell.evaluation.references
        and "injected" in cell.evaluation
        and cell.evaluation.injected.curve is not None
        and all(
            getattr(cell.evaluation[name], key) is not None
            for name in ("injected", cell.evaluation.references[0], *cell.candidates)
            for key in known
        )
        for cell in results.cells
    )
