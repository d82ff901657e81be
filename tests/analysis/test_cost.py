"""Closeness against cost, from stored results."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_run import calibrated, made_plan, write_run

from palimpsest.analysis.cost import cost_table, prices
from palimpsest.analysis.results import read_run


def test_candidates_are_priced_by_their_worst_axis_and_their_cost(tmp_path: Path) -> None:
    results = read_run(
        write_run(
            tmp_path / "run",
            made_plan(("qwen2-s",), (0, 1)),
            change=lambda cell, models: calibrated(seed=int(cell[-1])),
        )
    )
    assert prices(results) == ()  # runs from before costs were recorded
    assert not cost_table(results).rows
    cost = {"retrainings": 1.5, "shared_retrainings": 1.0, "flops": 1e9}
    for cell in results.cells:
        cell.roles["task_vector-c1"]["cost"] = cost  # type: ignore[index]
    (row,) = prices(results)
    assert (row.method, row.cells, row.clears, row.retrainings) == ("task_vector", 2, 2, 1.5)
    distances = [
        abs(found.comparison.worst.sd)
        for cell in results.cells
        if cell.verdict and (found := cell.verdict.finding("task_vector-c1")).comparison
        if found.comparison.worst.sd is not None
    ]
    assert row.sd == pytest.approx(sum(distances) / 2)
    assert cost_table(results).reading.endswith("1.50 retrainings, in 2 of 2 cells.")
    assert prices(replace(results, cells=())) == ()
