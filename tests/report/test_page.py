"""The page holds what it should, and nothing it should not, without a browser."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_run import made_plan, write_run
from report_runs import HOSTILE, audit_run, cell_run, hostile_run, large_run

from palimpsest.report.figures import all_figures
from palimpsest.report.frozen import read_frozen
from palimpsest.report.html import by_name, render_page, report_tables, write_report
from palimpsest.report.palette import MARKS
from palimpsest.study.results import read_run


class Parsed(HTMLParser):
    """Tags with their attributes, and all text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(page: Path) -> Parsed:
    return Parsed(page.read_text())


def rendered(run: Path) -> str:
    results = read_run(run)
    figures = all_figures(results)
    return render_page(results, report_tables(results), figures, read_frozen(run, results))


def test_candidates_of_an_audit_have_their_names_and_marks_of_their_own(tmp_path: Path) -> None:
    names = ["nothing-done", "nothing-else", "task-vector-1"]
    page = write_report(audit_run(tmp_path / "run", names))
    legends = re.findall(r'<ul class="legend">(.*?)</ul>', page.read_text(), re.S)
    shown = [[Parsed(item).text.strip() for item in one.split("<li>")[1:]] for one in legends]
    assert len([one for one in shown if one[:3] == names]) >= 4
    assert [*names, "plain line: references, in their range"] in [one[:4] for one in shown]
    assert "nothing" not in {text for one in shown for text in one}
    marks = re.findall(r'<use href="#m-(\w+)" class="(c-[\w-]+)"/></svg>nothing', page.read_text())
    assert len(set(marks)) == 2


def test_many_candidates_of_an_audit_share_one_mark(tmp_path: Path) -> None:
    names = [f"mine-{k}" for k in range(MARKS + 1)]
    results = by_name(read_run(audit_run(tmp_path / "run", names)))
    assert results.methods == ("candidates",)
    assert all_figures(results)[0].legend[0] == ("candidates", "candidates", False)


def test_the_verdict_stands_at_the_top_with_every_sentence_of_its_paragraph(
    cell_page: Path,
) -> None:
    verdict = read_run(cell_page.parents[1]).cells[0].verdict
    assert verdict is not None and verdict.candidate == "gate_mask-w3"
    text = " ".join(parsed(cell_page).text.split())
    assert "Certified: gate_mask-w3." in text
    for name, sign in (("delta_f", "δf"), ("epsilon_f", "εf"), ("alpha =", "α =")):
        text = text.replace(sign, name)
    for part in verdict.paragraph().split(". ")[1:]:
        assert part.rstrip(".") in text
    assert text.index("What this does not say") < text.index("Did it forget?")


@pytest.mark.parametrize("page", ["cell_page", "matrix_page"])
def test_every_question_has_a_heading_and_every_figure_a_reading(
    page: str, request: pytest.FixtureRequest
) -> None:
    source = request.getfixturevalue(page).read_text()
    for name in ("forget", "retain", "loop", "distance", "trust", "frozen", "candidates"):
        assert f'<section id="{name}">' in source
    figures = source.count('<figure class="figure')
    assert figures >= 7
    bare = source.replace("<sub>f</sub>", "_f")
    assert len(re.findall(r'<p class="reading">[^<]{20,}\.</p>', bare)) == figures
    assert "no numbers for a figure" not in source


@pytest.mark.parametrize("page", ["cell_page", "matrix_page", "hostile_page"])
def test_the_policy_names_exactly_the_style_and_script_the_page_carries(
    page: str, request: pytest.FixtureRequest
) -> None:
    source = request.getfixturevalue(page).read_text()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', source)
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", source, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{digest}&#39;" in policy.replace("&amp;", "&")
    assert policy.startswith("default-src &#39;none&#39;;")


@pytest.mark.parametrize("page", ["cell_page", "matrix_page", "hostile_page"])
def test_nothing_on_the_page_comes_from_elsewhere_or_runs_from_an_attribute(
    page: str, request: pytest.FixtureRequest
) -> None:
    found = parsed(request.getfixturevalue(page))
    allowed = ("#", "data:text/csv;")
    for tag, attributes in found.tags:
        assert tag not in ("img", "iframe", "object", "link", "embed", "form")
        for name, value in attributes.items():
            assert not name.startswith("on") and name not in ("src", "style", "srcdoc")
            if name == "href":
                assert value is not None and value.startswith(allowed)
    assert sum(tag == "script" for tag, _ in found.tags) == 1


