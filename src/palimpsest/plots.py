"""One function per figure of the page; each takes a run and returns a matplotlib figure.

``run`` is a folder or what ``load_run`` gave. Figures of one cell take ``cell``, the id of the cell
where a run has several. A run that lacks the numbers of a figure is refused with InputError.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from matplotlib.figure import Figure

from palimpsest.analysis.results import RunResults
from palimpsest.errors import InputError
from palimpsest.report import figures
from palimpsest.report.plots import cell_plots, matrix, paper
from palimpsest.report.plots.canvas import Picture
from palimpsest.results import LoadedRun, load_run

Source = LoadedRun | Path | str
Draw = Callable[[RunResults], Picture | None]


class OfCell(Protocol):
    """A figure of one cell."""

    def __call__(self, run: Source, cell: str | None = None) -> Figure: ...


def _of_run(draw: Draw) -> Callable[[Source], Figure]:
    def drawn(run: Source) -> Figure:
        return _figure(draw, _results(run))

    drawn.__name__, drawn.__doc__ = draw.__name__, draw.__doc__
    return drawn


def _of_cell(draw: Draw) -> OfCell:
    def drawn(run: Source, cell: str | None = None) -> Figure:
        results = _results(run)
        if cell is None and len(results.cells) != 1:
            ids = ", ".join(entry.id for entry in results.cells[:5])
            raise InputError(f"cell: the run has {len(results.cells)} finished; name one ({ids} …)")
        chosen = results.cells if cell is None else (results.cell(cell),)
        return _figure(draw, replace(results, cells=chosen))

    drawn.__name__, drawn.__doc__ = draw.__name__, draw.__doc__
    return drawn


def _results(run: Source) -> RunResults:
    return (run if isinstance(run, LoadedRun) else load_run(run)).results


def _figure(draw: Draw, results: RunResults) -> Figure:
    picture = draw(results) if results.cells else None
    if picture is None:
        raise InputError(
            f"{draw.__name__}: the run {results.name} has not the numbers for this figure"
        )
    return picture.figure


retrainings = _of_cell(figures.retrainings)
forget_deltas = _of_cell(cell_plots.forget_deltas)
measures = _of_cell(cell_plots.measures)
relearning = _of_cell(cell_plots.relearning)
acceptance = _of_run(figures.acceptance)
axes_by_group = _of_run(figures.axes_by_group)
relearning_by_family = _of_run(cell_plots.relearning_by_family)
closeness = _of_run(matrix.closeness)
diagnostic = _of_run(paper.diagnostic)
fewer_probes = _of_run(paper.fewer_probes)
panel_acceptance = _of_run(paper.panel_acceptance)
