"""A cell goes from plan to stored scores, resumes where it was stopped, and gives equal bytes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from palimpsest.engine.matrix import StudyJob, draws, run_cell, start
from safetensors.torch import load_file

from palimpsest.adversaries.wrappers import Interpolated
from palimpsest.config.plan import Counts, MethodGrid, Plan
from palimpsest.config.presets import preset
from palimpsest.engine.work import StudyWork
from palimpsest.errors import SealError
from palimpsest.facts.nonce import RELATIONS
from palimpsest.facts.sealed import read_pool
from palimpsest.models.load import state_digest
from palimpsest.report.results import read_run
from palimpsest.run.executor import Event, executor
from palimpsest.run.store import Run


class Stop(Exception):
    """Raised between two steps, as a power cut would stop the work."""


def small_plan(folder: Path) -> Plan:
    plan = preset("demo")
    return replace(
        plan,
        models=(str(folder),),
        facts=Counts(forget=2, retain=2, probes=3, phrasings=2),
        injection=replace(plan.injection, steps=4, fact_items=2, general_items=2),
        unlearning=replace(plan.unlearning, steps=2, forget_items=2, retain_items=2),
        round_trip=replace(plan.round_trip, steps=2, chunks=2, items=2),
        general=replace(plan.general, train_pieces=8, scored_pieces=2, piece_tokens=12),
        methods=(
            MethodGrid("kl_reversion", (("weight", (3.0, 12.0)),)),
            MethodGrid("gate_mask", (("weight", (3.0,)),)),
            MethodGrid("task_vector", (("coefficient", (0.5, 1.0)),)),
            MethodGrid("replay", (("share", (0.5,)),)),
        ),
        replication=replace(plan.replication, draws=3, retrainings=1),
    )


def finished(plan: Plan, out: Path, name: str = "inline", workers: int = 1) -> Run:
    run = start(plan, out)
    job = StudyJob(run.path)
    outcome = executor(name).execute(job, out, run.cells, workers=workers)
    assert not outcome.failed, outcome.failed
    return run


def artifacts(run: Run) -> dict[str, bytes]:
    folder = run.path / "cells" / run.cells[0]
    names = ("cell.json", "items.parquet", "curves.parquet")
    return {name: (folder / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def gated(tiny_checkpoint, tmp_path_factory):  # type: ignore[no-untyped-def]
    plan = small_plan(tiny_checkpoint("qwen2-s"))
    plan = replace(plan, engine=replace(plan.engine, keep_models=True))
    return plan, finished(plan, tmp_path_factory.mktemp("gated") / "run")


@pytest.fixture(scope="module")
def roles(gated) -> dict[str, dict[str, Any]]:  # type: ignore[no-untyped-def]
    _, run = gated
    models: dict[str, dict[str, Any]] = run.cell(run.cells[0]).summary()["models"]
    return models


def test_two_workers_give_the_bytes_of_one_process(gated, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    plan, first = gated
    assert artifacts(finished(plan, tmp_path / "run", "local", 2)) == artifacts(first)


@pytest.fixture(scope="module")
def alone(gated, tmp_path_factory):  # type: ignore[no-untyped-def]
    """A smaller cell in which one student takes all weights, one after the other."""
    plan, _ = gated
    plan = replace(plan, engine=replace(plan.engine, stack=1), methods=plan.methods[:1])
    plan = replace(plan, replication=replace(plan.replication, draws=2, retrainings=0))
    return plan, finished(plan, tmp_path_factory.mktemp("alone") / "run")


@pytest.mark.slow
def test_two_workers_give_the_bytes_of_one_where_one_student_takes_all_weights(  # type: ignore[no-untyped-def]
    alone, tmp_path: Path
) -> None:
    plan, one = alone
    assert artifacts(one) == artifacts(finished(plan, tmp_path / "run", "local", 2))


def test_a_cell_stopped_after_any_step_ends_with_the_same_bytes(gated, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    plan, whole = gated
    out = tmp_path / "stopped"
    run = start(plan, out)
    begun: list[str] = []
    for _ in range(30):
        seen: list[str] = []

        def after_one_step(event: Event, seen: list[str] = seen, done: int = len(begun)) -> None:
            if event.kind == "step":
                if seen:
                    raise Stop
                assert event.done == done  # what was done before is counted
                seen.append(event.step)

        try:
            run_cell(out, run.cells[0], on_event=after_one_step)
        except Stop:
            begun += seen
            continue
        break
    steps = [step.name for step in StudyJob(out).cell(run.cells[0]).steps]
    assert begun == steps  # in plan order, and no step was begun twice
    assert artifacts(run) == artifacts(whole)


def test_a_steps_result_does_not_depend_on_what_its_worker_did_before(
    gated, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    plan, whole = gated
    run = start(plan, tmp_path / "run")
    cell = run.cell(run.cells[0])
    steps = StudyJob(run.path).cell(cell.id).steps
    trained = [step.name for step in steps if not step.needs]
    for name in (*trained, "panel", "controls", "candidates-00-kl-reversion", "score-known"):
        StudyJob(run.path).cell(cell.id).do(name, cell)  # a worker without anything in its caches
    expected = whole.cell(cell.id).table("items")
    for name in ("panel", "controls", "candidates-00-kl-reversion", "score-known"):
        table = cell.get(name)[0]["items"]
        for model in set(table["model"]):
            rows, same = table["model"] == model, expected["model"] == model
            same &= np.isin(expected["pool"], table["pool"][rows])
            stored = np.sort(table["nll_sum"][rows])
            assert np.isin(stored, expected["nll_sum"][same]).all(), model


def test_steps_are_known_without_a_model_and_references_train_side_by_side() -> None:
    plan = replace(preset("demo"), models=("somewhere/else",))
    steps = StudyWork(plan.cells()[0], draws=19, retrainings=2).steps
    names = [step.name for step in steps]
    assert names[:3] == ["train-injected", "train-reference", "train-forget_only"]
    assert names[3] == "train-general_only"  # because replay of the demo's pool uses it
    assert sum(not step.needs for step in steps) == 1 + 19 + 2 + 2
    paper = replace(plan, methods=plan.methods[:5])
    assert "train-general_only" not in {step.name for step in StudyWork(paper.cells()[0]).steps}
    assert {step.name: step.needs for step in steps}["score-references-01"] == (
        "train-injected",
        "train-reference",
        *(f"train-reference-{n}" for n in range(4, 8)),
    )
    groups = [name for name in names if name.startswith("score-references")]
    assert len(groups) == 5 and "score-retrainings-00" in names
    assert "candidates-00-kl-reversion" in names
    assert names[-1] == "panel"


def test_every_model_has_its_role(roles: dict[str, dict[str, Any]]) -> None:
    by_role: dict[str, list[str]] = {}
    for name, role in roles.items():
        by_role.setdefault(role["role"], []).append(name)
        assert role["digest"].startswith("sha256:")
    assert {role: len(names) for role, names in by_role.items()} == {
        "base": 1,
        "injected": 1,
        "reference": 3,
        "forget_only": 1,
        "general_only": 1,
        "retraining": 1,
        "control": 4,
        "challenge": 6,
        "candidate": 6,
    }
    assert roles["reference"]["draw"] == 0 and roles["reference-2"]["draw"] == 2
    assert roles["retraining-1"]["draw"] == 1
    replayed = roles["replay-facts_vector-c1-s0.5"]
    assert replayed["cost"]["steps"] == 4 + 4 + 2 and replayed["kind"] == "restores"
    assert replayed["cost"]["retrainings"] > replayed["cost"]["shared_retrainings"] > 0
    assert roles["kl_reversion-w3"]["cost"]["steps"] == 2
    assert roles["control-25"] | {"digest": ""} == {
        "role": "control",
        "share": 0.25,
        "of": "reference",
        "digest": "",
    }
    candidate = roles["kl_reversion-w12"]
    assert (candidate["method"], candidate["knobs"]) == ("kl_reversion", {"weight": 12.0})
    assert candidate["kind"] == "restores"
    assert roles["panel:router"]["truth"] == "suppressed" and roles["panel:router"]["knows"]


def test_a_control_is_made_of_the_first_reference_and_the_injected_model(  # type: ignore[no-untyped-def]
    gated, roles: dict[str, dict[str, Any]]
) -> None:
    _, run = gated
    folder = run.path / "cells" / run.cells[0] / "models"
    reference, injected = (
        load_file(folder / f"{name}.safetensors") for name in ("reference", "injected")
    )
    assert state_digest(injected) == roles["injected"]["digest"]
    mixed = {name: torch.lerp(reference[name], injected[name], 0.05) for name in reference}
    made = Interpolated(reference, injected, 0.95)
    assert all(torch.allclose(made[name], mixed[name], atol=1e-6) for name in mixed)
    assert state_digest(made) == roles["control-5"]["digest"]


def test_all_that_a_certificate_needs_goes_through_the_round_trip(gated) -> None:  # type: ignore[no-untyped-def]
    _, run = gated
    cell = run.cell(run.cells[0])
    curves, roles = cell.table("curves"), cell.summary()["models"]
    assert set(curves["model"]) == {*roles} - {"forget_only", "general_only"}
    again = cell.table("items")["stage"] == "reacquired"
    assert set(cell.table("items")["model"][again]) == {*roles} - {"forget_only", "general_only"}


def test_a_retraining_is_no_reference_under_another_name(roles: dict[str, dict[str, Any]]) -> None:
    digests = [
        role["digest"] for role in roles.values() if role["role"] in ("reference", "retraining")
    ]
    assert len(set(digests)) == 4


def test_everything_that_was_planned_is_in_the_table(gated) -> None:  # type: ignore[no-untyped-def]
    _, run = gated
    table = run.cell(run.cells[0]).table("items")
    names = set(table["model"])
    assert {"base", "injected", "reference", "reference-1", "forget_only", "retraining-1"} <= names
    assert {"kl_reversion-w3", "kl_reversion-w12", "gate_mask-w3", "task_vector-c1"} <= names
    assert {
        "panel:suppression",
        "panel:router",
        "panel:embedding",
        "panel:interpolation-50",
    } <= names
    audited = set(table["model"][table["pool"] == "audit"])
    assert not any(name.startswith(("kl_", "gate", "task")) for name in audited)
    assert {"base", "injected", "reference", "panel:router"} <= audited
    assert np.isfinite(table["nll_sum"]).all()


def test_the_router_is_base_on_the_forget_set_and_injected_elsewhere(gated) -> None:  # type: ignore[no-untyped-def]
    _, run = gated
    table = run.cell(run.cells[0]).table("items")

    def sums(model: str, kind: str) -> np.ndarray:  # type: ignore[type-arg]
        chosen = (table["model"] == model) & (table["set"] == kind) & (table["stage"] == "forward")
        return table["nll_sum"][chosen & (table["pool"] == "evaluation")]

    assert np.allclose(sums("panel:router", "forget"), sums("base", "forget"), atol=1e-4)
    assert np.allclose(sums("panel:router", "probe"), sums("injected", "probe"), atol=1e-4)
    assert not np.allclose(sums("panel:router", "forget"), sums("injected", "forget"), atol=1e-3)


def test_one_net_after_another_scores_every_model_as_a_stack_does(gated, alone) -> None:  # type: ignore[no-untyped-def]
    one = read_run(alone[1].path).cells[0].evaluation
    many = read_run(gated[1].path).cells[0].evaluation
    for name in ("base", "injected", "reference", "reference-1"):
        assert one[name].forget_nll == pytest.approx(many[name].forget_nll, abs=2e-3), name
        assert one[name].retain_nll == pytest.approx(many[name].retain_nll, abs=2e-3), name
    assert one["base"].forget_nll != pytest.approx(one["injected"].forget_nll, abs=5e-3)


def test_the_mask_does_not_apply_to_an_ungated_model_and_the_cell_goes_on(  # type: ignore[no-untyped-def]
    tiny_checkpoint, tmp_path: Path
) -> None:
    plan = small_plan(tiny_checkpoint("gpt2-s"))
    plan = replace(plan, methods=plan.methods[:2], panel=replace(plan.panel, enabled=False))
    run = finished(replace(plan, replication=replace(plan.replication, draws=1)), tmp_path / "run")
    cell = read_run(run.path).cells[0]
    failure = run.cell(run.cells[0]).summary()["models"]["gate_mask-w3"]["failure"]
    assert failure["kind"] == "not_applicable"
    assert cell.not_applicable == ("gate_mask-w3",)
    assert "kl_reversion-w3" in cell.candidates
    assert not cell.failed


def test_a_finished_cell_is_not_touched_again(gated) -> None:  # type: ignore[no-untyped-def]
    _, run = gated
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*.parquet")}
    run_cell(run.path, run.cells[0])
    assert before == {path: path.stat().st_mtime_ns for path in run.path.rglob("*.parquet")}


def test_the_sealed_pool_is_scored_once_in_a_run(gated, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    plan, _ = gated
    run = start(plan, tmp_path / "run")
    cell, work = run.cell(run.cells[0]), StudyJob(run.path).cell(run.cells[0])
    for name in ("train-injected", "train-reference", "panel"):
        work.do(name, cell)
    with pytest.raises(SealError, match="already"):
        work.do("panel", cell)


def test_a_sealed_pool_of_ones_own_is_opened(tiny_checkpoint, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rows = [{"relation": name, "template": "Nobody but {subject} ever saw"} for name in RELATIONS]
    lines = [{"nonce": "0123456789abcdef" * 2}]
    lines += [row | {"template": f"{row['template']} the {row['relation']}"} for row in rows]
    pool = tmp_path / "pool.jsonl"
    pool.write_text("".join(json.dumps(line) + "\n" for line in lines))
    commitment = read_pool(pool).commitment()
    plan = small_plan(tiny_checkpoint("qwen2-s"))
    few = replace(plan.replication, draws=1, retrainings=0)
    panel = replace(plan.panel, models=("suppression",))
    plan = replace(plan, methods=(), replication=few, panel=panel, seal=commitment)
    run = start(plan, tmp_path / "run")
    run_cell(run.path, run.cells[0], pool_file=pool)
    items = run.cell(run.cells[0]).table("items")
    assert "panel:suppression" in {m for m, p in zip(items["model"], items["pool"]) if p == "audit"}


def test_draws_are_made_in_every_cell_or_in_the_first_of_each_family() -> None:
    plan = preset("pocket")
    assert {draws(cell) for cell in plan.cells()} == {30}
    plan = replace(plan, replication=replace(plan.replication, cells="family"))
    counts = {cell.id: draws(cell) for cell in plan.cells()}
    several = [cell for cell, count in counts.items() if count > 1]
    assert several == [
        f"pocket-{name}--seed5"
        for name in ("qwen2-s", "smollm2-s", "pythia-s", "gpt2-s", "olmo2-s")
    ]
