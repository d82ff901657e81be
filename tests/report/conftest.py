"""Runs and browsers for the tests of the report."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "study"))  # made_run lives with the studies

from made_run import write_run
from report_runs import cell_run, hostile_run

from palimpsest.report.html import write_report


@pytest.fixture(scope="session")
def cell_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of one cell."""
    return write_report(cell_run(tmp_path_factory.mktemp("cell") / "run"))


@pytest.fixture(scope="session")
def matrix_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of six cells, of which one is missing."""
    folder = tmp_path_factory.mktemp("matrix") / "run"
    return write_report(write_run(folder, skip=("gpt2-s--seed1",)))


@pytest.fixture(scope="session")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a cell whose every name is an attack."""
    return write_report(hostile_run(tmp_path_factory.mktemp("hostile") / "run"))


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
