"""Several runs side by side: the leaderboard over all of their cells, and a page with it."""

from collections.abc import Sequence
from pathlib import Path

from palimpsest.analysis.leaderboard import (
    leaderboard_cells_table,
    leaderboard_table,
    ranks_table,
)
from palimpsest.analysis.results import RunResults, read_run
from palimpsest.analysis.table import Table
from palimpsest.errors import InputError
from palimpsest.report.html import template


def compared(paths: Sequence[Path]) -> tuple[Table, ...]:
    """Return the leaderboard of these runs, every method in every cell, and the ranks over cells.

    Runs are named by their folders, with the folder above where two are called the same.
    """
    names = [path.resolve().name for path in paths]
    runs: dict[str, RunResults] = {}
    for path, name in zip(paths, names):
        full = path.resolve()
        label = name if names.count(name) == 1 else f"{full.parent.name}/{name}"
        if label in runs:
            raise InputError(f"{path}: given twice; expected every run once")
        runs[label] = read_run(path)
    if not any(results.cells for results in runs.values()):
        raise InputError(f"{', '.join(runs)}: no cell is finished, so there is nothing to compare")
    return leaderboard_table(runs), leaderboard_cells_table(runs), ranks_table(runs)


def comparison_page(tables: Sequence[Table]) -> str:
    """Return the tables as one page that needs nothing else."""
    return template("compare.html.j2").render(tables=tables)
