"""Closeness against cost, from stored results."""

from dataclasses import replace
from pathlib import Path

from made_run import calibrated, made_plan, write_run

from palimpsest.analysis.cost import priced, prices
from palimpsest.analysis.results import read_run


def test_candidates_are_priced_by_their_worst_axis_and_their_cost(tmp_path: Path) -> None:
    results = read_run(
        write_run(
            tmp_path / "run",
            made_plan(("qwen2-s",), (0, 1)),
            change=lambda cell, models: calibrated(seed=int(cell[-1])),
        )
    )
    assert priced(results) == ()  # runs from before costs were recorded
    cost = {"retrainings": 1.5, "shared_retrainings": 1.0, "flops": 1e9}
    for cell in results.cells:
        cell.roles["task_vector-c1"]["cost"] = cost  # type: ignore[index]
    rows = priced(results)
    assert [row.candidate for row in rows] == ["task_vector-c1"] * 2
    assert all(row.clears and row.sd < 4 and row.retrainings == 1.5 for row in rows)
    (row,) = prices(results)
    assert (row.method, row.cells, row.clears, row.retrainings) == ("task_vector", 2, 2, 1.5)
    assert min(one.sd for one in rows) <= row.sd <= max(one.sd for one in rows)
    assert prices(replace(results, cells=())) == ()
