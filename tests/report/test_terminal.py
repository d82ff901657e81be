"""What a person reads after a run: the numbers the verdict uses, and what every column means."""

import re
from pathlib import Path

import pytest
from report_runs import audit_run, cell_run, matrix_run, write_run

from palimpsest.analysis.results import CellResult, RunResults, read_run
from palimpsest.analysis.table import Share, Table, percent
from palimpsest.report.terminal import candidate_lines, second_lines, summary_json, summary_lines


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> CellResult:
    return read_run(cell_run(tmp_path_factory.mktemp("terminal") / "run")).cells[0]


def row(told: str, name: str) -> list[str]:
    return next(line.split() for line in told.split("\n") if line.split()[:1] == [name])


def test_every_number_shown_is_the_verdicts(cell: CellResult) -> None:
    told = candidate_lines(cell, 140)
    assert cell.verdict is not None
    for one in cell.verdict.findings:
        assert one.comparison is not None and one.comparison.restored is not None
        shown = row(told, one.name)
        assert shown[1] == f"{one.comparison.p:.2g}"
        assert " ".join(shown[2:4]) == percent(one.comparison.restored)
        values = [value for value in one.comparison.z.values() if value is not None]
        texts = shown[4 : 4 + len(values)]
        assert [float(text.rstrip("*")) for text in texts] == pytest.approx(values, abs=0.51)
        worst = list(one.comparison.z).index(one.comparison.worst.axis)
        assert [text.endswith("*") for text in texts].index(True) == worst
    assert row(told, "replay-1")[-1] == "passes" and row(told, "ga-w3")[-1] == "differs"
    assert row(told, "kl_reversion-w12")[-1] == "screen"


def test_controls_stand_above_the_candidates(cell: CellResult) -> None:
    told = candidate_lines(cell, 140)
    assert told.index("injected") < told.index("replay-1")
    assert "25 % left" in told and "router" in told
    assert not re.search(r"^reference", told, re.M)


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal(cell: CellResult, width: int) -> None:
    told = candidate_lines(cell, width)
    assert max(map(len, told.split("\n"))) <= width
    assert "…" not in told


def test_without_references_the_table_shows_values(tmp_path: Path) -> None:
    result = read_run(audit_run(tmp_path / "run", ["mine"], references=0)).cells[0]
    told = candidate_lines(result, 120)
    assert "axes: the values" in told and "not compared" in " ".join(told.split())
    assert result.verdict is not None
    assert row(told, "mine")[1] == f"{result.verdict.findings[0].adjusted_p:.2g}"


def test_a_matrix_has_one_line_per_cell(tmp_path: Path) -> None:
    run = matrix_run(tmp_path / "run")
    lines = summary_lines(run)
    assert sum(line.startswith(("qwen2", "gpt2")) for line in lines) == 6
    assert lines[-1].startswith("5 of 5 finished cells certify a candidate; 1 of 6")
    answer = summary_json(run)
    assert answer["planned"] == 6 and list(answer["missing"]) == ["gpt2-s--seed1"]
    assert answer["cells"]["qwen2-s--seed0"]["status"] == "certified"


def test_a_run_of_nothing_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {}, planned=["qwen2-s--seed0"])
    assert summary_lines(run) == ["qwen2-s--seed0: waiting"]


def test_the_verdict_ends_the_summary_of_one_cell(single: RunResults, cell_page: Path) -> None:
    (cell,) = single.cells
    assert cell.verdict is not None
    assert summary_lines(cell_page.parents[1])[-1] == cell.verdict.paragraph()


def test_a_second_suite_says_its_numbers() -> None:
    values = ("nearest", 45, 0.201, 0.428, -0.227, Share(35, 45), Share(24, 45), Share(8, 45))
    found = Table("second-suite", "Picks", "Read.", tuple("abcdefgh"), (values,))
    shown = row(second_lines(found), "nearest")
    assert shown[1:] == ["45", "0.201", "0.428", "-0.227", "35/45", "24/45", "8/45"]
