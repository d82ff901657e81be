"""What a person reads after a run: the answer first, nothing cut, the verdict's own numbers."""

import re
from pathlib import Path

import pytest
from tests.made_runs import HOSTILE, write_audit, write_run

from palimpsest.report.results import RunResults, read_run
from palimpsest.report.table import Table, table_lines
from palimpsest.report.terminal import study_lines
from palimpsest.stats import words
from palimpsest.stats.axes import chosen


def lines_of(results: RunResults, **options: bool) -> list[str]:
    return "\n".join(study_lines(results, **options)).split("\n")


def joined(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def test_the_answer_comes_first_then_candidates_reasons_and_axes(single: RunResults) -> None:
    text = joined(lines_of(single))
    verdict = single.judged[0][1]
    order = [
        words.headline(verdict),
        words.refusal(verdict.finding("ga-w3"), 2),
        words.power_sentence(verdict),
        words.CLOSING,
        "1 replay-1 restored",
        "axis injected 50 % 25 % 10 % 5 %",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places) and places[0] == 0


def test_every_candidate_has_a_line_with_its_label_p_and_worst_axis(single: RunResults) -> None:
    lines = lines_of(single)
    for finding in single.judged[0][1].findings:
        (line,) = [one for one in lines if re.match(rf"\d+  {re.escape(finding.name)} ", one)]
        assert finding.comparison is not None
        far = words.distance(finding.comparison.worst, " ").removesuffix(" sd")
        assert finding.label in line and line.endswith(far)
        assert f"{finding.comparison.p:.2g}" in line


@pytest.mark.parametrize("columns", [80, 120])
def test_everything_fits_the_terminal_and_no_label_is_cut(
    single: RunResults, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = lines_of(single)
    assert max(map(len, lines)) <= columns
    assert any("over-forgotten and damaged" in line for line in lines)
    by_axis = lines[next(n for n, line in enumerate(lines) if line.startswith("axis ")) + 1 :]
    for axis, line in zip(chosen(single.rules), by_axis):
        assert line.startswith(axis.title)
    sd = single.judged[0][1].finding("replay-1").comparison.gaps["forget"].sd  # type: ignore[union-attr]
    assert f"{sd:+.1f}" in by_axis[0]


def test_a_long_name_is_folded_and_the_label_stays_whole() -> None:
    rows = [{"candidate": "replay-facts_vector-c1-s0.1-" * 3, "label": "suppressed and damaged"}]
    lines = table_lines(Table.of("t", "", "", rows), 60).split("\n")
    assert max(map(len, lines)) <= 60 and any("suppressed and damaged" in line for line in lines)
    names = [line.partition("  ")[0].strip() for line in lines[1:]]
    assert "".join(names) == "replay-facts_vector-c1-s0.1-" * 3


def test_several_cells_have_a_line_per_method_and_per_cell(results: RunResults) -> None:
    lines = lines_of(results)
    assert lines[0] == words.certified_cells(3, 3)
    assert any(re.match(r"replay +3/3  restored", line) for line in lines)
    assert sum(line.startswith(("qwen2-s--", "gpt2-s--")) for line in lines) == 4
    assert "gpt2-s--seed1: waiting" in lines


def test_without_references_the_screen_speaks(tmp_path: Path) -> None:
    lines = lines_of(read_run(write_audit(tmp_path / "run", ["good"], references=0)))
    assert any(re.match(r"1  good +not compared +\S+ +–", line) for line in lines)


def test_a_run_of_nothing_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {}, planned=["qwen2-s--seed0"])
    assert lines_of(read_run(run)) == [
        "qwen2-s--seed0: waiting",
        "No candidate was measured, so there is no verdict.",
    ]


def test_names_cannot_command_the_terminal(pages: dict[str, Path]) -> None:
    text = "\n".join(lines_of(read_run(pages["hostile"].parents[1])))
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert HOSTILE["markup"].split()[0] in text
