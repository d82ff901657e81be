"""A loss that turns NaN costs the candidate it belongs to, with the step, and never a verdict."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.study.test_cell import small_plan

from palimpsest.config.plan import MethodGrid, Plan
from palimpsest.engine.matrix import run_cell, start
from palimpsest.errors import StudyFailed
from palimpsest.report.results import read_run
from palimpsest.report.terminal import summary_json, summary_lines


def plan_of(checkpoint: Path, rate: float) -> Plan:
    """Gradient ascent at a rate that no weights survive, beside candidates that do."""
    plan = small_plan(checkpoint)
    return replace(
        plan,
        unlearning=replace(plan.unlearning, steps=3, ascent_learning_rate=rate),
        methods=(MethodGrid("ga"), *plan.methods),
        replication=replace(plan.replication, draws=1),
    )


def finite(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return all(map(finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


@pytest.mark.parametrize("rate", [1e20, 1e38])
def test_a_candidate_that_diverges_is_failed_with_its_step_and_no_other(
    tiny_checkpoint: Any, tmp_path: Path, rate: float
) -> None:
    run = start(plan_of(tiny_checkpoint("qwen2-s"), rate), tmp_path / "run")
    run_cell(run.path, run.cells[0])
    results = read_run(run.path)
    cell = results.cells[0]
    [(name, reason)] = cell.failed.items()
    failure = run.cell(cell.id).summary()["models"][name]["failure"]
    assert failure == {"kind": "diverged", "reason": reason}
    assert name.startswith("ga") and "diverged at step" in reason
    assert {"kl_reversion-w3", "kl_reversion-w12"} <= set(cell.candidates)
    items = run.cell(run.cells[0]).table("items")
    assert name not in items["model"] and np.isfinite(items["nll_sum"]).all()
    assert cell.verdict is not None
    shown = summary_json(run.path)
    assert finite(shown)
    json.dumps(shown, allow_nan=False)
    assert "nan" not in " ".join(summary_lines(run.path)).lower().split()


def test_an_injection_that_diverges_fails_its_cell_with_the_step(
    tiny_checkpoint: Any, tmp_path: Path
) -> None:
    plan = small_plan(tiny_checkpoint("qwen2-s"))
    plan = replace(plan, injection=replace(plan.injection, learning_rate=1e30))
    run = start(plan, tmp_path / "run")
    with pytest.raises(StudyFailed, match=r"diverged at step \d: injected of cell"):
        run_cell(run.path, run.cells[0])
    failure = run.cell(run.cells[0]).failure()
    assert failure is not None and (failure.kind, failure.step) == ("diverged", "train-injected")
    assert run.cell(run.cells[0]).steps() == ()
    assert not read_run(run.path).cells
