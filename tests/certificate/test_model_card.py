"""A certificate as a model card that the hub's own library reads."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from palimpsest.certificate.archive import unpack
from palimpsest.certificate.bundle import verdict_of
from palimpsest.certificate.model_card import model_card
from palimpsest.cli import app
from palimpsest.errors import InputError
from palimpsest.run.store import digest


def test_the_card_says_what_the_verdict_says(bundle: Path) -> None:
    card = model_card(bundle)
    members = unpack(bundle.read_bytes())
    (cell,) = {name.split("/")[1] for name in members if name.startswith("cells/")}
    verdict = verdict_of(members, cell)
    assert verdict is not None and verdict.paragraph() in card
    assert digest(bundle.read_bytes()) in card and f"palimpsest verify {bundle.name}" in card
    (entry,) = yaml.safe_load(card.split("---")[1])["model-index"]
    assert entry["name"] == (verdict.candidate or verdict.nearest)
    values = {metric["type"]: metric["value"] for metric in entry["results"][0]["metrics"]}
    compared = verdict.finding(entry["name"]).comparison
    assert compared is not None
    assert values["certified"] is verdict.certified and values["p_value"] == compared.p


def test_the_hub_reads_it(bundle: Path, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    (tmp_path / "README.md").write_text(model_card(bundle), encoding="utf-8")
    data = hub.ModelCard.load(tmp_path / "README.md").data
    assert data.model_name and {result.task_type for result in data.eval_results} == {
        "text-generation"
    }


def test_certify_writes_it(run_folder: Path, tmp_path: Path) -> None:
    line = ["certify", str(run_folder), "--out", str(tmp_path / "b.zip")]
    done = CliRunner().invoke(app, [*line, "--model-card", str(tmp_path / "card.md")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "card.md").read_text() == model_card(tmp_path / "b.zip")


def test_an_unknown_cell_is_refused(bundle: Path) -> None:
    with pytest.raises(InputError, match="has no cell 'x'"):
        model_card(bundle, "x")
