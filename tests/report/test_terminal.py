"""What a person reads after a run: the numbers the criteria use, and what every word means."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_run import made_plan, write_run
from typer.testing import CliRunner

from palimpsest.cli import app
from palimpsest.report.terminal import MEANING, SHORT, candidate_lines, second_lines
from palimpsest.study.results import CellResult, read_run
from palimpsest.study.second_suite import Comparison


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> CellResult:
    folder = tmp_path_factory.mktemp("terminal") / "run"
    return read_run(write_run(folder, made_plan(("qwen2-s",), (0,)))).cells[0]


def row(told: str, name: str) -> list[str]:
    return next(line.split() for line in told.split("\n") if line.split()[:1] == [name])


def test_the_p_value_shown_is_the_one_that_excludes(cell: CellResult) -> None:
    told = candidate_lines(cell, 120)
    assert cell.verdict is not None
    for one in cell.verdict.findings:
        assert row(told, one.name)[1] == f"{one.adjusted_p:.2g}"
    known = cell.verdict.finding("kl_reversion-w3")
    assert known.adjusted_p > 2 * known.p_value
    assert "p (Holm)" in told and "0.05 and less" in told


def test_deltas_are_the_medians_that_equivalence_and_gap_come_from(cell: CellResult) -> None:
    skew = np.array([0.0, 1.0, 2.0, 9.0]), np.array([*[-1.0] * 15, 15.0])
    model = replace(cell.evaluation["ga-w3"], forget_deltas=skew[0], probe_deltas=skew[1])
    models = {**cell.evaluation.models, "ga-w3": model}
    changed = replace(cell, evaluation=replace(cell.evaluation, models=models))
    assert row(candidate_lines(changed, 120), "ga-w3")[2:4] == ["+1.50", "-1.00"]


def test_every_word_of_the_table_is_explained_and_no_other(cell: CellResult) -> None:
    told = candidate_lines(cell, 120)
    legend = " ".join(told.split("\n\n")[-1].split())
    assert cell.verdict is not None
    failed = {axis for one in cell.verdict.findings for axis in one.failures}
    assert {"forget equivalence", "relearn veto"} <= failed <= set(MEANING)
    for axis in MEANING:
        assert (f"{SHORT.get(axis, axis)}: {MEANING[axis]}" in legend) == (axis in failed)
    assert "worst/δ: " in legend


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal(cell: CellResult, width: int) -> None:
    told = candidate_lines(cell, width)
    assert max(map(len, told.split("\n"))) <= width
    assert "…" not in told


def test_a_second_suite_says_its_numbers() -> None:
    found = Comparison("nearest", 45, 0.201, 0.428, None, 35, 24, 8)
    assert row(second_lines([found]), "nearest")[1:] == [
        *("45", "0.20", "0.43", "-0.23"),
        *("35", "24", "8"),
    ]


def test_a_report_of_nothing_says_so(tmp_path: Path) -> None:
    plan = made_plan(("qwen2-s",), (0, 1))
    first, second = (one.id for one in plan.cells())
    none = write_run(tmp_path / "none", plan, skip=(first, second))
    done = CliRunner().invoke(app, ["report", str(none)])
    assert done.exit_code == 0
    assert done.stdout.strip() == str(none / "report" / "index.html")
    assert "nothing is finished yet" in done.stderr
    assert "0 of 2 cells done" in done.stderr
    one = write_run(tmp_path / "one", plan, skip=(second,))
    done = CliRunner().invoke(app, ["report", str(one), "--json"])
    assert re.match("not finished yet:\n1 of 2 cells done", done.stderr)
    answer = json.loads(done.stdout)
    assert (answer["finished"], answer["planned"]) == (1, 2)
