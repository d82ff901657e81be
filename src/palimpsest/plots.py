"""One function per figure of the page; each takes a run and returns a matplotlib figure.

``run`` is a folder or what ``load_run`` gave. Figures of one cell take ``cell``, the id of the cell
where a run has several. A run that lacks the numbers of a figure is refused with InputError.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest.errors import InputError
from palimpsest.results import LoadedRun, load_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Source = LoadedRun | Path | str


def retrainings(run: Source, cell: str | None = None) -> "Figure":
    """Return the verdict as a picture: one row per axis, the retrainings as a band."""
    return _one_cell("retrainings", run, cell)


def forget_deltas(run: Source, cell: str | None = None) -> "Figure":
    """Return forget facts and probes of every candidate with the screen's p-value."""
    return _one_cell("forget_deltas", run, cell)


def measures(run: Source, cell: str | None = None) -> "Figure":
    """Return every axis of one cell in its own unit."""
    return _one_cell("measures", run, cell)


def relearning(run: Source, cell: str | None = None) -> "Figure":
    """Return the relearning curves of one cell."""
    return _one_cell("relearning", run, cell)


def acceptance(run: Source) -> "Figure":
    """Return how far every kind of model lies from retraining, over all cells."""
    return _drawn("acceptance", _loaded(run).results)


def axes_by_group(run: Source) -> "Figure":
    """Return every axis over all cells."""
    return _drawn("axes_by_group", _loaded(run).results)


def relearning_by_family(run: Source) -> "Figure":
    """Return median relearning curves by family and method."""
    return _drawn("relearning_by_family", _loaded(run).results)


def closeness(run: Source) -> "Figure":
    """Return how close to retraining each method comes against what it costs."""
    return _drawn("closeness", _loaded(run).results)


def diagnostic(run: Source) -> "Figure":
    """Return the paper's first figure: the trained-probe criterion against held-out forgetting."""
    return _drawn("diagnostic", _loaded(run).results)


def fewer_probes(run: Source) -> "Figure":
    """Return how many candidates the screen excludes with fewer probes."""
    return _drawn("fewer_probes", _loaded(run).results)


def panel_acceptance(run: Source) -> "Figure":
    """Return the share of cells in which the paper's batteries accept each known-label model."""
    return _drawn("panel_acceptance", _loaded(run).results)


def _loaded(run: Source) -> LoadedRun:
    return run if isinstance(run, LoadedRun) else load_run(run)


def _one_cell(name: str, run: Source, cell: str | None) -> "Figure":
    results = _loaded(run).results
    if cell is None and len(results.cells) != 1:
        ids = ", ".join(entry.id for entry in results.cells[:5])
        raise InputError(f"cell: the run has {len(results.cells)} finished; name one ({ids} …)")
    chosen = results.cells if cell is None else (results.cell(cell),)
    return _drawn(name, replace(results, cells=chosen))


def _drawn(name: str, results: Any) -> "Figure":
    from palimpsest.report import figures
    from palimpsest.report.plots import paper

    place = figures if hasattr(figures, name) else paper
    draw: Callable[[Any], Any] = getattr(place, name)
    picture = draw(results) if results.cells else None
    if picture is None:
        raise InputError(f"{name}: the run {results.name} has not the numbers for this figure")
    figure: Figure = picture.figure
    return figure
