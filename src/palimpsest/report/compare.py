"""Several runs side by side: the leaderboard over all of their cells, and a page with it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from palimpsest.analysis.leaderboard import (
    leaderboard_cells_table,
    leaderboard_table,
    ranks_table,
)
from palimpsest.analysis.results import RunResults, read_run
from palimpsest.analysis.table import Table
from palimpsest.errors import InputError
from palimpsest.report.pages import template
from palimpsest.report.terminal import table_lines


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


def board_lines(board: Table) -> str:
    """Return the leaderboard as a table that fits the terminal, with what its columns mean."""
    heads = {
        "restores in": "restores",
        "certified in": "certified",
        "worst axis, sd": "worst sd",
        "most frequent worst axis": "axis",
        "cost, retrainings": "cost",
        "p over cells": "p",
        "survive the screen": "survive",
    }
    kept = board.only(["rank", "method", *heads])
    about = (
        f"{board.reading} restores, certified: number of cells; worst sd: largest distance of "
        "its nearest candidate from the mean retraining, in standard deviations of retraining, "
        "mean over cells and in brackets its interval, if there are several cells; axis: on which "
        "it most often is; cost: of that candidate, in retrainings; p: p-value of its ranks over "
        "cells, small means that it does not restore, and none is given where the cells are too "
        "few for any method; survive: candidates that the screen does not exclude, of all that it "
        "has (more candidates, more chances to come near)."
    )
    short = replace(
        kept,
        reading=about,
        columns=tuple(heads.get(column, column) for column in kept.columns),
        forms={heads.get(column, column): form for column, form in board.forms.items()},
    )
    return table_lines(short)


def comparison_page(tables: Sequence[Table]) -> str:
    """Return the tables as one page that needs nothing else."""
    return template("compare.html.j2").render(tables=tables)
