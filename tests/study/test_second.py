"""Picks are frozen before the second pool is scored, and what is scored is what was chosen."""

import json
from pathlib import Path

import pytest
from tests.study.test_cell import finished, small_plan
from typer.testing import CliRunner

from palimpsest.cli import app
from palimpsest.engine.second import run_second
from palimpsest.errors import DriftError
from palimpsest.paper.second_suite import frozen_picks, read_second
from palimpsest.report.results import SECOND_POOL, read_run
from palimpsest.run.store import Run


@pytest.fixture(scope="module")
def both(tiny_checkpoint, tmp_path_factory):  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("second")
    first = finished(small_plan(tiny_checkpoint("qwen2-s")), folder / "first")
    return first, run_second(first.path, folder / "second", executor="inline")


def test_the_picks_stand_in_the_plan_that_was_fixed_first(both) -> None:  # type: ignore[no-untyped-def]
    first, second = both
    picks = frozen_picks(read_run(first.path))
    assert picks[first.cells[0]]
    assert second.plan["picks"] == picks


def test_only_picks_and_known_models_are_scored_and_only_on_the_second_pool(both) -> None:  # type: ignore[no-untyped-def]
    first, second = both
    table = second.cell(second.cells[0]).table("items")
    chosen = set(second.plan["picks"][first.cells[0]].values())
    assert set(table["model"]) == {"base", "injected", "reference"} | chosen
    assert set(table["pool"]) == {SECOND_POOL}


def test_the_command_says_what_was_found_and_where(both) -> None:  # type: ignore[no-untyped-def]
    first, second = both
    command = ["second-suite", str(first.path), "--out", str(second.path)]
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, command)
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith(f"\nrun: {second.path}\n")
    answer = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert answer["run"] == str(second.path)
    assert set(answer["selectors"]) == set(second.plan["picks"][first.cells[0]])
    for selector, found in answer["selectors"].items():
        words = next(
            one.split() for one in done.stdout.split("\n") if one.split()[:1] == [selector]
        )
        assert words[1] == "1"
        assert float(words[2]) == pytest.approx(found["forget distance"], abs=0.005)


def test_scores_planned_for_other_picks_are_refused(both, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    first, second = both
    results = read_run(first.path)
    assert set(read_second(second.path, results)) == set(first.cells)
    other = Run.create(
        tmp_path / "other",
        dict(second.plan) | {"picks": {}},
        second.rules,
        second.environment,
        second.seal,
        cells=second.cells,
    )
    with pytest.raises(DriftError, match="picks"):
        read_second(other.path, results)
