"""A cell goes from plan to stored scores, resumes where it was stopped, and gives equal bytes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from palimpsest.errors import SealError
from palimpsest.facts.sealed import builtin_pool
from palimpsest.plan import Counts, MethodGrid, Plan
from palimpsest.presets import preset
from palimpsest.run.store import Run
from palimpsest.study.cell import KEPT, CellRun
from palimpsest.study.matrix import commitment, draws, run_cell, start
from palimpsest.study.results import read_run


class Stop(Exception):
    """Thrown between two steps, as a power cut would be."""


def small_plan(folder: Path) -> Plan:
    plan = preset("demo")
    return replace(
        plan,
        models=(str(folder),),
        facts=Counts(forget=2, retain=2, probes=3, phrasings=2),
        injection=replace(plan.injection, steps=4, fact_items=2, general_items=2),
        unlearning=replace(plan.unlearning, steps=2, forget_items=2, retain_items=2),
        round_trip=replace(plan.round_trip, steps=5, items=2),
        general=replace(plan.general, train_pieces=8, scored_pieces=2, piece_tokens=12),
        methods=(
            MethodGrid("kl_reversion", (("weight", (3.0, 12.0)),)),
            MethodGrid("gate_mask", (("weight", (3.0,)),)),
            MethodGrid("task_vector", (("coefficient", (0.5, 1.0)),)),
        ),
        replication=replace(plan.replication, draws=2),
    )


def finished(plan: Plan, out: Path) -> Run:
    run = start(plan, out)
    for cell in run.cells:
        run_cell(out, cell)
    return run


def items(run: Run) -> bytes:
    return (run.path / "cells" / run.cells[0] / "items.parquet").read_bytes()


@pytest.fixture(scope="module")
def gated(tiny_checkpoint, tmp_path_factory):  # type: ignore[no-untyped-def]
    plan = small_plan(tiny_checkpoint("qwen2-s"))
    return plan, finished(plan, tmp_path_factory.mktemp("gated") / "run")


def test_the_same_cell_run_twice_gives_equal_bytes(gated, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    plan, first = gated
    second = finished(plan, tmp_path / "again")
    assert items(first) == items(second)
    cell = first.cells[0]
    for name in ("curves.parquet", "cell.json", "chain.jsonl"):
        one, other = (run.path / "cells" / cell / name for run in (first, second))
        assert one.read_bytes() == other.read_bytes()


def test_a_cell_stopped_after_any_step_ends_with_the_same_bytes(gated, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    plan, whole = gated
    out = tmp_path / "stopped"
    run = start(plan, out)
    begun: list[str] = []
    kept: list[int] = []
    for _ in range(20):
        seen: list[str] = []

        def after_one_step(label: str, done: int, total: int, seen: list[str] = seen) -> None:
            if label == KEPT:
                assert not seen  # it is said first
                kept.append(done)
                return
            if seen:
                raise Stop
            seen.append(label)

        try:
            run_cell(out, run.cells[0], progress=after_one_step)
        except Stop:
            begun += seen
            continue
        break
    assert len(begun) == len(set(begun)) >= 7  # no step was ever told or begun again
    assert kept == list(range(1, len(begun) + 1))
    assert items(run) == items(whole)


def test_everything_that_was_planned_is_in_the_table(gated) -> None:  # type: ignore[no-untyped-def]
    _, run = gated
    table = run.cell(run.cells[0]).table("items")
    names = set(table["model"])
    assert {"base", "injected", "reference", "reference-1", "forget_only"} <= names
    assert {"kl_reversion-w3", "kl_reversion-w12", "gate_mask-w3", "task_vector-c1"} <= names
    assert {
        "panel:suppression",
        "panel:router",
        "panel:embedding",
        "panel:interpolate-0.5",
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


def test_one_net_after_another_scores_every_model_as_a_stack_does(gated, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    plan, stacked = gated
    alone = replace(plan, engine=replace(plan.engine, stack=1))
    one = read_run(finished(alone, tmp_path / "alone").path).cells[0].evaluation
    many = read_run(stacked.path).cells[0].evaluation
    for name in ("base", "injected", "reference", "reference-1"):
        assert one[name].forget_nll == pytest.approx(many[name].forget_nll, abs=2e-3), name
        assert one[name].retain_nll == pytest.approx(many[name].retain_nll, abs=2e-3), name
    assert one["base"].forget_nll != pytest.approx(one["injected"].forget_nll, abs=5e-3)


def test_the_mask_does_not_apply_to_an_ungated_model_and_the_cell_goes_on(  # type: ignore[no-untyped-def]
    tiny_checkpoint, tmp_path: Path
) -> None:
    run = finished(small_plan(tiny_checkpoint("gpt2-s")), tmp_path / "run")
    cell = read_run(run.path).cells[0]
    assert cell.not_applicable == ("gate_mask-w3",)
    assert "kl_reversion-w3" in cell.candidates
    assert not cell.failed


def test_a_finished_cell_is_not_touched_again(gated) -> None:  # type: ignore[no-untyped-def]
    _, run = gated
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*.parquet")}
    run_cell(run.path, run.cells[0])
    assert before == {path: path.stat().st_mtime_ns for path in run.path.rglob("*.parquet")}


def test_the_audit_pool_is_scored_once_in_a_run(gated, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    plan, _ = gated
    run = start(plan, tmp_path / "run")
    with run.cell(run.cells[0]).claim() as store:
        cell = CellRun(
            plan.cells()[0], store, audit_pool=builtin_pool(), commitment=commitment(plan)
        )
        for name, action in cell.steps():
            if name.startswith("train-") or name == "panel":
                action()
        with pytest.raises(SealError, match="already"):
            dict(cell.steps())["panel"]()


def test_draws_are_made_in_the_first_cell_of_each_family() -> None:
    counts = {cell.id: draws(cell) for cell in preset("pocket").cells()}
    several = [cell for cell, count in counts.items() if count > 1]
    assert several == [
        f"pocket-{name}--seed0"
        for name in ("qwen2-s", "smollm2-s", "pythia-s", "gpt2-s", "olmo2-s")
    ]
