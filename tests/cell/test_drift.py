"""A run is resumed only under the terms it was made under; a loss that is NaN costs its model.

What is changed here is the thing itself (a checkpoint's bytes, a text, a rule), not its digest.
"""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cell.small import METHODS, bare_plan, cell_work, finish, only_cell, small_plan

from palimpsest.cell.launch import RunOptions, launch
from palimpsest.cell.study import StudyTask
from palimpsest.config.load import changed
from palimpsest.config.plan import Plan
from palimpsest.config.sections import MethodGrid, Unlearning
from palimpsest.errors import DriftError, StudyFailed, TrainingDiverged
from palimpsest.models import sources
from palimpsest.report.documents import run_document
from palimpsest.report.results import read_run
from palimpsest.report.terminal import study_lines
from palimpsest.run.store import Run


@pytest.fixture
def folder(tiny_checkpoint, tmp_path):
    return Path(shutil.copytree(tiny_checkpoint("qwen2-s"), tmp_path / "checkpoint"))


def create(plan: Plan, out: Path) -> Run:
    """Fix the terms of a study in its folder, and do nothing yet."""
    return Run.create_or_resume(out, *StudyTask(plan).fixed)


def flip(path: Path) -> None:
    """Change the last bit of a file, of safetensors one weight; JSON stays JSON."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(path.read_bytes() + b" " if path.suffix == ".json" else data)


def refused(plan: Plan, out: Path) -> tuple[str, ...]:
    """The keys that a run was refused for."""
    with pytest.raises(DriftError) as refusal:
        create(plan, out)
    return refusal.value.keys


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_changed_checkpoint_is_refused(folder, tmp_path, file):
    plan = small_plan(folder)
    create(plan, tmp_path / "run")
    create(plan, tmp_path / "run")
    flip(folder / file)
    assert refused(plan, tmp_path / "run") == (f"inputs.{folder}",)


def test_a_pocket_model_that_changed_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "pocket_folder", lambda asked: folder)
    create(small_plan("pocket/qwen2-s"), tmp_path / "run")
    flip(folder / "model.safetensors")
    assert refused(small_plan("pocket/qwen2-s"), tmp_path / "run") == ("inputs.pocket/qwen2-s",)


def test_another_commit_of_a_hub_model_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "snapshot", lambda *asked, **more: (folder, "1111"))
    create(small_plan("org/model"), tmp_path / "run")
    monkeypatch.setattr(sources, "snapshot", lambda *asked, **more: (folder, "2222"))
    assert refused(small_plan("org/model"), tmp_path / "run") == ("inputs.org/model",)


def test_a_model_changed_while_the_run_goes_on_is_not_loaded(folder):
    work = cell_work(small_plan(folder))
    flip(folder / "model.safetensors")
    with pytest.raises(DriftError):
        _ = work.loaded


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("injection", "steps", 5), ("facts", "retain", 3), ("rules", "alpha", 0.1)],
)
def test_a_changed_plan_or_rule_is_refused(tmp_path, section, key, value):
    create(small_plan(), tmp_path / "run")
    keys = refused(changed(small_plan(), {section: {key: value}}), tmp_path / "run")
    assert {f"{section}.{key}", f"config.{section}.{key}"} & set(keys)


def test_a_changed_general_text_is_refused(tmp_path):
    text = tmp_path / "prose.txt"
    text.write_text("The river was calm that year and the mill stood still. " * 200)
    plan = changed(small_plan(), {"general": {"source": str(text)}})
    create(plan, tmp_path / "run")
    flip(text)
    assert refused(plan, tmp_path / "run") == ("inputs.general text",)


def test_other_code_is_refused(tmp_path, monkeypatch):
    code = dict(create(small_plan(), tmp_path / "run").terms.code)
    monkeypatch.setattr("palimpsest.run.store.code_version", lambda: code | {"version": "9.9"})
    assert refused(small_plan(), tmp_path / "run") == ("code.version",)


def finite(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return all(map(finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def test_a_candidate_that_diverges_is_failed_with_its_step_and_no_other(tmp_path):
    budget = Unlearning(3, 1.5e-4, 1e38, forget_items=2, retain_items=2)
    plan = bare_plan(methods=(MethodGrid("ga"), METHODS[0]), unlearning=budget)
    run, _ = finish(plan, tmp_path / "run")
    results = read_run(run.path)
    cell = results.cells[0]
    [(name, reason)] = cell.failed.items()
    failure = cell.models[name].failure
    assert failure is not None and failure.kind == "diverged"
    assert name.startswith("ga") and "step" in reason
    assert {"kl_reversion-w3", "kl_reversion-w12"} <= set(cell.candidates)
    items = only_cell(run).table("items")
    assert name not in items["model"] and np.isfinite(items["nll_sum"]).all()
    assert cell.verdict is not None
    shown = run_document(results)
    assert finite(shown)
    json.dumps(shown, allow_nan=False)
    assert "nan" not in " ".join(study_lines(results)).lower().split()


def test_an_injection_that_diverges_fails_its_cell_with_the_step(tmp_path):
    plan = changed(bare_plan(), {"injection": {"learning_rate": 1e30}})
    with pytest.raises((StudyFailed, TrainingDiverged), match=r"step \d"):
        launch(StudyTask(plan, tmp_path / "run"), RunOptions())
    cell = only_cell(Run.open(tmp_path / "run"))
    failure = cell.failure()
    assert failure is not None and (failure.kind, failure.step) == ("diverged", "train-injected")
    assert cell.step_names() == () and not read_run(tmp_path / "run").cells
