"""The paper's figures stand in results/paper, ours are computed; docs set them side by side."""

import re
import sys
from pathlib import Path

import pytest

from palimpsest.analysis.results import RunResults

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"headroom-spearman", "headroom-error", "tofu-excluded", "tofu-diagnostic"}
"""Figures of studies that have a run of their own."""


@pytest.fixture(scope="module")
def headlines() -> object:
    sys.path.insert(0, str(ROOT / "docs"))
    import headlines

    return headlines


def test_every_figure_of_the_paper_has_ours_beside_it(headlines, results: RunResults) -> None:  # type: ignore[no-untyped-def]
    keys = {row["key"] for row in headlines.paper_figures()}
    assert len(keys) == 47
    assert keys - set(headlines.ours(results)) == ELSEWHERE
    assert set(headlines.ours(results)) <= keys


def test_our_figures_are_the_planted_ones(headlines, results: RunResults) -> None:  # type: ignore[no-untyped-def]
    ours = headlines.ours(results)
    assert ours["screen-excluded"] == "5/30" and ours["survivors"] == "25/30"
    assert ours["n4-vacuous"] == "0/30"
    assert ours["panel-injected"] == "5/5" and ours["injected-retain"] == "5/5"
    assert ours["rollback"] == "6.000 and 1.200" or ours["rollback"].startswith("6.000 and 1.")


@pytest.mark.slow
def test_the_page_of_results_holds_what_the_stored_scores_give(headlines: object) -> None:
    import results_table

    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    for name, body in results_table.blocks():
        inside = page.partition(f"<!-- {name} -->\n")[2].partition(f"\n<!-- end of {name} -->")[0]
        assert inside == body.rstrip(), f"run `python docs/results_table.py`: {name} differs"


def test_every_figure_has_a_remark() -> None:
    source = (ROOT / "docs" / "results_table.py").read_text()
    keys = set(re.findall(r'^    "([\w-]+)": "', source, re.M))
    rows = (ROOT / "results" / "paper" / "figures.csv").read_text().splitlines()[1:]
    assert {row.partition(",")[0] for row in rows} <= keys


def test_the_package_holds_none_of_the_papers_figures() -> None:
    source = "".join(p.read_text() for p in (ROOT / "src/palimpsest/report").rglob("*.py"))
    for figure in ("38/820", "2.82", "498/820", "0.795", "39.6%"):
        assert figure not in source
