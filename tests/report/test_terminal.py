"""What a person reads after a run: the answer first, nothing cut, the verdict's own numbers."""

import re
from typing import Any

import pytest
from tests.made_runs import candidate, compared_cell, write_audit, write_run
from tests.report.conftest import MAKERS

from palimpsest.report.results import RunResults, read_run
from palimpsest.report.table import Table, table_lines
from palimpsest.report.terminal import MOST_LINES, answer_lines, study_lines, telling_axes
from palimpsest.stats import words
from palimpsest.stats.axes import axis, chosen
from palimpsest.stats.models import ModelFailure


def answer(results: RunResults) -> str:
    """What stands first, where there is a verdict."""
    if len(results.planned) > 1:
        return words.certified_cells(results.certified, len(results.judged))
    return words.headline(results.judged[0][1]) if results.judged else ""


def lines_of(results: RunResults, **options: Any) -> list[str]:
    return "\n".join(study_lines(results, **options)).split("\n")


def joined(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


AFTER = ["", "report: RUN/report/index.html", "next: palimpsest compare RUN"]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("kind", MAKERS)
def test_the_answer_is_one_line_a_method_within_25_lines(kind, columns, pages, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    results = read_run(pages[kind].parents[1])
    lines = lines_of(results, after=AFTER)
    assert joined(lines).startswith(answer(results) or lines[0])
    assert len(lines) <= MOST_LINES and max(map(len, lines)) <= columns
    assert lines[-3:] == AFTER and words.CLOSING not in joined(lines)
    for cell in results.missing:
        assert any(line.startswith(f"{cell.id}: {cell.state}") for line in lines)
    for line in answer_lines(results) if kind != "hostile" else ():
        (shown,) = (text for text in lines if re.match(rf"{line.name}  ", text))
        assert f" {line.label}" in shown  # a label is never folded
        assert line.cost is None or shown.endswith(f"{line.cost:.2f}")
    assert not {"\x1b", "\x07", "\u202e"} & set("".join(lines))


@pytest.mark.parametrize("kind", MAKERS)
def test_explained_it_has_every_candidate_and_the_reasons(kind, pages):
    results = read_run(pages[kind].parents[1])
    lines = lines_of(results, explain=True)
    for cell, verdict in results.judged:
        if len(results.planned) > 1:
            assert f"{cell.id}: {words.headline(verdict)}" in joined(lines)
            continue
        table = [line for line in lines if re.match(r" ?\d+  ", line)]
        labels = {finding.label for finding in verdict.findings}
        assert len(table) == len(verdict.findings)
        assert all(any(label in line for label in labels) for line in table)
        assert words.CLOSING in joined(lines)


def test_the_axes_fit_the_terminal(single, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = lines_of(single, explain=True)
    assert max(map(len, lines)) <= 80
    by_axis = lines[next(n for n, line in enumerate(lines) if line.startswith("axis ")) + 1 :]
    for entry, line in zip(chosen(single.rules), by_axis):
        assert line.startswith(entry.title)
    sd = single.judged[0][1].finding("replay-1").comparison.gaps["forget"].sd  # type: ignore[union-attr]
    assert f"{sd:+.1f}" in by_axis[0]


def test_the_users_own_method_comes_first_and_a_failed_one_has_a_line(tmp_path):
    models = compared_cell("qwen2-s--seed0")
    failed = candidate("npo-w3", failure=ModelFailure("raised", "no memory"))
    run = write_run(tmp_path / "run", {"qwen2-s--seed0": models}, failed=(failed,))
    lines = answer_lines(read_run(run), first=["ga"])
    assert [line.name for line in lines] == ["ga", "replay", "kl_reversion", "task_vector", "npo"]
    assert lines[-1].label == "failed" and "no memory" in lines[-1].sentence
    assert [line.settings for line in lines] == [1, 2, 2, 1, 1]


def test_the_axes_named_show_each_part_of_the_label(single):
    verdict = single.judged[0][1]
    for finding in verdict.findings:
        told = telling_axes(finding)
        signs = [axis(gap.axis).side(gap.offset).sign for gap in told]
        assert len(told) == 2 and all(sign in finding.label for sign in signs[:1]) != (
            finding.label == "restored"
        )


def test_many_candidates_are_cut_and_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    results = read_run(write_audit(tmp_path / "run", [f"checkpoint-{n}" for n in range(60)]))
    lines = lines_of(results, after=AFTER)
    shown = sum(line.startswith("checkpoint-") for line in lines)
    assert len(lines) == MOST_LINES and f"{60 - shown} more are on the page." in joined(lines)


def test_a_long_name_is_folded_and_the_label_stays_whole():
    rows = [{"candidate": "replay-facts_vector-c1-s0.1-" * 3, "label": "suppressed and damaged"}]
    lines = table_lines(Table.of("t", "", "", rows), 60).split("\n")
    assert max(map(len, lines)) <= 60 and any("suppressed and damaged" in line for line in lines)
    names = [line.partition("  ")[0].strip() for line in lines[1:]]
    assert "".join(names) == "replay-facts_vector-c1-s0.1-" * 3
