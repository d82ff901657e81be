"""Which methods restore, over the cells of one run or of several, and ``palimpsest compare``."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.made_runs import (
    candidate,
    cell_run,
    compared_cell,
    matrix_run,
    uncertified_run,
    write_run,
)

from palimpsest.errors import InputError
from palimpsest.report.leaderboard import (
    compare_runs,
    comparison_page,
    leaderboard_table,
    settings_table,
    short_board,
    standings,
)
from palimpsest.report.results import read_run
from palimpsest.report.table import Share, as_latex, table_lines
from palimpsest.stats.models import ModelFailure


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Four cells of twenty references each."""
    return read_run(matrix_run(tmp_path_factory.mktemp("board") / "run", missing=""))


def test_methods_stand_in_the_order_of_their_closeness(judged):
    table = leaderboard_table({"mine": judged})
    rows = {row["method"]: row for row in table.records()}
    assert next(iter(rows)) == "replay" and rows["replay"]["restores in"] == Share(4, 4)
    assert rows["ga"]["author's aim"] == "suppresses"
    assert rows["ga"]["restores in"] == Share(0, 4)
    assert rows["ga"]["most frequent label"] == "over-forgotten and damaged"
    assert rows["kl_reversion"]["survive the screen"] == Share(4, 8)
    assert rows["kl_reversion"]["most frequent worst axis"].endswith("mid")
    assert rows["ga"]["worst axis, sd"].low > rows["replay"]["worst axis, sd"].high
    assert rows["ga"]["cost, retrainings"] == 0.5 and rows["replay"]["cost, retrainings"] is None
    assert str(Share(4, 4)) in table.reading


def test_a_method_is_represented_by_a_candidate_that_passes_if_there_is_one(judged):
    for standing in standings({"mine": judged}):
        for entry in standing.entries:
            assert entry.best.clears == any(finding.clears for finding in entry.findings)


def test_a_tie_is_no_restoration_and_a_method_that_failed_has_a_row(tmp_path):
    failed = candidate("npo-w3", failure=ModelFailure("raised", "no memory"))
    cells = {name: compared_cell(name) for name in ("a--seed0", "a--seed1")}
    same = cells["a--seed1"]["replay-1"]
    cells["a--seed0"]["task_vector-c1"] = replace(same, model=candidate("task_vector-c1"))
    run = read_run(write_run(tmp_path / "run", cells, failed=(failed,)))
    rows = {row["method"]: row for row in leaderboard_table({"run": run}).records()}
    assert rows["task_vector"]["restores in"] == Share(1, 2)
    assert rows["task_vector"]["most frequent label"] == "restored / damaged"
    assert rows["npo"]["restores in"] == Share(0, 2)
    assert (rows["npo"]["most frequent label"], rows["npo"]["settings"]) == ("failed", 1)
    board = short_board(leaderboard_table({"run": run}))
    assert {row["method"]: row["best of"] for row in board.records()}["kl_reversion"] == 2
    assert "failed" in as_latex(board)


def test_settings_of_one_name_are_told_apart_by_their_knobs(tmp_path):
    def run(name: str, slack: float) -> Path:
        models = compared_cell("a--seed0")
        own = candidate("tether-p3", knobs={"pull": 3.0, "slack": slack})
        models["tether-p3"] = replace(models["ga-w3"], model=own)
        return write_run(tmp_path / name, {"a--seed0": models})

    _, settings = compare_runs([run("one", 1.0), run("two", 2.0)])
    rows = [row for row in settings.records() if row["method"] == "tether"]
    assert [row["candidate"] for row in rows] == ["tether-p3 (slack=1)", "tether-p3 (slack=2)"]
    assert [row["knobs that vary"] for row in rows] == ["slack=1", "slack=2"]


def test_ranks_tell_settings_from_retraining_over_cells(judged):
    table = settings_table({"mine": judged})
    rows = {row["candidate"]: row for row in table.records()}
    # Furthest out among 20 references in each of four cells.
    assert rows["ga-w3"]["p"] == pytest.approx(21.0**-4) and rows["ga-w3"]["rank sum"] == 4
    assert rows["ga-w3"]["p (Holm)"] < 0.05 < rows["replay-2"]["p (Holm)"]
    assert rows["retraining-1"]["method"] == "fresh retraining"
    assert rows["retraining-1"]["p (Holm)"] is None and rows["retraining-1"]["cells"] == 4
    board = {row["method"]: row for row in leaderboard_table({"mine": judged}).records()}
    # The setting of a method that is hardest to tell from retraining speaks for it.
    both = [rows[f"replay-{k}"]["p (Holm)"] for k in (1, 2)]
    assert board["replay"]["p over cells"] == max(both)


def test_runs_under_different_rules_are_remarked(judged):
    terms = replace(judged.terms, rules=judged.terms.rules | {"alpha": 0.1})
    reading = leaderboard_table({"a": judged, "b": replace(judged, terms=terms)}).reading
    same = leaderboard_table({"a": judged, "b": judged}).reading
    assert str(Share(8, 8)) in reading and reading.startswith(same) and reading != same


def test_runs_are_compared_as_table_latex_and_page(tmp_path, monkeypatch):
    runs = [cell_run(tmp_path / "a" / "run"), uncertified_run(tmp_path / "b" / "run")]
    board, settings = compare_runs(runs)
    rows = {row["method"]: row for row in board.records()}
    assert rows["replay"]["restores in"] == Share(1, 1)
    assert rows["kl_reversion"]["restores in"] == Share(0, 2)
    monkeypatch.setenv("COLUMNS", "80")
    lines = table_lines(short_board(board)).split("\n")
    assert max(map(len, lines)) <= 80
    shown = [line.split()[0] for line in lines if re.search(r" \d/\d ", line)]
    assert shown == list(rows)
    assert as_latex(short_board(board, paper=True)).count(r"\\") == 1 + len(rows)
    assert "<script>" in (page := comparison_page([board, settings])) and "kl_reversion" in page


def test_a_run_given_twice_or_without_verdicts_is_refused(tmp_path):
    run = cell_run(tmp_path / "run")
    with pytest.raises(InputError):
        compare_runs([run, run])
    empty = write_run(tmp_path / "empty", {}, planned=["qwen2-s--seed0"])
    with pytest.raises(InputError):
        compare_runs([empty])
