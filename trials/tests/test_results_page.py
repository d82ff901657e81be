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


def test_the_tables_of_the_pages_are_those_of_the_stored_counts(monkeypatch, tmp_path) -> None:
    copies = [Path(shutil.copy(page, tmp_path / page.name)) for page in edition.PAGES]
    monkeypatch.setattr(edition, "PAGES", copies)
    edition.publish(edition.tables() | real_models.tables() | headlines.page_tables())
    for page, copy in zip((edition.ROOT / "docs", edition.ROOT / "results"), copies):
        assert copy.read_text("utf-8") == (page / copy.name).read_text("utf-8")


@pytest.mark.parametrize("name", ["smollm2", "gemma"])
def test_the_rows_of_a_real_model_are_those_of_its_run(name: str, tmp_path: Path) -> None:
    archive.unpack(edition.THIRD / f"{name}.tar.xz", tmp_path)
    rows = [[str(value) for value in row] for row in real_models.run_rows(name, tmp_path / name)]
    assert rows == [
        list(row.values()) for row in edition.read("real-models.csv") if row["run"] == name
    ]


@pytest.mark.parametrize("name", edition.SHOWN)
def test_the_counts_are_those_of_the_stored_run(name: str, tmp_path: Path) -> None:
    run = edition.unpack_run(name, tmp_path)
    assert not run.missing
    for kind, rows in (("methods", edition.setting_rows), ("power", edition.power_rows)):
        found = [[str(value) for value in row] for row in rows(run)]
        assert found == [list(row.values()) for row in edition.read(f"{name}-{kind}.csv")]
    study = read_paper(run)
    assert study is not None
    ours, column = headlines.ours(study), edition.SHOWN[name]
    stored = {row["key"]: row[column] for row in edition.read("figures.csv")}
    assert stored == {key: ours.get(key) or "" for key in stored}


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
