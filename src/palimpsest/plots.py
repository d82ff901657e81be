"""One function per figure of the page; each takes a run and returns a matplotlib figure.

``run`` is a folder, what ``load_run`` gave, or results. ``cell`` is the id of a cell, which figures
of one cell need where a run has several. A run that lacks the numbers of a figure is refused with
InputError.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from palimpsest.errors import InputError
from palimpsest.paper import tables as paper
from palimpsest.report import figures
from palimpsest.report.documents import LoadedRun, load_run
from palimpsest.report.results import RunResults

__all__ = ["acceptance", "diagnostic", "forget_deltas", "relearning", "retrainings"]

Source = RunResults | LoadedRun | Path | str


def retrainings(run: Source, cell: str | None = None, candidate: str | None = None) -> Figure:
    """Return where a candidate lies among the retrainings of a cell, one row per axis; by default
    the one that is certified, or the nearest."""
    if candidate is not None:
        results = _results(run, cell)
        names = sorted({name for one in results.cells for name in one.candidates})
        if candidate not in names:
            raise InputError(f"candidate {candidate!r} found; expected one of {', '.join(names)}")
    return _figure(partial(figures.retrainings, candidate=candidate), run, cell)


def forget_deltas(run: Source, cell: str | None = None) -> Figure:
    """Return forget facts and probes of every candidate of a cell, with the screen's p-value."""
    return _figure(figures.forget_deltas, run, cell)


def relearning(run: Source, cell: str | None = None) -> Figure:
    """Return held-out forget NLL during re-acquisition: candidates of a cell, or methods."""
    return _figure(figures.relearning, run, cell)


def acceptance(run: Source) -> Figure:
    """Return how far every kind of model lies from retraining, over the cells of a study."""
    return _figure(figures.acceptance, run)


def diagnostic(run: Source) -> Figure:
    """Return trained-probe KL against held-out forget NLL, every candidate of a study."""
    return _figure(paper.diagnostic, run)


def _figure(function: figures.FigureFn, run: Source, cell: str | None = None) -> Figure:
    results = _results(run, cell)
    picture = function(results)
    if picture is None:
        ids = ", ".join(entry.id for entry in results.cells[:5])
        raise InputError(
            f"{results.path}: lacks the numbers for this figure; finished cells: {ids or 'none'}; "
            "acceptance needs several cells, other figures of a run with several need cell=, and "
            "figures of the comparison need enough references"
        )
    return picture.figure


def _results(run: Source, cell: str | None) -> RunResults:
    if isinstance(run, Path | str):
        run = load_run(run)
    results = run.results if isinstance(run, LoadedRun) else run
    return results if cell is None else replace(results, cells=(results.cell(cell),))
