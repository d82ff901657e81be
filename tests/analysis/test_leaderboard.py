"""The certificate over a run: rates of its controls, and which methods restore."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_run import Made, calibrated, made_plan, write_run

from palimpsest.analysis.leaderboard import (
    leaderboard_cells_table,
    leaderboard_table,
    ranks_table,
)
from palimpsest.analysis.results import RunResults, read_run
from palimpsest.analysis.table import Share
from palimpsest.report.cell_tables import control_rates_table


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> RunResults:
    """Three cells of twenty references each."""

    def change(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        return calibrated(seed=int(cell[-1]))

    folder = tmp_path_factory.mktemp("calibrated") / "run"
    return read_run(write_run(folder, made_plan(("qwen2-s",), (0, 1, 2)), change=change))


def test_controls_are_counted_over_cells(judged: RunResults) -> None:
    table = control_rates_table(judged)
    assert table.reading == "Controls of 3 cells; 0 could not be compared."
    rows = {row["control"]: row for row in table.records()}
    assert rows["references accepted"]["models"].total == 60  # type: ignore[union-attr]
    assert rows["references accepted"]["models"].count >= 54  # type: ignore[union-attr]
    assert rows["fresh retrainings accepted"]["models"].total == 6  # type: ignore[union-attr]
    left = [name for name in rows if "weights left" in str(name)]
    assert [str(name).split()[0] for name in left] == ["50", "25", "10", "5"]
    entries = ("suppression", "embedding", "interpolate-0.25")
    for name in (*left[:2], *(f"{entry} rejected" for entry in entries)):
        assert rows[name]["models"] == Share(3, 3) and rows[name]["cells"] == 3
    interval = rows["injected models rejected"]["share and interval"]
    assert interval.low == pytest.approx(0.025 ** (1 / 3))  # type: ignore[union-attr]


def test_every_cell_has_its_detection_limit(judged: RunResults) -> None:
    limits = [cell.verdict.detection_limit for cell in judged.cells if cell.verdict]
    assert len(limits) == len(judged.cells)
    assert all(limit is not None and limit <= 0.25 for limit in limits)


def test_methods_stand_in_the_order_of_their_closeness(judged: RunResults) -> None:
    table = leaderboard_table({"mine": judged})
    rows = {row["method"]: row for row in table.records()}
    first = table.records()[0]
    assert first["method"] == "task_vector" and first["rank"] == 1
    assert first["restores in"] == first["certified in"] == Share(3, 3)
    assert rows["kl_reversion"]["survive the screen"] == Share(0, 3)
    assert rows["ga"]["kind"] == "suppresses" and rows["ga"]["restores in"] == Share(0, 3)
    assert str(rows["npo"]["most frequent worst axis"]).startswith("relearn")
    assert rows["npo"]["worst axis, sd"].low > first["worst axis, sd"].high  # type: ignore[union-attr, operator]
    assert table.reading.endswith("task_vector in 3 of 3 cells.")
    assert len(leaderboard_cells_table({"mine": judged}).rows) == 12


def test_ranks_tell_methods_from_retraining_over_cells(judged: RunResults) -> None:
    rows = {row["candidate"]: row for row in ranks_table({"mine": judged}).records()}
    # Furthest out among 20 references in each of three cells.
    assert rows["ga-w3"]["p"] == pytest.approx(21.0**-3)
    assert rows["ga-w3"]["distinguishable"] and rows["npo-w3"]["distinguishable"]
    assert not rows["task_vector-c1"]["distinguishable"]


def test_fresh_retrainings_go_through_the_same_ranks(judged: RunResults) -> None:
    table = ranks_table({"mine": judged})
    fresh = [row for row in table.records() if row["method"] == "fresh retraining"]
    assert [row["candidate"] for row in fresh] == [f"retraining-{n}" for n in (1, 2)]
    for one in fresh:
        assert one["cells"] == 3 and one["p (Holm)"] is None
        assert one["p"] > 0.05 and not one["distinguishable"]
    assert table.reading.endswith("Of 2 fresh retrainings in the same test, 0 do.")


def test_runs_under_different_rules_are_remarked(judged: RunResults) -> None:
    other = replace(judged, rules_hash="another")
    reading = leaderboard_table({"a": judged, "b": other}).reading
    assert "task_vector in 6 of 6 cells" in reading and reading.endswith("different rules.")


def test_a_run_without_enough_references_has_nothing_to_count(tmp_path: Path) -> None:
    plan = made_plan(("gpt2-s",), (0, 1))
    lone = read_run(write_run(tmp_path / "lone", plan, skip=["gpt2-s--seed0"]))
    assert not control_rates_table(lone).rows
    assert [cell.verdict.reason for cell in lone.cells if cell.verdict] == ["no_reference"]
    assert not leaderboard_table({"lone": lone}).rows
    assert not ranks_table({"lone": lone}).rows
