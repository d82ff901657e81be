"""The page holds what it should, and nothing it should not, without a browser."""

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.made_runs import HOSTILE, RULES, cell_run, write_audit, write_run
from tests.report.golden import GOLDEN, Parsed, verdict_words

from palimpsest.report.page import across, write_report
from palimpsest.report.results import RunResults, read_run
from palimpsest.report.table import Share
from palimpsest.stats import words
from palimpsest.stats.axes import chosen

NAMES = ("cell", "uncertified", "matrix", "hostile")


def text_of(page: Path) -> str:
    return " ".join(Parsed(page.read_text()).text.split()).replace("−", "-")


def first_screen(page: Path) -> str:
    """The text of the section that answers."""
    source = page.read_text()
    return source[: source.index("</section>")]


def test_the_page_of_a_verdict_reads_as_it_should(pages: dict[str, Path]) -> None:
    """``python -m tests.report.golden`` writes the file anew; read what changed in it."""
    assert verdict_words(pages["cell"]) == GOLDEN.read_text()


def test_the_picture_shows_every_axis_with_its_meaning_and_its_sensitivity(
    pages: dict[str, Path], single: RunResults
) -> None:
    screen = first_screen(pages["cell"])
    strips = screen.split('<div class="strip">')[1:]
    verdict, count = single.judged[0][1], len(single.cells[0].candidates)
    assert len(strips) == len(chosen(RULES))
    for axis, strip in zip(chosen(RULES), strips):
        assert (
            f"<b>{axis.title}</b>" in strip and f'title="{axis.meaning.split(chr(39))[0]}' in strip
        )
        assert strip.count('<circle class="retraining"') == 20
        assert strip.count('<circle class="mixture"') == 8 and strip.count("<rect class") == 2
        assert strip.count("<circle data-c=") == count
        assert strip.count('class="candidate off"') == count - 1  # the first needs no script
        share = verdict.sensitivity[axis.name]
        noticed = "not detected alone" if share is None else f"detected from {words.percent(share)}"
        assert noticed in strip
    assert re.findall(r"<option[^>]*>(.*?)<", screen)[0] == verdict.candidate


def test_an_uncertified_page_gives_the_reason_first(pages: dict[str, Path]) -> None:
    verdict = read_run(pages["uncertified"].parents[1]).judged[0][1]
    screen = first_screen(pages["uncertified"])
    assert f"<h1>{words.headline(verdict)}</h1>" in screen
    assert f'<p class="lead">{words.reasons(verdict)[0]}</p>' in screen
    assert "restored" not in re.findall(r'class="label \w+">(.*?)<', screen)


def test_an_audit_has_one_line_per_candidate_and_no_sections_of_studies(tmp_path: Path) -> None:
    names = ["mine-1", "mine-2", "theirs"]
    page = write_report(read_run(write_audit(tmp_path / "run", names)))
    screen = first_screen(page)
    assert set(re.findall(r'<th scope="row">(.*?)</th>', screen)) == set(names)
    sections = re.findall(r'<section id="([\w-]+)"', page.read_text())
    assert sections == ["answer", "reasons", "candidates", "record"]
    assert "20 retrainings" in text_of(page)  # what more references would buy
    assert not {"leaderboard.csv", "selection.csv"} & {p.name for p in page.parent.rglob("*.csv")}


def test_a_matrix_opens_with_one_line_per_method_over_cells(pages: dict[str, Path]) -> None:
    screen = first_screen(pages["matrix"])
    assert f"<h1>{words.certified_cells(3, 3)}</h1>" in screen
    first = re.findall(r'<th scope="row">(.*?)</th>.*?</span></td><td>(.*?)</td>', screen)[0]
    assert first[0] == "replay" and "restored in 3 of 3" in first[1]
    assert 'id="figure-acceptance"' in screen and '<div class="strips"' not in screen
    assert "gpt2-s--seed1</code> has no results (waiting)" in screen
    sections = re.findall(r'<section id="([\w-]+)"', pages["matrix"].read_text())
    assert sections == ["answer", "candidates", "methods", "cells", "paper", "record"]