def test_hostile_names_are_shown_as_text_with_what_cannot_be_printed_taken_out(
    hostile_page: Path,
) -> None:
    found = parsed(hostile_page)
    for name in ("closing", "handler", "svg", "markup", "long", "comment"):
        assert HOSTILE[name] in found.text, name
    assert "49" not in re.findall(r"loud\[/\] (\S+)", found.text)
    source = hostile_page.read_text()
    assert not {"\x1b", "\x07", "\u202e"} & set(source)
    assert "�[31mred�[0m�" in found.text


def test_hostile_names_do_no_harm_in_figures_and_tables(hostile_page: Path) -> None:
    from xml.etree import ElementTree

    folder = hostile_page.parent
    for file in sorted((folder / "figures").glob("*.svg")):
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(file).iter()}
        assert not tags & {"script", "image", "a", "foreignObject"}, file
    markdown = (folder / "tables" / "candidates.md").read_text()
    assert "<script" not in markdown and "<img" not in markdown


def test_missing_cells_are_named_and_left_out(matrix_page: Path) -> None:
    text = " ".join(parsed(matrix_page).text.split())
    assert "1 planned cell has no results" in text
    assert "gpt2-s--seed1 waiting" in text
    assert "5/6" in text


def test_a_run_in_which_nothing_is_finished_says_so(tmp_path: Path) -> None:
    plan = made_plan()
    run = write_run(tmp_path / "run", plan, skip=[cell.id for cell in plan.cells()])
    text = parsed(write_report(run)).text
    assert "None of 6 planned cells is finished." in text


def test_one_planned_cell_that_is_not_finished_is_named(tmp_path: Path) -> None:
    plan = made_plan(("qwen2-s",), (0,))
    run = write_run(tmp_path / "run", plan, skip=[plan.cells()[0].id])
    text = " ".join(Parsed(rendered(run)).text.split())
    assert "None of 1 planned cells is finished." in text and "qwen2-s--seed0 waiting" in text


def test_without_replication_there_is_no_distance_and_the_bar_is_the_absolute_one(
    tmp_path: Path,
) -> None:
    source = rendered(cell_run(tmp_path / "run", draws=1))
    assert "against fixed limits, without a replicated reference" in source
    assert 'id="figure-distance"' not in source and 'id="figure-replication"' not in source
    assert 'id="figure-forget-deltas"' in source


def test_without_a_panel_the_page_still_answers_the_rest(tmp_path: Path) -> None:
    source = rendered(cell_run(tmp_path / "run", panel=False))
    assert 'id="table-panel-cells"' not in source and 'id="figure-distance"' in source


def test_every_candidate_is_in_the_table_and_at_a_point_of_the_diagnostic(
    matrix_page: Path,
) -> None:
    results = read_run(matrix_page.parents[1])
    count = sum(1 for _ in results.candidates())
    source = matrix_page.read_text()
    assert source.count("<tr data-method=") == count
    (figure,) = re.findall(r'id="figure-diagnostic".*?</figure>', source, re.DOTALL)
    assert len(re.findall(r"<use href[^>]*><title>[^<]*oracle-KL", figure)) == count


def test_rules_seal_and_chain_are_shown_in_their_order(cell_page: Path) -> None:
    results = read_run(cell_page.parents[1])
    frozen = read_frozen(cell_page.parents[1], results)
    text = parsed(cell_page).text
    assert frozen.rules_hash == results.rules_hash and frozen.rules_hash in text
    told = [link.what for link in frozen.links]
    assert told[:4] == ["plan fixed", "rules fixed", "1 cell planned", "audit pool sealed"]
    assert told.index("audit pool sealed") < told.index("cell qwen2-s--seed0 started")
    assert all(link.digest in text for link in frozen.links)


@pytest.mark.slow
def test_the_page_of_820_candidates_stays_under_five_megabytes(tmp_path: Path) -> None:
    run = large_run(tmp_path / "run")
    assert sum(1 for _ in read_run(run).candidates()) == 820
    assert len(rendered(run).encode()) < 5_000_000


def test_hostile_names_give_the_same_page_twice(hostile_page: Path, tmp_path: Path) -> None:
    assert rendered(hostile_run(tmp_path / "run")) == hostile_page.read_text()
