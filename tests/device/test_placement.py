"""Every command keeps its tensors on one device, in float32 and bfloat16, in all five families."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palimpsest.config.plan import Engine
from palimpsest.engine.audit_request import make_request
from palimpsest.engine.audit_run import run_audit
from palimpsest.methods import BUILT_IN
from palimpsest.run.store import Run
from tests.device.pretend import DEVICE, Mixed
from tests.device.small import AUDITS, CELLS, audit_files, run_study, small_plan


def test_the_device_refuses_to_mix(far: str) -> None:
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


@pytest.mark.parametrize(("family", "dtype"), CELLS)
def test_a_whole_cell(
    tiny_checkpoint: Any, far: str, tmp_path: Path, family: str, dtype: str
) -> None:
    every = family == "qwen2-s" and dtype == "bfloat16"
    methods = tuple(BUILT_IN) if every else ("npo", "rmu", "gate_mask")
    engine = Engine(device=far, dtype=dtype, stack=1)  # type: ignore[arg-type]
    plan = small_plan(tiny_checkpoint(family), engine, methods)
    run, outcome = run_study(plan, tmp_path / "run")
    assert not outcome.failed, outcome.failed
    cell = run.cell(run.cells[0])
    failures = {n: m["failure"] for n, m in cell.summary()["models"].items() if "failure" in m}
    assert {failure["kind"] for failure in failures.values()} <= {"not_applicable"}, failures
    assert np.isfinite(cell.table("items")["nll_sum"]).all()


def test_a_cell_of_stacks_gives_the_scores_of_the_cpu(
    tiny_checkpoint: Any, far: str, tmp_path: Path
) -> None:
    scores = []
    for device in (far, "cpu"):
        plan = small_plan(tiny_checkpoint("qwen2-s"), Engine(device=device), ("npo", "gate_mask"))
        run, outcome = run_study(plan, tmp_path / device.replace(":", "-"))
        assert not outcome.failed, outcome.failed
        scores.append(run.cell(run.cells[0]).table("items")["nll_sum"])
    assert np.allclose(*scores, rtol=1e-3)


@pytest.mark.parametrize(("family", "dtype"), AUDITS)
def test_an_audit_with_references_and_interpolations(
    tiny_checkpoint: Any, far: str, tmp_path: Path, family: str, dtype: str
) -> None:
    values = audit_files(tiny_checkpoint(family), tmp_path)
    values |= {"out": str(tmp_path / "run"), "device": far, "dtype": dtype}
    run = run_audit(make_request(values), executor="inline").run
    assert run is not None
    summary = Run.open(run).cell("audit").summary()
    assert {role["role"] for role in summary["models"].values()} >= {"control", "reference"}
    assert not [name for name, role in summary["models"].items() if "failure" in role]


@pytest.mark.parametrize(("family", "dtype"), AUDITS)
def test_retrain_and_unlearn(
    tiny_checkpoint: Any, far: str, tmp_path: Path, family: str, dtype: str
) -> None:
    from audit_models import write_facts

    from palimpsest.engine.unlearn_request import Retrain, Unlearn
    from palimpsest.engine.unlearn_run import make

    facts = write_facts(tmp_path / "facts")
    base = str(tiny_checkpoint(family))
    lora = 2 if dtype == "bfloat16" else 0
    recipe: dict[str, Any] = {
        "base": base,
        "forget": facts["forget"],
        "retain": facts["retain"],
        "general": "pocket",
        "steps": 2,
        "fact_items": 2,
        "general_items": 1,
        "accumulate": 2,
        "device": far,
        "dtype": dtype,
        "lora": lora,
    }
    refs = tmp_path / "refs"
    assert len(make(Retrain(draws=1, out=str(refs), **recipe)).folders) == 2
    asked = Unlearn(
        injected=str(refs / "injected"), method="replay", out=str(tmp_path / "out"), **recipe
    )
    (folder,) = make(asked).folders
    record = json.loads((folder / "palimpsest.json").read_text())
    assert (record["engine"]["lora"], record["engine"]["device"]) == (lora, far)
