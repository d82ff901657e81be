"""Published tables, figures and page come out of the published scores again, byte for byte."""

import shutil
from pathlib import Path

import pytest

from palimpsest.analysis.results import read_run
from palimpsest.report.html import write_report

RESULTS = Path(__file__).parents[2] / "results" / "pocket"
pytestmark = pytest.mark.skipif(
    not (RESULTS / "terms.json").exists(),
    reason="results/pocket was made by an earlier version and is to be run again",
)


@pytest.mark.slow
def test_the_report_of_the_pocket_matrix_is_regenerated_bit_for_bit(tmp_path: Path) -> None:
    run = tmp_path / "pocket"
    shutil.copytree(RESULTS, run, ignore=shutil.ignore_patterns("report", "locks"))
    write_report(run)
    published = {p.relative_to(RESULTS) for p in (RESULTS / "report").rglob("*") if p.is_file()}
    again = {p.relative_to(run) for p in (run / "report").rglob("*") if p.is_file()}
    assert published == again
    different = [
        str(name)
        for name in sorted(published)
        if (RESULTS / name).read_bytes() != (run / name).read_bytes()
    ]
    assert not different


def test_every_planned_cell_of_the_pocket_matrix_is_there() -> None:
    results = read_run(RESULTS)
    assert len(results.cells) == 45
    assert not results.missing
    assert sum(len(cell.candidates) for cell in results.cells) == 820
