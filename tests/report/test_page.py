"""The page holds what it should, and nothing it should not, without a browser."""

import base64
import hashlib
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.made_runs import HOSTILE, RULES, cell_run
from tests.report.conftest import MAKERS
from tests.report.golden import GOLDEN, Parsed, verdict_words
from tests.report.test_terminal import answer

from palimpsest.report.page import across, write_report
from palimpsest.report.results import read_run
from palimpsest.stats.axes import Sign, chosen

NAMES = ("cell", "uncertified", "matrix", "hostile")


def text_of(page: Path) -> str:
    return " ".join(Parsed(page.read_text()).text.split()).replace("−", "-")


def test_the_page_of_a_verdict_reads_as_it_should(pages):
    """``python -m tests.report.golden`` writes the file anew; read what changed in it."""
    assert verdict_words(pages["cell"]) == GOLDEN.read_text()


SECTIONS = {
    "cell": ["answer", "reasons", "candidates", "record"],
    "matrix": ["answer", "candidates", "methods", "cells", "paper", "record"],
    "audit": ["answer", "reasons", "candidates", "record"],
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_page_answers_first_and_has_the_sections_of_its_kind(kind, pages):
    results, source = read_run(pages[kind].parents[1]), pages[kind].read_text()
    screen = source[: source.index("</section>")]
    assert Parsed(screen).text.index(answer(results)) < 2_000
    found = re.findall(r'<section id="([\w-]+)"', source)
    assert found == SECTIONS.get(kind, found) and found[0] == "answer"
    for cell in results.missing:
        assert cell.id in screen
    if len(results.planned) > 1:
        return
    compared = bool(results.judged) and results.judged[0][1].reference_count > 0
    assert ('<div class="strips"' in screen) == compared
    for cell, verdict in results.judged:
        names = [*(f.name for f in verdict.findings), *cell.failed]
        listed = {name if kind == "audit" else cell.method(name) for name in names}
        labels = re.findall(r'<th scope="row">.*?</th>.*?class="label \w+">(.*?)<', screen)
        assert len(labels) == len(listed)
        assert set(labels) <= {"failed", *(finding.label for finding in verdict.findings)}


def test_the_picture_shows_every_model_on_every_axis(pages, single):
    source = pages["cell"].read_text()
    strips = source[: source.index("</section>")].split('<div class="strip">')[1:]
    count = len(single.cells[0].candidates)
    assert len(strips) == len(chosen(RULES))
    for axis, strip in zip(chosen(RULES), strips):
        assert f"<b>{axis.title}</b>" in strip
        shown = ('<circle class="retraining"', '<circle class="mixture"', "<circle data-c=")
        assert [strip.count(one) for one in shown] == [20, 8, count]
        assert strip.count('class="candidate off"') == count - 1  # the first needs no script
        ends = re.findall(r'<text class="hint.*?>(.*?)</text>', strip)
        signs = [axis.low.sign, axis.high.sign]
        assert [Sign.KNOWS in signs, Sign.FORGETS in signs] == [
            any(words in end for end in ends) for words in ("knows more", "knows less")
        ]
        if Sign.KNOWS in signs:  # where the injected model lies
            assert "knows more" in ends[signs.index(Sign.KNOWS)]


def test_answers_are_shown_beside_each_other_where_they_were_kept(tmp_path):
    said = {"injected": "Velkor.", "replay-1": "Tarn", "ga-w3": "Velkor of Tren", "base": "Mirn"}
    columns: dict[str, Any] = {"model": list(said), "answer": list(said.values())}
    same = {"set": "forget", "fact": "f0", "prompt": "Asha's guild is", "truth": "Velkor"}
    columns |= {key: [value] * len(said) for key, value in same.items()}
    columns |= {"rank": np.arange(1, 5, dtype=np.int32), "probability": np.full(4, 0.25)}
    page = write_report(read_run(cell_run(tmp_path / "run", answers=columns)))
    text = text_of(page)
    assert all(answer in text for answer in said.values())
    # The legend and two answers; what only begins like the truth is wrong.
    assert text.count("✓") == 3


@pytest.mark.parametrize("name", NAMES)
def test_the_policy_names_exactly_the_style_and_script_the_page_carries(name, pages):
    source = pages[name].read_text()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', source)
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", source, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{digest}&#39;" in policy
    assert policy.startswith("default-src &#39;none&#39;;")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_on_the_page_comes_from_elsewhere_or_runs_from_an_attribute(name, pages):
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


def test_hostile_names_stay_text_everywhere(pages):
    found = Parsed(pages["hostile"].read_text())
    for name in ("closing", "handler", "svg", "markup", "long", "comment"):
        assert HOSTILE[name] in found.text, name
    assert not {"\x1b", "\x07", "\u202e"} & set(found.text) and "�[31mred�[0m�" in found.text
    folder = pages["hostile"].parent
    for file in sorted((folder / "figures").glob("*.svg")):
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(file).iter()}
        assert not tags & {"script", "image", "a", "foreignObject"}, file


def test_distances_keep_their_order_and_stay_on_the_picture():
    places = [across(sd) for sd in (-1e9, -60, -10, -3, -1, 0, 1, 3, 10, 60, 1e9)]
    assert places == sorted(places) and places[0] == 2.0 and places[5] == 50.0
    assert places[3:8] == pytest.approx([50 + 8.8 * sd for sd in (-3, -1, 0, 1, 3)])
