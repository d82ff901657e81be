"""Every figure of a run, in the order a reader needs them; all computed from stored artifacts."""

from palimpsest.report.plots.cell import cell_figures
from palimpsest.report.plots.matrix import matrix_figures
from palimpsest.report.plots.paper import paper_figure
from palimpsest.report.plots.run import (
    diagnostic_figure,
    panel_figure,
    probes_figure,
    replication_figure,
)
from palimpsest.report.plots.spec import Figure
from palimpsest.study.results import RunResults

__all__ = ["Figure", "all_figures", "paper_figure"]


def all_figures(results: RunResults) -> tuple[Figure, ...]:
    """The figures this run has the numbers for."""
    if not any(cell.candidates for cell in results.cells):
        return ()
    single = len(results.planned) == 1
    own = cell_figures(results) if single else matrix_figures(results)
    shared = (
        diagnostic_figure(results),
        panel_figure(results),
        probes_figure(results),
        replication_figure(results),
    )
    return (*own, *(figure for figure in shared if figure is not None))
