"""A method added to a finished run: old rows stay, only what is new is made, the run says so."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from safetensors.torch import load_file
from tests.study.test_cell import finished, small_plan

from palimpsest.certificate import certify, verify
from palimpsest.config.plan import MethodGrid, Plan
from palimpsest.engine.added import start_added
from palimpsest.engine.matrix import start
from palimpsest.errors import DriftError, InputError
from palimpsest.models.load import state_digest
from palimpsest.run.executor import InlineExecutor
from palimpsest.run.store import Run


def little_plan(folder: Path, **engine: bool) -> Plan:
    plan = small_plan(folder)
    return replace(
        plan,
        methods=plan.methods[2:3],
        replication=replace(plan.replication, retrainings=0),
        engine=replace(plan.engine, **engine),
    )


def rows(run: Run) -> dict[str, list[tuple]]:
    """The rows of items.parquet by model."""
    table = parquet.read_table(run.path / "cells" / run.cells[0] / "items.parquet").to_pylist()
    models: dict[str, list[tuple]] = {}
    for row in table:
        models.setdefault(row["model"], []).append(tuple(map(repr, row.values())))
    return models


def added(old: Run, names: list[str]) -> tuple[Run, list[str]]:
    run, job = start_added(old, names)
    outcome = InlineExecutor().execute(job, run.path, run.cells)
    assert not outcome.failed, outcome.failed
    return run, [step["step"] for step in run.cell(run.cells[0]).summary()["steps"]]


def test_only_what_is_new_is_trained_where_models_were_kept(tiny_checkpoint, tmp_path) -> None:
    plan = little_plan(tiny_checkpoint("qwen2-s"), keep_models=True, keep_candidates=True)
    old = finished(plan, tmp_path / "run")
    before = {
        p: p.read_bytes() for p in old.path.rglob("*") if p.is_file() and "lock" not in p.name
    }
    run, steps = added(old, ["npo"])
    assert run.path == tmp_path / "run-with-npo"
    assert steps == ["added-00-npo", "carried"]
    assert run.fork_of is not None and run.fork_of["added"] == ["npo"]
    assert {p: p.read_bytes() for p in before} == before
    was, now = rows(old), rows(run)
    assert {name: now[name] for name in was} == was
    assert set(now) - set(was) == {"npo-w12"}
    bundle = certify(run.path)
    result = verify(bundle)
    assert result.ok, result.lines()
    assert any("fork of 'run'" in line or "fork of run" in line for line in result.lines())
    cell = old.path / "cells" / old.cells[0]
    models = old.cell(old.cells[0]).summary()["models"]
    for name in ("task_vector-c0.5", "task_vector-c1"):
        weights = load_file(cell / "models" / f"{name}.safetensors")
        assert state_digest(weights) == models[name]["digest"] and "weights" not in models[name]


def test_without_kept_models_the_needed_ones_come_out_as_recorded(
    tiny_checkpoint, tmp_path
) -> None:
    old = finished(little_plan(tiny_checkpoint("qwen2-s")), tmp_path / "run")
    run, steps = added(old, ["facts_vector"])
    assert steps == [
        "train-injected",
        "train-reference",
        "train-forget_only",
        "train-general_only",
        "score-general_only",
        "added-00-facts-vector",
        "carried",
    ]
    was, now = rows(old), rows(run)
    assert {name: now[name] for name in was} == was
    assert set(now) - set(was) == {"general_only", "facts_vector-c1"}
    whole = replace(
        little_plan(tiny_checkpoint("qwen2-s")),
        methods=(*little_plan(tiny_checkpoint("qwen2-s")).methods, MethodGrid("facts_vector")),
    )
    fresh = rows(finished(whole, tmp_path / "fresh"))
    assert fresh["facts_vector-c1"] == now["facts_vector-c1"]


def test_an_unfinished_run_and_other_code_are_refused(
    tiny_checkpoint, tmp_path, monkeypatch
) -> None:
    plan = little_plan(tiny_checkpoint("qwen2-s"))
    run = start(plan, tmp_path / "run")
    with pytest.raises(InputError, match="is not finished; finish the run first"):
        start_added(run, ["npo"])
    monkeypatch.setattr("palimpsest.run.cell.Cell.finished", lambda self: True)
    run.environment["packages"] = run.environment["packages"] | {"torch": "0.1"}
    with pytest.raises(DriftError, match="packages differ from those"):
        start_added(run, ["npo"])
