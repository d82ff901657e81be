"""``palimpsest compare``: the leaderboard over runs, as table, JSON, CSV and page."""

import csv
import io
import json
from pathlib import Path

import pytest
from report_runs import cell_run, uncertified_run, write_run
from typer.testing import CliRunner

from palimpsest.cli import app


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("compared")
    return [str(cell_run(folder / "good")), str(uncertified_run(folder / "bad"))]


def called(*arguments: str) -> str:
    done = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["compare", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_methods_are_ranked_over_all_runs(runs: list[str], tmp_path: Path) -> None:
    table, page = tmp_path / "board.csv", tmp_path / "board.html"
    shown = called(*runs, "--csv", str(table), "--page", str(page))
    answer = json.loads(called(*runs, "--json"))
    board = answer["leaderboard"]
    assert board[0]["method"] == "replay" and board[0]["rank"] == 1
    kl = next(row for row in board if row["method"] == "kl_reversion")
    assert kl["restores in"] == {"count": 0, "total": 2}
    assert {row["run"] for row in answer["leaderboard-cells"]} == {"good", "bad"}
    lines = [line.split() for line in shown.splitlines()]
    ranked = [line[1] for line in lines if line and line[0].isdigit()]
    assert ranked == [row["method"] for row in board]
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [row["method"] for row in rows] == [row["method"] for row in board]
    assert "Does this method restore?" in page.read_text() and "<script>" in page.read_text()


def test_a_run_given_twice_is_refused(runs: list[str]) -> None:
    done = CliRunner().invoke(app, ["compare", runs[0], runs[0]])
    assert done.exit_code != 0 and "given twice" in str(done.exception)


def test_runs_without_a_finished_cell_are_refused(tmp_path: Path) -> None:
    empty = write_run(tmp_path / "run", {}, planned=["qwen2-s--seed0"])
    done = CliRunner().invoke(app, ["compare", str(empty)])
    assert done.exit_code != 0 and "nothing to compare" in str(done.exception)
