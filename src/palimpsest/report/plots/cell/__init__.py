"""The figures of one cell: every candidate by name, in small panels, one a method."""

from palimpsest.report.plots.cell.distance import distance_figure
from palimpsest.report.plots.cell.forget import forget_figure
from palimpsest.report.plots.cell.measures import residual_figure, retain_figure
from palimpsest.report.plots.cell.relearning import relearning_figure
from palimpsest.report.plots.spec import Figure
from palimpsest.study.results import RunResults


def cell_figures(results: RunResults) -> tuple[Figure, ...]:
    """All figures of a run with one cell."""
    cell = results.cells[0]
    made = (
        forget_figure(cell, results.rules),
        retain_figure(cell),
        residual_figure(cell),
        relearning_figure(cell),
        distance_figure(cell),
    )
    return tuple(figure for figure in made if figure is not None)
