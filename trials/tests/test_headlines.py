"""Every figure that the paper states is computed from a study, and stands beside the paper's."""

import shutil
from pathlib import Path

import pytest
from tests.made_runs import cell_run, paper_run, read_study

from palimpsest.errors import InputError
from palimpsest_trials import archive, edition, headlines


def test_every_figure_of_the_paper_is_computed_from_a_study(tmp_path):
    study = read_study(paper_run(tmp_path / "run"))
    elsewhere = {"headroom-spearman", "headroom-error", "tofu-excluded", "tofu-diagnostic"}
    ours = headlines.ours(study)
    assert {row["key"] for row in headlines.paper_figures()} - set(ours) == elsewhere
    assert ours["screen-excluded"] == "12/56" and ours["panel-injected"] == "6/6"
    assert ours["certified"] == "20/56" and ours["with-veto"] == "8/56 in 4 cells"
    # The injected model lies 2 nats below base, the adequate candidates 1.5.
    assert ours["trained-probe-mean"] == "-1.500 [-1.500, -1.500]; -75% [-75%, -75%]"
    assert ours["trained-probe-mean-reference"].startswith("-1.600 ")
    # 29 % of 56 are 16: the twelve adequate ones, and four task vectors at +0.3.
    assert ours["trained-probe-mean-nearest"].startswith("-1.050 ")
    assert ours["trained-probe-best"] == "1.600 [1.600, 1.600]; 80% [80%, 80%]"
    assert ours["delta-range"] == "0.800 to 1.200; 40% to 60%"
    assert ours["selection-recalibrated"].startswith("0.050 [0.050, 0.050]; 2% ")


@pytest.fixture
def page(tmp_path, monkeypatch) -> Path:
    """A page and a folder of stored counts of their own."""
    copies = [Path(shutil.copy(page, tmp_path / page.name)) for page in edition.PAGES]
    for module in (edition, headlines):
        monkeypatch.setattr(module, "COUNTED", tmp_path)
    monkeypatch.setattr(edition, "PAGES", copies)
    # ``read`` has its folder as a default.
    monkeypatch.setattr(headlines, "read", lambda name: edition.read(name, tmp_path))
    return copies[1]


def test_a_run_becomes_a_column_and_a_name_alone_keeps_one(page, tmp_path):
    run = paper_run(tmp_path / "run")
    archive.pack(run, tmp_path / "run.tar.xz")
    lone = cell_run(tmp_path / "lone")
    headlines.main([f"folder={run}", f"archive={tmp_path / 'run.tar.xz'}", f"lone={lone}"])
    (row,) = [row for row in edition.read("figures.csv", tmp_path) if row["key"] == "design"]
    assert row["folder"] == row["archive"] == "6, 56, one fixed AdamW"
    assert row["lone"].startswith("1, ")
    headlines.main([f"new={lone}", "folder"])
    (row,) = [row for row in edition.read("figures.csv", tmp_path) if row["key"] == "design"]
    assert list(row) == ["key", "new", "folder"] and row["folder"] == "6, 56, one fixed AdamW"
    assert "| figure | paper | new | folder |" in page.read_text()
    for wrong in ("archive", f"x={tmp_path / 'none'}"):
        with pytest.raises(InputError):
            headlines.main([wrong])
