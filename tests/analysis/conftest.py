from pathlib import Path

import pytest
from made_run import made_plan, write_run

from palimpsest.analysis.results import RunResults, read_run


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture(scope="session")
def results(run_folder: Path) -> RunResults:
    """Three models of two families, two seeds: six cells."""
    return read_run(run_folder)


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> RunResults:
    """One cell, as the demo has it."""
    folder = tmp_path_factory.mktemp("single") / "run"
    return read_run(write_run(folder, made_plan(("qwen2-s",), (0,))))
