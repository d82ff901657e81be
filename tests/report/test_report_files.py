"""The files of a report: all there, the same bytes each time, made without torch."""

import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.report.conftest import report_of

from palimpsest.errors import StoreError
from palimpsest.report.documents import as_junit
from palimpsest.report.page import write_report
from palimpsest.report.results import read_run
from palimpsest.text import printable


def contents(page: Path) -> dict[str, bytes]:
    folder = page.parent
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.mark.parametrize("name", ["cell", "matrix", "hostile"])
def test_the_same_results_give_the_same_bytes(name, pages):
    before = contents(pages[name])
    assert contents(report_of(pages[name].parents[1])) == before


def test_every_table_is_csv_and_every_figure_has_two_forms(pages):
    names = set(contents(pages["matrix"])) - {"index.html"}
    stems = {name.rpartition(".")[0] for name in names}
    for stem in stems:
        endings = ("csv",) if stem.startswith("tables/") else ("svg", "png")
        assert {name for name in names if name.startswith(f"{stem}.")} == {
            f"{stem}.{ending}" for ending in endings
        }
    assert {"tables/candidates", "tables/leaderboard", "tables/selection"} <= stems
    assert {"figures/acceptance", "figures/relearning", "figures/diagnostic"} <= stems


@pytest.mark.parametrize("name", ["cell", "uncertified", "hostile", "no references"])
def test_a_junit_report_passes_exactly_those_that_could_be_the_certified_one(name, pages):
    cell, verdict = read_run(pages[name].parents[1]).judged[0]
    suite = ElementTree.fromstring(as_junit(verdict, cell.failed))
    passed = [case.get("name") for case in suite if len(case) == 0]
    assert passed == [printable(finding.name) for finding in verdict.passing]
    assert bool(passed) == verdict.certified
    counts = len(verdict.findings) + len(cell.failed), len(cell.failed)
    assert (len(suite), len(suite.findall("*/error"))) == counts
    assert int(suite.get("failures", "")) + int(suite.get("errors", "")) + len(passed) == len(suite)


@pytest.mark.parametrize("linked", ["report", "report/tables", "report/figures"])
def test_a_report_is_not_written_through_a_link(linked, pages, tmp_path):
    run, victim = tmp_path / "run", tmp_path / "victim"
    shutil.copytree(pages["cell"].parents[1], run, ignore=shutil.ignore_patterns("report"))
    victim.mkdir()
    (victim / "notes.md").write_text("mine")
    (run / linked).parent.mkdir(exist_ok=True)
    (run / linked).symlink_to(victim)
    with pytest.raises(StoreError, match="link"):
        write_report(read_run(run))
    assert [path.name for path in victim.iterdir()] == ["notes.md"]


def test_files_of_an_earlier_version_are_removed_and_others_are_kept(pages):
    folder = pages["uncertified"].parent
    old, mine = folder / "figures" / "distance.svg", folder / "figures" / "notes.txt"
    old.write_text("old")
    mine.write_text("mine")
    write_report(read_run(folder.parent))
    assert not old.exists() and mine.read_text() == "mine"
    mine.unlink()


def test_figures_carry_no_date_and_no_maker(pages):
    for file in pages["matrix"].parent.glob("figures/*.svg"):
        assert b"<dc:date>" not in file.read_bytes() and b"<text" in file.read_bytes()
    for file in pages["matrix"].parent.glob("figures/*.png"):
        data = file.read_bytes()
        assert data.startswith(b"\x89PNG") and b"tEXt" not in data and b"Software" not in data


def test_a_report_and_frames_need_neither_torch_nor_pandas(pages):
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'transformers', 'pandas'):\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import palimpsest\n"
        "from palimpsest.paper.tables import paper_section\n"
        "from palimpsest.report.page import write_report\n"
        "run = palimpsest.load_run(sys.argv[1])\n"
        "print(write_report(run.results, paper_section(run.results)))\n"
        "assert run.summary()['cells']\n"
        "try:\n    run.scores\nexcept palimpsest.PalimpsestError as error:\n    print(error)\n"
    )
    before = contents(pages["cell"])
    command = [sys.executable, "-c", code, str(pages["cell"].parents[1])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "pip install 'palimpsest-audit[pandas]'" in done.stdout
    assert contents(pages["cell"]) == before
