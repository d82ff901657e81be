"""What a person reads after a run: the answer first, nothing cut, the verdict's own numbers."""

import re

import pytest
from tests.report.conftest import MAKERS

from palimpsest.report.results import RunResults, read_run
from palimpsest.report.table import Table, table_lines
from palimpsest.report.terminal import study_lines
from palimpsest.stats import words
from palimpsest.stats.axes import chosen


def answer(results: RunResults) -> str:
    """What stands first, where there is a verdict."""
    if len(results.planned) > 1:
        return words.certified_cells(results.certified, len(results.judged))
    return words.headline(results.judged[0][1]) if results.judged else ""


def lines_of(results: RunResults, **options: bool) -> list[str]:
    return "\n".join(study_lines(results, **options)).split("\n")


def joined(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


@pytest.mark.parametrize("kind", MAKERS)
def test_the_terminal_answers_first_and_names_every_candidate(kind, pages):
    results = read_run(pages[kind].parents[1])
    lines = lines_of(results)
    assert joined(lines).startswith(answer(results) or lines[0])
    for cell in results.missing:
        assert any(line.startswith(f"{cell.id}: {cell.state}") for line in lines)
    for _, verdict in results.judged[: len(results.planned) == 1]:
        table = [line for line in lines if re.match(r"\d+  ", line)]
        labels = {finding.label for finding in verdict.findings}
        assert len(table) == len(verdict.findings)
        assert all(any(label in line for label in labels) for line in table)
        assert words.CLOSING in joined(lines)
    assert not {"\x1b", "\x07", "\u202e"} & set("".join(lines))


@pytest.mark.parametrize("columns", [80, 120])
def test_everything_fits_the_terminal_and_no_label_is_cut(single, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = lines_of(single)
    assert max(map(len, lines)) <= columns
    assert any("over-forgotten and damaged" in line for line in lines)
    by_axis = lines[next(n for n, line in enumerate(lines) if line.startswith("axis ")) + 1 :]
    for axis, line in zip(chosen(single.rules), by_axis):
        assert line.startswith(axis.title)
    sd = single.judged[0][1].finding("replay-1").comparison.gaps["forget"].sd  # type: ignore[union-attr]
    assert f"{sd:+.1f}" in by_axis[0]


def test_a_long_name_is_folded_and_the_label_stays_whole():
    rows = [{"candidate": "replay-facts_vector-c1-s0.1-" * 3, "label": "suppressed and damaged"}]
    lines = table_lines(Table.of("t", "", "", rows), 60).split("\n")
    assert max(map(len, lines)) <= 60 and any("suppressed and damaged" in line for line in lines)
    names = [line.partition("  ")[0].strip() for line in lines[1:]]
    assert "".join(names) == "replay-facts_vector-c1-s0.1-" * 3
