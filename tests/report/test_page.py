"""The page holds what it should, and nothing it should not, without a browser."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from report_runs import (
    HOSTILE,
    RULES,
    audit_run,
    cell_run,
    hostile_run,
    large_run,
    matrix_run,
    write_run,
)

from palimpsest.analysis.results import RunResults, read_run
from palimpsest.criteria.axes import chosen
from palimpsest.report.answer import REASONS, WORDS
from palimpsest.report.figures import all_figures
from palimpsest.report.html import render_page, write_report
from palimpsest.report.palette import MARKS
from palimpsest.report.record import read_record
from palimpsest.report.tables import all_tables
from palimpsest.verdict import REASONS as VERDICT_REASONS


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


def words(page: Path) -> str:
    return " ".join(parsed(page).text.split())


def rendered(run: Path) -> str:
    results = read_run(run)
    return render_page(results, all_tables(results), all_figures(results), read_record(run))


def figure(page: Path, name: str) -> str:
    found = re.search(
        rf'<figure class="figure" id="figure-{name}".*?</figure>', page.read_text(), re.S
    )
    assert found is not None, name
    return found.group(0)


def test_the_page_opens_with_the_verdict_and_its_picture(cell_page: Path) -> None:
    verdict = read_run(cell_page.parents[1]).cells[0].verdict
    assert verdict is not None and verdict.candidate is not None
    assert verdict.candidate.startswith("replay")
    source = cell_page.read_text()
    head, picture = source.index(f"<h1>Certified: {verdict.candidate}.</h1>"), source.index("<svg")
    assert head < picture < source.index("<nav")
    assert source.index("Indistinguishable from 30 retrainings on 8 axes") < picture
    text = words(cell_page).replace("−", "-").replace("α", "alpha")
    for sentence in verdict.paragraph().split(". ")[1:]:
        assert sentence.rstrip(".") in text


def test_the_first_picture_shows_every_axis_the_retrainings_and_the_controls(
    cell_page: Path,
) -> None:
    drawn = Parsed(figure(cell_page, "retrainings")).text
    for axis in chosen(RULES):
        assert axis.title in drawn
    assert "30 retrainings, and their range" in drawn and "injected model" in drawn
    for share in (50, 25, 10, 5):
        assert f"{share} % of injected weights left" in drawn
    source = figure(cell_page, "retrainings")
    assert len(re.findall(r"<title>control|<title>50 % of injected", source)) == 2 * len(RULES.axes)
    assert 'class="drawn wide"' in source and 'class="drawn narrow"' in source


def test_an_uncertified_page_names_the_axis_and_the_direction(uncertified_page: Path) -> None:
    source = uncertified_page.read_text()
    lead = re.search(r'<p class="lead">(.*?)</p>', source, re.S)
    assert (
        "<h1>Uncertified: every candidate can be distinguished from a retrained model.</h1>"
        in source
    )
    assert lead is not None and "kl_reversion-w3" in lead.group(1)
    assert "relearns the forget facts" in lead.group(1) and "sd" in lead.group(1)
    drawn = Parsed(figure(uncertified_page, "retrainings")).text
    assert "kl_reversion-w3" in drawn


def test_a_matrix_opens_with_counts_and_one_row_per_method(
    matrix_page: Path, results: RunResults
) -> None:
    source, text = matrix_page.read_text(), words(matrix_page)
    assert "<h1>5 of 5 cells certify a candidate.</h1>" in source
    assert (
        "known-label models that keep the facts, rejected" in text
        and "detection limit, median" in text
    )
    drawn = Parsed(figure(matrix_page, "acceptance")).text
    assert all(method in drawn for method in results.methods)
    assert "fresh retrainings" in drawn and "router" in drawn and "suppression" in drawn
    assert source.index('id="figure-acceptance"') < source.index("<nav")


@pytest.mark.parametrize("page", ["cell_page", "matrix_page"])
def test_the_papers_edition_comes_last(page: str, request: pytest.FixtureRequest) -> None:
    source = request.getfixturevalue(page).read_text()
    sections = re.findall(r'<section id="([\w-]+)"', source)
    assert sections[-1] == "paper"
    assert sections.index("controls") < sections.index("candidates") < sections.index("axes")
    after = source[source.index('<section id="paper"') :]
    assert 'id="figure-diagnostic"' in after and 'id="table-recalibrated-bar"' in after


def test_the_papers_edition_is_left_out_where_it_cannot_be_computed(tmp_path: Path) -> None:
    source = rendered(cell_run(tmp_path / "run", references=0))
    assert '<section id="paper"' not in source
    assert "Uncertified: there are too few retrained models to compare with." in source
    assert 'id="figure-retrainings"' not in source and 'id="figure-forget-deltas"' in source


@pytest.mark.parametrize("page", ["cell_page", "matrix_page"])
def test_every_figure_has_a_title_and_a_sentence(page: str, request: pytest.FixtureRequest) -> None:
    source = request.getfixturevalue(page).read_text()
    figures = source.count('<figure class="figure')
    bare = source.replace("<sub>f</sub>", "_f")
    assert figures >= 6
    assert len(re.findall(r'<p class="reading">[^<]{20,}\.</p>', bare)) == figures


@pytest.mark.parametrize("page", ["cell_page", "matrix_page"])
def test_every_figure_is_linked_as_svg_and_png(page: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(page)
    links = set(re.findall(r'href="(figures/[^"]+)"', path.read_text()))
    drawn = {f"figures/{file.name}" for file in (path.parent / "figures").iterdir()}
    assert links == drawn and len(drawn) == 2 * path.read_text().count('<figure class="figure')


def test_a_matrix_begins_with_one_line_per_method(matrix_page: Path) -> None:
    source = matrix_page.read_text()
    board = source.index("replay in 5 of 5 cells")
    assert source.index("<h1>") < board < source.index('id="figure-acceptance"')


def test_every_reason_has_words() -> None:
    assert set(REASONS) == set(VERDICT_REASONS)


def test_the_glossary_explains_every_axis(cell_page: Path) -> None:
    text = words(cell_page)
    for axis in chosen(RULES):
        assert axis.meaning in text
    for term, meaning in WORDS["glossary"].items():
        assert term in text and " ".join(meaning.split()) in text


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
    allowed = ("#", "data:text/csv;", "tables/", "figures/")
    for tag, attributes in found.tags:
        assert tag not in ("img", "iframe", "object", "link", "embed", "form")
        for name, value in attributes.items():
            assert not name.startswith("on") and name not in ("src", "style", "srcdoc")
            if name == "href":
                assert value is not None and value.startswith(allowed)
    assert sum(tag == "script" for tag, _ in found.tags) == 1
    assert sum(tag == "style" for tag, _ in found.tags) == 1


@pytest.mark.parametrize("page", ["cell_page", "matrix_page", "hostile_page"])
def test_ids_are_unique_and_references_within_figures_are_kept(
    page: str, request: pytest.FixtureRequest
) -> None:
    source = request.getfixturevalue(page).read_text()
    ids = [attributes["id"] for _, attributes in Parsed(source).tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    wanted = set(re.findall(r'<use[^>]* href="#([^"]+)"', source))
    wanted |= set(re.findall(r"url\(#([^)]+)\)", source))
    assert wanted and wanted <= set(ids)


def test_figures_take_their_colours_from_the_page(cell_page: Path) -> None:
    source = cell_page.read_text()
    drawn = re.findall(r'<svg [^>]*class="drawn.*?</svg>', source, re.S)
    assert drawn and not re.findall(r'(?:fill|stroke)="#', "".join(drawn))
    variables = set(re.findall(r"var\((--c\w{6})\)", "".join(drawn)))
    style = re.findall(r"<style>(.*?)</style>", source, re.S)[0]
    for variable in variables:
        values = re.findall(rf"{variable}:(#\w{{6}})", style)
        assert len(values) == 3 and values[1] == values[2]


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
    folder = hostile_page.parent
    for file in sorted((folder / "figures").glob("*.svg")):
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(file).iter()}
        assert not tags & {"script", "image", "a", "foreignObject"}, file
    markdown = (folder / "tables" / "candidates.md").read_text()
    assert "<script" not in markdown and "<img" not in markdown


def test_missing_cells_are_named_and_left_out(matrix_page: Path) -> None:
    text = words(matrix_page)
    assert "1 planned cell has no results" in text
    assert "gpt2-s--seed1 waiting" in text
    assert "5 of 6" in text


@pytest.mark.parametrize("count", [1, 6])
def test_a_run_in_which_nothing_is_finished_says_so(tmp_path: Path, count: int) -> None:
    run = write_run(tmp_path / "run", {}, planned=[f"qwen2-s--seed{k}" for k in range(count)])
    text = words(write_report(run))
    assert f"None of {count} planned cell{'s' if count > 1 else ''} is finished." in text
    assert "qwen2-s--seed0 waiting" in text


def test_candidates_of_an_audit_are_shown_by_their_own_names(tmp_path: Path) -> None:
    names = ["nothing-done", "nothing-else", "task-vector-1"]
    page = write_report(audit_run(tmp_path / "run", names))
    for name in ("measures", "forget-deltas"):
        drawn = Parsed(figure(page, name)).text
        assert all(one in drawn for one in names)


def test_many_candidates_of_an_audit_share_one_marker(tmp_path: Path) -> None:
    names = [f"mine-{k}" for k in range(MARKS + 1)]
    pictures = {p.name: p for p in all_figures(read_run(audit_run(tmp_path / "run", names)))}
    entries = [t.get_text() for t in pictures["forget-deltas"].figure.legends[0].get_texts()]
    assert "candidate" in entries and not set(names) & set(entries)


def test_every_candidate_is_in_the_table_and_at_a_point_of_the_diagnostic(
    matrix_page: Path, results: RunResults
) -> None:
    count = sum(1 for _ in results.candidates())
    source = matrix_page.read_text()
    assert source.count("<tr data-method=") == count
    assert figure(matrix_page, "diagnostic").count("oracle-KL") >= count


def test_the_record_is_shown_in_its_order(cell_page: Path) -> None:
    run = cell_page.parents[1]
    record = read_record(run)
    text = parsed(cell_page).text
    assert [what for what, _ in record.links] == [
        "plan, rules, seal and cells fixed",
        "step models stored",
        "cell qwen2-s--seed0 finished",
    ]
    assert all(digest in text for _, digest in (*record.links, *record.digests))


def test_hostile_names_give_the_same_page_twice(hostile_page: Path, tmp_path: Path) -> None:
    assert rendered(hostile_run(tmp_path / "run")) == hostile_page.read_text()


def test_a_matrix_gives_the_same_page_twice(matrix_page: Path, tmp_path: Path) -> None:
    assert rendered(matrix_run(tmp_path / "run")) == matrix_page.read_text()


@pytest.mark.slow
def test_the_page_of_45_cells_stays_under_eight_megabytes(tmp_path: Path) -> None:
    run = large_run(tmp_path / "run")
    assert sum(1 for _ in read_run(run).candidates()) == 810
    assert len(rendered(run).encode()) < 8_000_000
