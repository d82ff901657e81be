"""Every table of a run, in the order a reader needs them; all computed from stored files."""

from collections.abc import Callable, Mapping

from palimpsest.analysis import absolute, panel, recalibrated, trained_probes
from palimpsest.analysis.cost import cost_table
from palimpsest.analysis.leaderboard import (
    leaderboard_cells_table,
    leaderboard_table,
    ranks_table,
)
from palimpsest.analysis.replication import replication_table
from palimpsest.analysis.results import RunResults
from palimpsest.analysis.second_suite import regret_table
from palimpsest.analysis.table import Table
from palimpsest.report import cell_tables
from palimpsest.report.cell_tables import candidates_table

__all__ = ["all_tables", "candidates_table", "has_paper"]

CELL: tuple[Callable[[RunResults], Table], ...] = (
    cell_tables.cells_table,
    cell_tables.candidates_table,
    cell_tables.controls_table,
    cell_tables.control_rates_table,
    lambda results: leaderboard_table({results.name: results}),
    lambda results: leaderboard_cells_table({results.name: results}),
    lambda results: ranks_table({results.name: results}),
    cost_table,
    cell_tables.models_table,
    cell_tables.positions_table,
    cell_tables.deltas_table,
    cell_tables.curves_table,
    cell_tables.failed_table,
)
"""Tables that every run has."""
PAPER: Mapping[str, Callable[[RunResults], Table]] = {
    "trained-probe": trained_probes.trained_probe_table,
    "dichotomy": trained_probes.dichotomy_table,
    "diagnostic": trained_probes.diagnostic_table,
    "diagnostic-points": trained_probes.points_table,
    "sub-panels": trained_probes.sub_panel_table,
    "survivors": trained_probes.survivors_table,
    "absolute-bar": absolute.absolute_table,
    "absolute-bar-cells": absolute.absolute_cells_table,
    "budget": absolute.budget_table,
    "replication": lambda results: replication_table(results.replication, results.rules),
    "panel": panel.panel_table,
    "panel-cells": panel.panel_cells_table,
    "recalibrated-bar": recalibrated.versions_table,
    "recalibrated-passing": recalibrated.passing_table,
    "selection": recalibrated.selection_table,
    "regret": regret_table,
    "suppression": panel.suppression_table,
    "self-check": recalibrated.self_check_table,
}
"""Tables of the paper's edition by name, for runs that have what they need."""


def all_tables(results: RunResults) -> tuple[Table, ...]:
    """Return every table that the run has the numbers for."""
    paper = PAPER.values() if has_paper(results) else ()
    return tuple(table(results) for table in (*CELL, *paper))


def has_paper(results: RunResults) -> bool:
    """Return whether a run has the paper's design: a study of methods whose every cell has
    references, round trip and oracle-KL."""
    known = ("retain_nll", "residual", "oracle_kl")
    return (
        bool(results.cells)
        and "methods" in results.plan
        and all(
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
    )
