"""Published tables, figures and pages come out of the published scores again, byte for byte."""

import shutil
from pathlib import Path

import pytest

from palimpsest.analysis.results import read_run
from palimpsest.certificate.verify import verify
from palimpsest.report.html import write_report

RESULTS = Path(__file__).parents[2] / "results"
RUNS = sorted(tables.parents[1] for tables in RESULTS.glob("*/report/tables"))


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_published_report_is_regenerated_bit_for_bit(run: Path, tmp_path: Path) -> None:
    again = tmp_path / run.name
    shutil.copytree(run, again, ignore=shutil.ignore_patterns("report"))
    write_report(again)
    here, there = (
        {p.relative_to(folder): p for p in (folder / "report").rglob("*") if p.is_file()}
        for folder in (run, again)
    )
    # Large files are not published, so there may be more than here.
    assert here and here.keys() <= there.keys()
    assert not [str(n) for n in sorted(here) if here[n].read_bytes() != there[n].read_bytes()]


def test_the_published_certificate_of_a_real_model_is_verified() -> None:
    report = verify(RESULTS / "smollm2" / "certificate.zip")
    assert report.ok and report.signer is None
    (words,) = report.verdicts.values()
    (cell,) = read_run(RESULTS / "smollm2").cells
    assert cell.verdict is not None and words == cell.verdict.paragraph()
    assert len(cell.evaluation.references) == 9 and len(cell.evaluation.of_role("retraining")) == 2


def test_the_matrix_of_the_second_edition_has_all_its_cells() -> None:
    results = read_run(RESULTS / "pocket")
    assert len(results.cells) == 45 and not results.missing
    models = [cell.evaluation for cell in results.cells]
    assert {len(cell.references) for cell in models} == {30}
    assert {len(cell.of_role("retraining")) for cell in models} == {5}


def test_the_trial_of_criteria_has_all_its_cells() -> None:
    results = read_run(next(run for run in RUNS if run.name == "criteria"))
    assert len(results.cells) == 27 and not results.missing
    kinds = {name for cell in results.cells for name in cell.evaluation.models}
    assert len([name for name in kinds if name.startswith("panel:")]) == 23
