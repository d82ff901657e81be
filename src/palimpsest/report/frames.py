"""A run as data: ``palimpsest.load_run(RUN)`` gives pandas frames, for studies, audits and TOFU.

Everything is computed from stored files when it is first asked for; pandas is imported then.
"""

import warnings
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest.errors import InputError
from palimpsest.report.documents import run_document, score_rows, verdict_document
from palimpsest.report.results import RunResults, read_run

if TYPE_CHECKING:
    from pandas import DataFrame


class LoadedRun:
    """A run; ``scores``, ``verdicts``, ``items``, ``curves`` and ``answers`` are pandas frames."""

    def __init__(self, results: RunResults) -> None:
        self.results = results
        self.path = results.path

    def __repr__(self) -> str:
        return f"load_run({str(self.path)!r})"

    def summary(self) -> dict[str, Any]:
        """Return the outcome as one document: the contents of ``summary.json``."""
        return run_document(self.results)

    @cached_property
    def scores(self) -> "DataFrame":
        """One row per cell and model: its measures, its distances from the references, its fate."""
        frame: DataFrame = _pandas().DataFrame(score_rows(self.results))
        return frame

    @cached_property
    def verdicts(self) -> "DataFrame":
        """One row per cell: the verdict, its reason, and the axis it rests on."""
        rows = []
        for cell, verdict in self.results.judged:
            document = verdict_document(verdict)
            worst = document.pop("worst_axis") or {}
            named = {"cell": cell.id, "base": cell.base, "family": cell.family, "seed": cell.seed}
            named |= {k: v for k, v in document.items() if not isinstance(v, dict | list)}
            rows.append(named | {"worst_axis": worst.get("name"), "worst_sd": worst.get("sd")})
        frame: DataFrame = _pandas().DataFrame(rows)
        return frame

    @property
    def items(self) -> "DataFrame":
        """One row per cell, model, stage, fact, pool and template: ``nll_sum``, ``tokens``, KL."""
        return self._stored("items")

    @property
    def curves(self) -> "DataFrame":
        """One row per cell, model and chunk of re-acquisition."""
        return self._stored("curves")

    @property
    def answers(self) -> "DataFrame":
        """One row per cell, model and question: what it answers, and where the truth ranks."""
        return self._stored("answers")

    def _stored(self, name: str) -> "DataFrame":
        pandas = _pandas()
        frames = []
        for cell in self.results.cells:
            if name in cell.tables:
                frame = pandas.DataFrame(dict(cell.tables[name]))
                frame.insert(0, "cell", cell.id)
                frames.append(frame)
        if not frames:
            raise InputError(f"{self.path}: no finished cell has a table {name}")
        whole: DataFrame = pandas.concat(frames, ignore_index=True)
        return whole


def load_run(path: Path | str) -> LoadedRun:
    """Return the run at ``path`` as data; see ``LoadedRun``."""
    results = read_run(path)
    if results.missing:
        warnings.warn(
            f"{path}: {len(results.missing)} of {len(results.planned)} cells are not finished and "
            "have no rows; run the same command again to finish them",
            stacklevel=2,
        )
    return LoadedRun(results)


def _pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise InputError(
            "frames need pandas, which is not installed; pip install 'palimpsest-audit[pandas]', "
            "or read summary() and scores.parquet"
        ) from error
    return pandas
