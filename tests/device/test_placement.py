"""Every command keeps its tensors on one device, in float32 and bfloat16, in all five families."""

import json
from typing import Any

import numpy as np
import pytest
import torch

import palimpsest
from palimpsest.cell.launch import RunOptions, launch
from palimpsest.cell.study import StudyTask
from palimpsest.config.sections import Engine
from palimpsest.methods import BUILT_IN
from palimpsest.run.store import Run
from palimpsest.stats.models import models_from_json
from tests.audit.audit_models import write_facts
from tests.device.pretend import DEVICE, Mixed
from tests.device.small import AUDITS, CELLS, audit_files, device_plan


def test_the_device_refuses_to_mix(far):
    here, there = torch.ones(2), torch.ones(2, device=far)
    assert there.device == DEVICE
    with pytest.raises(Mixed):
        there + here
    with pytest.raises(Mixed):
        here[there.long()]
    with pytest.raises(Mixed):
        torch.cat([there, here])
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    assert (there.cpu() + here).tolist() == [2.0, 2.0]
    assert (there * torch.tensor(3.0)).cpu().tolist() == [3.0, 3.0]


def failures(run: Run) -> dict[str, str]:
    """Return the models of a run's only cell that failed, with the reason."""
    models = models_from_json(run.cell(run.cells[0]).summary()["models"])
    reasons = {name: model.failure for name, model in models.items() if model.failure}
    return {name: f"{f.kind}: {f.reason}" for name, f in reasons.items()}


@pytest.mark.parametrize(("family", "dtype"), CELLS)
def test_a_whole_cell(tiny_checkpoint, far, tmp_path, family, dtype):
    every = family == "qwen2-s" and dtype == "bfloat16"
    methods = tuple(BUILT_IN) if every else ("npo", "rmu", "gate_mask")
    engine = Engine(device=far, dtype=dtype, stack=1)  # type: ignore[arg-type]
    run = launch(
        StudyTask(device_plan(tiny_checkpoint(family), engine, methods), tmp_path / "run"),
        RunOptions(),
    )
    reasons = failures(run)
    assert all(reason.startswith("not_applicable") for reason in reasons.values()), reasons
    assert np.isfinite(run.cell(run.cells[0]).table("items")["nll_sum"]).all()


def test_a_cell_of_stacks_gives_the_scores_of_the_cpu(tiny_checkpoint, far, tmp_path):
    scores = []
    for device in (far, "cpu"):
        plan = device_plan(tiny_checkpoint("qwen2-s"), Engine(device=device), ("npo", "gate_mask"))
        run = launch(StudyTask(plan, tmp_path / device.replace(":", "-")), RunOptions())
        scores.append(run.cell(run.cells[0]).table("items")["nll_sum"])
    assert np.allclose(*scores, rtol=1e-3)


@pytest.mark.parametrize(("family", "dtype"), AUDITS)
def test_an_audit_with_references_and_mixtures(tiny_checkpoint, far, tmp_path, family, dtype):
    values = audit_files(tiny_checkpoint(family), tmp_path)
    engine = {"device": far, "dtype": dtype}
    answer = palimpsest.audit(**values, out=tmp_path / "run", engine=engine)
    assert answer.run is not None and answer.results is not None
    roles = {model.role for model in answer.results.cells[0].models.values()}
    assert roles >= {"control", "reference"} and not failures(Run.open(answer.run))


@pytest.mark.parametrize(("family", "dtype"), AUDITS)
def test_retrain_and_unlearn(tiny_checkpoint, far, tmp_path, family, dtype):
    facts = write_facts(tmp_path / "facts")
    lora = 2 if dtype == "bfloat16" else 0
    recipe: dict[str, Any] = {
        "base": str(tiny_checkpoint(family)),
        "retain": facts["retain"],
        "forget": facts["forget"],
        "general": "pocket",
        "steps": 6,
        "learning_rate": 5e-3,
        "fact_items": 2,
        "general_items": 1,
        "engine": {"accumulate": 2, "device": far, "dtype": dtype, "lora": lora},
    }
    refs = tmp_path / "refs"
    made = palimpsest.retrain(draws=1, with_forget=True, out=str(refs), **recipe)
    assert len(made.folders) == 2
    given = {"injected": str(refs / "injected"), "method": "replay"}
    (folder,) = palimpsest.unlearn(**given, out=str(tmp_path / "out"), **recipe).folders
    record = json.loads((folder / "palimpsest.json").read_text())
    assert (record["engine"]["lora"], record["engine"]["device"]) == (lora, far)
