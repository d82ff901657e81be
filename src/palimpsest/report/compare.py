"""Several runs side by side: the leaderboard over all of their cells, and a page with it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from palimpsest.errors import InputError
from palimpsest.report.leaderboard import leaderboard_table, settings_table
from palimpsest.report.results import read_run
from palimpsest.report.table import Table
from palimpsest.report.terminal import table_lines

HEADS = {
    "restores in": "restores",
    "worst axis, sd": "worst sd",
    "most frequent worst axis": "axis",
    "cost, retrainings": "cost",
    "p over cells": "p",
}
"""Columns of the leaderboard on a terminal, and what they are called there."""


def compare_runs(paths: Sequence[Path]) -> list[Table]:
    """Return the leaderboard of these runs, and every setting over all of their cells.

    Runs are named by their folders, with the folder above where two are called the same.
    """
    full = [path.resolve() for path in paths]
    names = [path.name for path in full]
    labels = [p.name if names.count(p.name) == 1 else f"{p.parent.name}/{p.name}" for p in full]
    if len(set(labels)) < len(labels):
        raise InputError(f"{', '.join(labels)}: one is given twice; expected every run once")
    runs = {label: read_run(path) for label, path in zip(labels, full)}
    if not any(results.judged for results in runs.values()):
        raise InputError(f"{', '.join(labels)}: no candidate was judged; finish a run first")
    return [leaderboard_table(runs), settings_table(runs)]


def board_lines(board: Table) -> str:
    """Return the leaderboard as a table that fits the terminal, with what its columns mean."""
    kept = board.only(["rank", "method", *HEADS])
    about = (
        f"{board.reading} worst sd: distance of its best candidate from the mean retraining on the "
        "worst axis, mean over cells and its interval; axis: where that most often is; cost: in "
        "retrainings; p: of its ranks over cells, small means that it does not restore."
    )
    columns = tuple(HEADS.get(column, column) for column in kept.columns)
    forms = {HEADS.get(column, column): form for column, form in board.forms.items()}
    return table_lines(replace(kept, reading=about, columns=columns, forms=forms))


def comparison_page(tables: Sequence[Table]) -> str:
    """Return the tables as one page that needs nothing else."""
    from palimpsest.report.page import template  # which imports matplotlib

    return template("compare.html.j2").render(tables=tables)
