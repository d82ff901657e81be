"""The results page says what the stored tables say, and they what the stored run says."""

import json
import shutil
from pathlib import Path

import pytest

from palimpsest.paper.study import read_paper
from palimpsest.report.results import RunResults
from palimpsest.run.files import file_digest
from palimpsest_trials import archive, edition, headlines, real_models


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> RunResults:
    return edition.unpack_run("pocket", tmp_path_factory.mktemp("edition"))


def test_the_tables_of_the_page_are_those_of_the_stored_counts() -> None:
    page = edition.PAGE.read_text(encoding="utf-8")
    every = edition.tables() | real_models.tables() | headlines.page_tables()
    for name, table in every.items():
        assert edition.put(page, name, table) == page


@pytest.mark.parametrize("name", ["smollm2", "gemma"])
def test_the_rows_of_a_real_model_are_those_of_its_run(name: str, tmp_path: Path) -> None:
    edition.unpack_run(name, tmp_path)
    rows = [[str(value) for value in row] for row in real_models.run_rows(name, tmp_path / name)]
    assert rows == [
        list(row.values()) for row in edition.read("real-models.csv") if row["run"] == name
    ]


def test_the_counts_are_those_of_the_stored_run(stored: RunResults) -> None:
    assert len(stored.cells) == 45 and not stored.missing
    for name, rows in (("methods.csv", edition.setting_rows), ("power.csv", edition.power_rows)):
        found = [[str(value) for value in row] for row in rows(stored)]
        assert found == [list(row.values()) for row in edition.read(name)]


def test_the_papers_figures_are_those_of_the_stored_run(stored: RunResults) -> None:
    study = read_paper(stored)
    assert study is not None
    found = headlines.ours(study)
    column = {row["key"]: row["pocket, third edition"] for row in edition.read("figures.csv")}
    assert column == {key: found.get(key) or "" for key in column}


def test_the_counts_of_the_restoration_trial_are_those_of_its_run(tmp_path: Path) -> None:
    trial = edition.unpack_run("restoration", tmp_path)
    assert len(trial.cells) == 45 and not trial.missing
    found = [[str(value) for value in row] for row in edition.setting_rows(trial)]
    assert found == [list(row.values()) for row in edition.read("restoration.csv")]


def test_the_archive_holds_no_weights_and_stays_small(stored: RunResults) -> None:
    files = [path for path in stored.path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".json", ".jsonl", ".parquet"}
    results = [path for path in (edition.ROOT / "results").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in results) <= 15 * 10**6


def test_a_packed_cell_is_unpacked_to_the_byte(stored: RunResults, tmp_path: Path) -> None:
    cell = next(stored.path.glob("cells/*"))
    shutil.copytree(cell, tmp_path / "run" / "cells" / cell.name)
    archive.pack(tmp_path / "run", tmp_path / "run.tar.xz")
    archive.unpack(tmp_path / "run.tar.xz", tmp_path / "again")
    again = tmp_path / "again" / "run" / "cells" / cell.name
    assert all((again / path.name).read_bytes() == path.read_bytes() for path in cell.iterdir())
    # And as the run wrote it: a cell names the digests of its files.
    written = json.loads((cell / "cell.json").read_text("utf-8"))["artifacts"]
    assert written["items.parquet"] == file_digest(again / "items.parquet")
