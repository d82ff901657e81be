"""Runs, their pages, and a browser for the tests of the report."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.made_runs import (
    Made,
    cell_run,
    hostile_run,
    matrix_run,
    uncertified_run,
    write_audit,
    write_run,
)

from palimpsest.paper.tables import paper_section
from palimpsest.report.page import write_report
from palimpsest.report.results import read_run
from palimpsest.stats.models import Model, Role

NO_CANDIDATES = {role.value: Made(model=Model("", role)) for role in (Role.BASE, Role.INJECTED)}
MAKERS: dict[str, Callable[[Path], Path]] = {
    "cell": cell_run,
    "uncertified": uncertified_run,
    "matrix": matrix_run,
    "hostile": hostile_run,
    "audit": lambda path: write_audit(path, ["mine-1", "mine-2", "theirs"]),
    "no references": lambda path: cell_run(path, references=0),
    "no candidates": lambda path: write_run(path, {"only": NO_CANDIDATES}),
    "nothing finished": lambda path: write_run(path, {}, planned=["qwen2-s--seed0"]),
}


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """The reports of every kind of run, by name."""
    folder = tmp_path_factory.mktemp("pages")
    return {name: report_of(make(folder / name)) for name, make in MAKERS.items()}


def report_of(run: Path) -> Path:
    """The whole report of a run, as a study writes it."""
    results = read_run(run)
    return write_report(results, paper_section(results))


@pytest.fixture(scope="session")
def single(pages):
    """The results of the one cell."""
    return read_run(pages["cell"].parents[1])


@pytest.fixture(scope="session")
def results(pages):
    """The results of the matrix."""
    return read_run(pages["matrix"].parents[1])


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the playwright package")
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("needs chromium on the PATH to drive the page")
    with playwright.sync_playwright() as started:
        quiet = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        one = started.chromium.launch(executable_path=found, args=quiet)
        yield one
        one.close()
