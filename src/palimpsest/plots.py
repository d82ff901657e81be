"""One function per figure of the page; each takes a run and returns a matplotlib figure.

``run`` is a folder, what ``load_run`` gave, an ``Answer`` or results. ``cell`` is the id of a cell,
which figures of one cell need where a run has several. What is missing is named by a PlanError; a
run that lacks the numbers of a figure is refused with InputError.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from matplotlib.figure import Figure

from palimpsest.errors import InputError, PlanError
from palimpsest.paper import tables as paper
from palimpsest.report import figures
from palimpsest.report.documents import LoadedRun, load_run
from palimpsest.report.results import RunResults
from palimpsest.stats.words import count
from palimpsest.text import shown

if TYPE_CHECKING:
    from palimpsest.api import Answer

__all__ = ["acceptance", "diagnostic", "forget_deltas", "relearning", "retrainings"]

Source: TypeAlias = "RunResults | LoadedRun | Answer | Path | str"


def retrainings(run: Source, cell: str | None = None, candidate: str | None = None) -> Figure:
    """Return where a candidate lies among the retrainings of a cell, one row per axis; by default
    the one that is certified, or the nearest.

    ::

        cell = "pocket-qwen2-s--seed0"
        palimpsest.plots.retrainings("demo-run", cell, candidate="npo-w12").savefig("npo.pdf")
    """
    results = _of_one_cell(run, cell)
    names = [name for one in results.cells for name in one.candidates]
    if candidate is not None and candidate not in names:
        raise PlanError(f"expected one of {', '.join(names)}, got {candidate!r}", key="candidate")
    draw = partial(figures.retrainings, candidate=candidate)
    return _drawn(draw, results, "a candidate that was compared with at least five references")


def forget_deltas(run: Source, cell: str | None = None) -> Figure:
    """Return forget facts and probes of every candidate of a cell, with the screen's p-value.

    ::

        palimpsest.plots.forget_deltas("demo-run", cell="pocket-qwen2-s--seed0")
    """
    return _drawn(figures.forget_deltas, _of_one_cell(run, cell), "a candidate that was measured")


def relearning(run: Source, cell: str | None = None) -> Figure:
    """Return held-out forget NLL during re-acquisition: candidates of a cell, or methods.

    ::

        palimpsest.plots.relearning("demo-run")
    """
    results = _results(run) if cell is None else _of_one_cell(run, cell)
    return _drawn(figures.relearning, results, "models that were re-acquired")


def acceptance(run: Source) -> Figure:
    """Return how far every kind of model lies from retraining, over the cells of a study.

    ::

        palimpsest.plots.acceptance("demo-run")
    """
    return _drawn(figures.acceptance, _results(run), "a study of several models or seeds")


def diagnostic(run: Source) -> Figure:
    """Return trained-probe KL against held-out forget NLL, every candidate of a study.

    ::

        palimpsest.plots.diagnostic("demo-run")
    """
    return _drawn(paper.diagnostic, _results(run), "a study whose candidates were measured")


def _drawn(function: figures.FigureFn, results: RunResults, needs: str) -> Figure:
    """Return the figure; needs: what a run without its numbers lacks."""
    picture = function(results) if results.cells else None
    if picture is not None:
        return picture.figure
    finished = f"{len(results.cells)} of {count(len(results.planned), 'cell', 'cells')} finished"
    again = "; run the same command again to finish it" if results.missing else ""
    raise InputError(
        f"{results.path}: lacks the numbers of this figure; expected {needs}; {finished}{again}"
    )


def _results(run: Any) -> RunResults:
    results = load_run(run).results if isinstance(run, Path | str) else run
    if not isinstance(results, RunResults):
        results = getattr(run, "results", None)
    if not isinstance(results, RunResults):
        wanted = "a run folder, what load_run gave, an Answer or results"
        raise PlanError(f"expected {wanted}, got {shown(run)}", key="run")
    return results


def _of_one_cell(run: Source, cell: str | None) -> RunResults:
    """Return the results of one cell of a run; PlanError where it has several and none is named."""
    results = _results(run)
    known = [entry.id for entry in results.cells]
    if cell is None and len(known) < 2:
        return results
    if cell not in known:
        found = "missing" if cell is None else f"{cell!r} found"
        listed = ", ".join(known[:5]) + (", …" if len(known) > 5 else "")
        cells = count(len(known), "finished cell", "finished cells")
        raise PlanError(f"{found}; expected one of {cells}: {listed}", key="cell")
    return replace(results, cells=(results.cell(cell),))
