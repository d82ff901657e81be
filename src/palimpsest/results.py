"""A run as data: ``palimpsest.load_run(RUN)`` gives pandas frames, for studies, audits and TOFU.

Everything is computed from stored files when it is first asked for; pandas is imported then.
``write_results`` writes the same for programs without Palimpsest: ``summary.json`` and
``scores.parquet``, whose keys and columns are described in ``docs/outputs.md``.
"""

import json
import warnings
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest.errors import InputError
from palimpsest.run.store import Run, table_bytes, write_bytes, write_json

if TYPE_CHECKING:
    from pandas import DataFrame

    from palimpsest.analysis.results import CellResult, RunResults

FORMAT = "palimpsest-study/1"


class LoadedRun:
    """A run folder; ``scores``, ``items``, ``curves`` and ``verdicts`` are pandas frames."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._run = Run.open(path)

    def __repr__(self) -> str:
        return f"load_run({str(self.path)!r})"

    @cached_property
    def results(self) -> "RunResults":
        """Every finished cell measured, screened and judged."""
        from palimpsest.analysis.results import read_run

        return read_run(self.path)

    @cached_property
    def scores(self) -> "DataFrame":
        """One row per cell and model: its measures, its distances from the references, its fate."""
        return _frame(_score_rows(self.results))

    @cached_property
    def verdicts(self) -> "DataFrame":
        """One row per cell: the verdict, its reason, and the axis it rests on."""
        rows = []
        for cell, values in self._verdicts():
            worst = values.pop("worst_axis") or {}
            plain = {
                key: value for key, value in values.items() if not isinstance(value, dict | list)
            }
            axis = {"worst_axis": worst.get("name"), "worst_sd": worst.get("sd")}
            rows.append(_named(cell) | plain | axis)
        return _frame(rows)

    @cached_property
    def items(self) -> "DataFrame":
        """One row per cell, model, stage, fact, pool and template: ``nll_sum``, ``tokens``, KL."""
        return self._tables("items")

    @cached_property
    def curves(self) -> "DataFrame":
        """One row per cell, model and chunk of re-acquisition."""
        return self._tables("curves")

    def summary(self) -> dict[str, Any]:
        """Return the outcome as one document: a study's ``summary.json``."""
        results = self.results
        cells = {cell.id: _named(cell) | values for cell, values in self._verdicts()}
        for values in cells.values():
            del values["cell"]
        return {
            "format": FORMAT,
            "name": results.name,
            "rules_hash": results.rules_hash,
            "fork_of": self._run.fork_of,
            "planned": len(results.planned),
            "certified": sum(cell["status"] == "certified" for cell in cells.values()),
            "cells": cells,
            "missing": {cell.id: cell.state for cell in results.missing},
        }

    def _verdicts(self) -> Iterator[tuple["CellResult", dict[str, Any]]]:
        from palimpsest.audit.summary import verdict_values

        for cell, verdict in self.results.judged:
            yield cell, verdict_values(verdict) | {"paragraph": verdict.paragraph()}

    def _tables(self, name: str) -> "DataFrame":
        pandas, frames = _pandas(), []
        for cell in self.results.cells:
            frame = pandas.DataFrame(self._run.cell(cell.id).table(name))
            frame.insert(0, "cell", cell.id)
            frames.append(frame)
        if not frames:
            raise InputError(f"{self.path}: no cell is finished, so there is no table {name}")
        whole: DataFrame = pandas.concat(frames, ignore_index=True)
        return whole


def load_run(path: Path | str) -> LoadedRun:
    """Return the run at ``path`` as data; see ``LoadedRun``."""
    run = Run.open(path)
    left = sum(not run.cell(cell).finished() for cell in run.cells)
    if left:
        warnings.warn(
            f"{path}: {left} of {len(run.cells)} cells are not finished and have no rows; run the "
            "same command again to finish them",
            stacklevel=2,
        )
    return LoadedRun(Path(path))


def write_results(path: Path | str) -> None:
    """Write a study's ``summary.json`` and ``scores.parquet``; an audit has written its own."""
    run = LoadedRun(Path(path))
    rows = _score_rows(run.results)
    if (run.path / "summary.json").exists() and not _is_study(run.path / "summary.json"):
        return
    write_json(run.path / "summary.json", run.summary())
    if rows:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        write_bytes(run.path / "scores.parquet", table_bytes(columns))


def _is_study(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_bytes()).get("format") == FORMAT)
    except (ValueError, AttributeError):
        return True


def _score_rows(results: "RunResults") -> list[dict[str, Any]]:
    from palimpsest.audit.summary import score_rows

    rows = []
    for cell in results.cells:
        for row in score_rows(cell, results.rules):
            role = cell.roles[row["model"]]
            about = {"method": role.get("method") or "", "kind": role.get("kind") or ""}
            about["knobs"] = json.dumps(role["knobs"]) if "knobs" in role else ""
            rows.append(_named(cell) | {"model": row["model"], "role": row["role"]} | about | row)
    return rows


def _named(cell: "CellResult") -> dict[str, Any]:
    return {"cell": cell.id, "base": cell.model, "family": cell.family, "seed": cell.seed}


def _frame(rows: list[dict[str, Any]]) -> "DataFrame":
    frame: DataFrame = _pandas().DataFrame(rows)
    return frame


def _pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise InputError(
            "frames need pandas, which is not installed; pip install 'palimpsest-audit[pandas]', "
            "or read summary() and scores.parquet"
        ) from error
    return pandas
