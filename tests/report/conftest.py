"""Runs and browsers for the tests of the report."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_runs import cell_run, hostile_run, matrix_run, uncertified_run

from palimpsest.analysis.results import RunResults, read_run
from palimpsest.report.html import write_report


@pytest.fixture(scope="session")
def cell_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of one cell that certifies a candidate."""
    return write_report(cell_run(tmp_path_factory.mktemp("cell") / "run"))


@pytest.fixture(scope="session")
def uncertified_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of one cell in which every candidate is distinguishable."""
    return write_report(uncertified_run(tmp_path_factory.mktemp("uncertified") / "run"))


@pytest.fixture(scope="session")
def matrix_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of six cells, of which one is missing."""
    return write_report(matrix_run(tmp_path_factory.mktemp("matrix") / "run"))


@pytest.fixture(scope="session")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a cell whose every name is an attack."""
    return write_report(hostile_run(tmp_path_factory.mktemp("hostile") / "run"))


@pytest.fixture(scope="session")
def single(cell_page: Path) -> RunResults:
    """The results of the one cell."""
    return read_run(cell_page.parents[1])


@pytest.fixture(scope="session")
def results(matrix_page: Path) -> RunResults:
    """The results of the matrix."""
    return read_run(matrix_page.parents[1])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the playwright package")
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("needs chromium on the PATH to drive the page")
    with playwright.sync_playwright() as started:
        one = started.chromium.launch(
            executable_path=found,
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        yield one
        one.close()
