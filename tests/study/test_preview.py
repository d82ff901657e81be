"""What a plan says of itself beforehand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palimpsest.cli import app
from palimpsest.config.plan import Engine, MethodGrid, Plan
from palimpsest.config.presets import preset
from palimpsest.engine.cost import duration
from palimpsest.engine.preview import preview
from palimpsest.errors import MethodError
from palimpsest.models.families import PAPER


@pytest.fixture(autouse=True)
def nothing_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palimpsest.engine.preview._cached", lambda name: False)


def test_the_paper_says_what_it_downloads_and_needs() -> None:
    said = preview(preset("paper"))
    assert (said.cells, said.candidates) == (45, 820)
    # Half precision for most, single precision for GPT-2: 2 to 4 bytes a parameter.
    whole = sum(checkpoint.parameters for checkpoint in PAPER)
    assert 2 * whole < said.download < 4 * whole
    for row, checkpoint in zip(said.rows, PAPER, strict=True):
        assert row.memory is not None and row.seconds is not None
        # Weights, gradients and two moments of the student at the very least.
        assert row.memory > 8 * checkpoint.parameters
        assert 10 < row.seconds < 3600
    text = "\n".join(said.lines())
    assert "Qwen/Qwen2.5-0.5B: from the Hugging Face hub, download 1.0 GB" in text
    assert "wikitext-2.txt does not exist yet" in text


def test_a_cached_checkpoint_is_not_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palimpsest.engine.preview._cached", lambda name: "Qwen" in name)
    said = preview(preset("paper"))
    assert [row.download > 0 for row in said.rows] == [False, False, *[True] * 7]
    assert "in the Hugging Face cache" in said.lines()[1]


def test_cells_grow_with_the_panel_and_shrink_with_checkpointing() -> None:
    plan = preset("paper")
    small = replace(plan, panel=replace(plan.panel, enabled=False))
    frugal = replace(small, engine=replace(plan.engine, checkpointing=True, accumulate=4))
    assert preview(frugal).memory < preview(small).memory < preview(plan).memory
    assert preview(small).seconds() < preview(plan).seconds()
    assert preview(plan).seconds(4) == pytest.approx(preview(plan).seconds() / 4)
    # More workers than models that are trained from base are no faster.
    useful = sum(row.cells * row.trained for row in preview(plan).rows)
    assert useful == 45 * (2 + plan.replication.draws)
    many = preview(plan).seconds(useful)
    assert many == preview(plan).seconds(10 * useful) < preview(plan).seconds(useful // 2)


def test_a_local_folder_is_read_from_its_config(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 1000, "dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt_neox", **sizes}))
    (tmp_path / "model.safetensors").write_bytes(bytes(4_000_000))
    plan = Plan(models=("mine",), methods=preset("paper").methods, engine=Engine())
    said = preview(replace(plan, local_models=(("mine", str(tmp_path)),)))
    row = said.rows[0]
    assert (row.download, row.candidates) == (0, 16)
    assert row.memory is not None
    assert 4_000_000 * 9 < row.memory < 1e9
    unknown = preview(replace(plan, models=("somebody/model",)))
    assert unknown.rows[0].memory is None
    assert unknown.notes[-1] == "sizes not known beforehand: somebody/model"


@pytest.mark.parametrize("name", ["no_such_method", "no.such.module:Class"])
def test_a_method_the_run_would_refuse_is_refused(name: str) -> None:
    with pytest.raises(MethodError, match=name):
        preview(Plan(models=("pocket/qwen2-s",), methods=(MethodGrid(name),)))
    for flag in ("--preview", "--dry-run"):
        done = CliRunner().invoke(app, ["study", "pocket-small", flag, "--method", name])
        assert isinstance(done.exception, MethodError)


def test_a_plan_without_methods_says_that_it_makes_no_candidates() -> None:
    said = preview(Plan(models=("pocket/qwen2-s",)))
    assert said.candidates == 0 and "no methods: this plan makes no candidates" in said.notes[0]
    assert not any("no methods" in note for note in preview(preset("pocket-small")).notes)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "1 s"), (60, "60 s"), (600, "10 min"), (7200, "2.0 h"), (200_000, "2.3 days")],
)
def test_durations_are_said_as_people_say_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said
