"""Each benchmark compares two ways of computing one thing; on small sizes they agree."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def script(name: str) -> ModuleType:
    """The benchmark's module."""
    return importlib.import_module(name)


@pytest.fixture(autouse=True)
def _beside_the_scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run_tiny(monkeypatch, name: str, *more: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--tiny", *more])
    script(name).main()


def test_agreement_is_refused_when_numbers_or_gaps_differ():
    measuring = script("measuring")
    assert measuring.agree("equal", [1.0, np.nan], [1.0 + 1e-6, np.nan], 1e-5) < 1e-5
    with pytest.raises(measuring.Disagreement, match="apart"):
        measuring.agree("apart", [1.0], [1.1], 0.05)
    with pytest.raises(measuring.Disagreement, match="gaps"):
        measuring.agree("one NaN", [np.nan], [1.0], 1.0)
    with pytest.raises(measuring.Disagreement, match="apart"):
        measuring.agree("infinite", [np.inf], [1.0], 1.0)


def test_sides_take_turns_and_ratios_are_of_neighbours():
    measuring = script("measuring")
    order = []
    sides = {name: lambda n=name: order.append((n, sum(range(10_000)))) for name in ("one", "two")}
    turns = measuring.interleaved(sides, repeats=2, warm=0)
    assert set(turns.ratio("one", "two")) == {"wall", "processor"}
    assert [name for name, _ in order] == ["one", "two", "two", "one"]
    assert measuring.ratios([4.0, 6.0, 9.0], [2.0, 2.0, 3.0]) == {
        "median": 3.0,
        "min": 2.0,
        "max": 3.0,
    }


def test_rank_test_agrees_with_scipy_and_enumeration(monkeypatch):
    run_tiny(monkeypatch, "bench_ranktest")


def test_scores_agree_with_the_harness(monkeypatch):
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness comes with make bench")
    run_tiny(monkeypatch, "bench_scoring")


@pytest.mark.slow
def test_reversion_steps_agree_with_the_plain_loop(monkeypatch):
    run_tiny(monkeypatch, "bench_step", "--model", script("pocket").MODEL, "--steps", "2")


@pytest.mark.slow
def test_unlearning_agrees_with_the_plain_loop_and_writes_a_checkpoint(monkeypatch):
    run_tiny(monkeypatch, "bench_unlearn", "--model", script("pocket").MODEL, "--steps", "2")


@pytest.mark.slow
def test_the_fast_and_the_plain_forward_agree(monkeypatch):
    run_tiny(monkeypatch, "bench_fast")


@pytest.mark.slow
def test_products_are_found_in_every_phase(monkeypatch):
    run_tiny(monkeypatch, "bench_roofline")


def test_products_are_replayed_at_the_same_shapes():
    import torch

    roofline = script("bench_roofline")
    with roofline.Products() as products:
        torch.randn(3, 4) @ torch.randn(5, 4).T
    assert roofline.flops(products.found) == 2 * 3 * 4 * 5
    roofline.replay(products.found)()


@pytest.mark.slow
def test_every_candidate_that_is_asked_for_is_made(monkeypatch):
    run_tiny(monkeypatch, "bench_candidates")


@pytest.mark.slow
def test_every_candidate_of_an_audit_is_audited(monkeypatch):
    run_tiny(monkeypatch, "bench_audit")


@pytest.mark.slow
def test_every_command_that_is_timed_succeeds(monkeypatch):
    run_tiny(monkeypatch, "bench_start")


def test_cell_benchmark_makes_as_many_candidates_as_it_says():
    from palimpsest.methods import candidates

    pocket = script("pocket")
    for count in (5, 10, 20, 40):
        cell = pocket.with_candidates(pocket.cell_plan(), count)
        assert len(candidates(cell.plan.methods)) == count


def test_whole_cell_agrees_with_the_plain_pipeline():
    cell_bench, pocket, measuring = script("bench_cell"), script("pocket"), script("measuring")
    cell = pocket.cell_plan(tiny=True)
    ours, theirs = cell_bench.engine(cell), cell_bench.plain(cell)
    cell_bench.check(ours, theirs)
    shifted = dict(theirs[0])
    shifted["nll_sum"] = theirs[0]["nll_sum"] + 0.1 * theirs[0]["tokens"]
    with pytest.raises(measuring.Disagreement):
        cell_bench.check(ours, (shifted, theirs[1]))


@pytest.mark.slow
def test_one_and_two_workers_give_the_same_bytes(monkeypatch):
    run_tiny(monkeypatch, "bench_workers")