def test_answers_are_shown_beside_each_other_where_they_were_kept(tmp_path: Path) -> None:
    models = ("injected", "replay-1", "replay-2", "ga-w3", "reference-1", "base")
    said = ("Velkor.", "Tarn", "Osk", "Velkor of Tren", "Velkorian", "Mirn")
    texts = {"model": list(models), "set": ["forget"] * 6, "fact": ["f0"] * 6}
    texts |= {"prompt": ["Asha's guild is"] * 6, "truth": ["Velkor"] * 6, "answer": list(said)}
    chances = np.array([0.5, 0.25, 0.125, 0.5, 0.001, np.nan])
    numbers = {"rank": np.arange(1, 7, dtype=np.int32), "probability": chances}
    page = write_report(read_run(cell_run(tmp_path / "run", answers=texts | numbers)))
    screen = first_screen(page)
    text = " ".join(Parsed(screen[screen.index("What the models answer") :]).text.split())
    # The legend, the injected model and ga; what only begins like the truth is wrong.
    assert text.count("✓") == 3 and "Asha's guild is … Velkor Velkor. ✓ 50 % Tarn 25 %" in text
    assert "Tarn 25 %, rank 2" in text and "Velkorian 0.1 %, rank 5" in text
    assert "no number" in text and 'class="off">Osk<' in screen
    with_none = write_report(read_run(cell_run(tmp_path / "none")))
    assert "What the models answer" not in with_none.read_text()


def test_without_references_nothing_is_compared_and_nothing_breaks(tmp_path: Path) -> None:
    page = write_report(read_run(cell_run(tmp_path / "run", references=0)))
    screen = first_screen(page)
    assert "Uncertified (no_reference)" in screen and "too few retrainings" in screen
    labels = re.findall(r'class="label (\w+)">(.*?)<', screen)
    assert labels == [("open", "not compared")] * 4 and '<div class="strips"' not in screen


@pytest.mark.parametrize("count", [1, 4])
def test_a_run_in_which_nothing_is_finished_says_so(tmp_path: Path, count: int) -> None:
    run = write_run(tmp_path / "run", {}, planned=[f"qwen2-s--seed{k}" for k in range(count)])
    text = text_of(write_report(read_run(run)))
    assert f"0 of {count} planned cells finished" in text and "qwen2-s--seed0" in text


@pytest.mark.parametrize("name", NAMES)
def test_the_policy_names_exactly_the_style_and_script_the_page_carries(
    name: str, pages: dict[str, Path]
) -> None:
    source = pages[name].read_text()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', source)
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", source, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{digest}&#39;" in policy
    assert policy.startswith("default-src &#39;none&#39;;")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_on_the_page_comes_from_elsewhere_or_runs_from_an_attribute(
    name: str, pages: dict[str, Path]
) -> None:
    found = Parsed(pages[name].read_text())
    for tag, attributes in found.tags:
        assert tag not in ("iframe", "object", "link", "embed", "form")
        for attribute, value in attributes.items():
            assert not attribute.startswith("on") and attribute not in ("style", "srcdoc")
            if attribute in ("href", "src"):
                start = "data:image/svg+xml;base64," if tag == "img" else ("tables/", "figures/")
                assert value is not None and value.startswith(start)
    assert sum(tag in ("script", "style") for tag, _ in found.tags) == 2
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)


def test_hostile_names_stay_text_everywhere(pages: dict[str, Path]) -> None:
    found = Parsed(pages["hostile"].read_text())
    for name in ("closing", "handler", "svg", "markup", "long", "comment"):
        assert HOSTILE[name] in found.text, name
    assert not {"\x1b", "\x07", "\u202e"} & set(found.text) and "�[31mred�[0m�" in found.text
    folder = pages["hostile"].parent
    for file in sorted((folder / "figures").glob("*.svg")):
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(file).iter()}
        assert not tags & {"script", "image", "a", "foreignObject"}, file
    markdown = (folder / "tables" / "candidates.md").read_text()
    assert "<script" not in markdown and "<img" not in markdown


def test_distances_keep_their_order_and_stay_on_the_picture() -> None:
    places = [across(sd) for sd in (-1e9, -60, -10, -3, -1, 0, 1, 3, 10, 60, 1e9)]
    assert places == sorted(places) and places[0] == 2.0 and places[5] == 50.0
    assert places[3:8] == pytest.approx([50 + 8.8 * sd for sd in (-3, -1, 0, 1, 3)])


def test_a_cell_without_candidates_has_a_page(single: RunResults, tmp_path: Path) -> None:
    cell = replace(single.cells[0], verdict=None)
    page = write_report(replace(single, cells=(cell,), path=tmp_path))
    assert str(Share(1, 1)) in text_of(page) and '<section id="reasons"' not in page.read_text()
