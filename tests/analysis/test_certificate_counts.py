"""The certificate over a run: rates of its controls, detection limits, and who is certified."""

from pathlib import Path

import pytest
from made_run import Made, calibrated, made_plan, write_run

from palimpsest.analysis.certificate import (
    certified_by_method,
    control_summary,
)
from palimpsest.analysis.results import RunResults, read_run


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> RunResults:
    """Three cells of twenty references each."""

    def change(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        return calibrated(seed=int(cell[-1]))

    folder = tmp_path_factory.mktemp("calibrated") / "run"
    return read_run(write_run(folder, made_plan(("qwen2-s",), (0, 1, 2)), change=change))


def test_controls_are_counted_over_cells(judged: RunResults) -> None:
    summary = control_summary(judged)
    assert summary.cells == 3 and summary.missing == 0
    assert summary.references.total == 60 and summary.references.count >= 54
    assert summary.retrainings.total == 6
    assert (summary.injected.count, summary.injected.total) == (3, 3)
    assert [share for share, _ in summary.shares] == [0.5, 0.25, 0.1, 0.05]
    assert [rate.count for share, rate in summary.shares if share >= 0.25] == [3, 3]
    entries = dict(summary.challenges)
    assert set(entries) == {"suppression", "embedding", "interpolate-0.25"}
    assert all((rate.count, rate.total, rate.cells) == (3, 3, 3) for rate in entries.values())
    assert summary.injected.interval is not None
    assert summary.injected.interval.low == pytest.approx(0.025 ** (1 / 3))


def test_every_cell_has_its_detection_limit(judged: RunResults) -> None:
    limits = [cell.verdict.detection_limit for cell in judged.cells if cell.verdict]
    assert len(limits) == len(judged.cells)
    assert all(limit is not None and limit <= 0.25 for limit in limits)


def test_methods_are_counted_by_what_became_of_their_candidates(judged: RunResults) -> None:
    rows = {row.method: row for row in certified_by_method(judged)}
    assert {cell.verdict.grade for cell in judged.cells if cell.verdict} == {"indistinguishable"}
    assert rows["task_vector"].certified == rows["task_vector"].indistinguishable == 3
    assert rows["kl_reversion"].excluded == 3 and rows["kl_reversion"].compared == 0
    assert rows["ga"].kind == "suppresses" and rows["ga"].indistinguishable == 0
    assert rows["npo"].worst[0][0].startswith("relearn")


def test_a_run_without_enough_references_has_nothing_to_count(tmp_path: Path) -> None:
    results = read_run(write_run(tmp_path / "run", made_plan(("gpt2-s",), (1,))))
    summary = control_summary(results)
    assert summary.references.interval is None or summary.cells == 1
    lone = read_run(
        write_run(tmp_path / "lone", made_plan(("gpt2-s",), (0, 1)), skip=["gpt2-s--seed0"])
    )
    assert control_summary(lone).cells == 0
    assert [cell.verdict.reason for cell in lone.cells if cell.verdict] == ["no_reference"]
