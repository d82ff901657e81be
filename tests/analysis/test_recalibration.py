from dataclasses import replace
from pathlib import Path

import pytest
from made_run import Made, made_plan, write_run

from palimpsest.analysis import recalibration
from palimpsest.analysis.results import RunResults, read_run


def test_the_veto_removes_what_relearns_at_once(results: RunResults) -> None:
    bare, vetoed = recalibration.versions(results)[0], recalibration.with_veto(results)
    # Without the veto npo (2 in each of 6 cells) and gate_mask (2 in each of 4) are certified.
    assert len(bare.certified) == 20
    assert bare.count(method="npo") == 12
    assert bare.count(method="gate_mask", family="qwen2") == 8
    assert len(bare.certified_cells) == 6
    assert len(vetoed.certified) == 8
    assert vetoed.count(method="npo") == 0
    assert vetoed.abstentions == {"no_candidate_clears_bar": 2}
    assert recalibration.suppression_certified(bare) == 12
    assert recalibration.suppression_certified(vetoed) == 0


def test_all_candidates_are_counted(results: RunResults) -> None:
    assert recalibration.versions(results)[0].candidates == 4 * 10 + 2 * 8


def test_the_global_minimum_is_stricter(tmp_path: Path) -> None:
    def change(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        # 1 nat from the reference: within qwen2's 1.2, not within gpt2's 0.8.
        moved = {n: replace(m, forget=1.1) for n, m in models.items() if n.startswith("gate_mask")}
        return models | moved

    results = read_run(write_run(tmp_path / "run", change=change))
    bare, vetoed, smallest, _ = recalibration.versions(results)
    assert bare.count(method="gate_mask") == vetoed.count(method="gate_mask") == 8
    assert smallest.count(method="gate_mask") == 0
    assert all(one.delta_f == pytest.approx(0.8) for one in smallest.tolerances.values())


def test_cells_without_tolerances_are_counted_apart(tmp_path: Path) -> None:
    results = read_run(write_run(tmp_path / "run", skip=["gpt2-s--seed0"]))
    bare = recalibration.versions(results)[0]
    assert bare.without_tolerances == ("gpt2-s--seed1",)
    assert bare.cells == 4
    assert bare.candidates == 40


def test_a_run_without_replication_has_no_versions(tmp_path: Path) -> None:
    plan = made_plan(("gpt2-s",), (0, 1))
    results = read_run(write_run(tmp_path / "run", plan, skip=["gpt2-s--seed0"]))
    assert recalibration.versions(results) == ()


def test_selection_quality_by_hand(results: RunResults) -> None:
    vetoed = recalibration.with_veto(results)
    ours, absolute, trained = recalibration.selection_quality(results, vetoed)
    assert len(ours.picks) == len(absolute.picks) == len(trained.picks) == 4
    assert {one.candidate for one in ours.picks} == {"gate_mask-w3"}
    assert ours.mean("forget_distance") == pytest.approx(0.1)
    assert ours.mean("retain_damage") == pytest.approx(0.2)  # epsilon_f, shifted against it
    assert ours.mean("residual_damage") == pytest.approx(1.0 - (0.9 - 0.1))
    assert ours.mean("oracle_kl") == pytest.approx(0.7)
    # Nobody clears the absolute bar, so its selector falls back on the smallest residual.
    assert {one.candidate for one in absolute.picks} == {"npo-w3"}
    assert {one.candidate for one in trained.picks} == {"kl_reversion-w3"}
    assert trained.mean("forget_distance") == pytest.approx(1.6)
    assert (ours.within_noise, trained.within_noise) == (4, 0)
    assert ours.interval("forget_distance", results.rules) is not None


def test_equal_candidates_go_to_the_first_listed(results: RunResults) -> None:
    cell = results.cell("qwen2-s--seed0")
    assert recalibration.residual_pick(cell) == "npo-w3"  # as npo-w12, to the last digit
    assert recalibration.residual_pick(cell, ["npo-w12", "npo-w3"]) == "npo-w12"
    assert recalibration.residual_pick(cell, ()) is None
    assert recalibration.nearest_pick({}) is None


def test_damages_are_clipped_at_zero(results: RunResults) -> None:
    cell = results.cell("qwen2-s--seed0")
    assert cell.tolerances is not None
    better = replace(cell.tolerances, epsilon_retain=0.0)
    found = recalibration.position(cell, "ga-w3", better, results.rules)
    assert found.retain_damage == 0.0


def test_residual_based_selection_and_its_bounds(results: RunResults) -> None:
    found = recalibration.residual_selects_suppression(results)
    assert (found.count, found.total) == (6, 6)

    none = recalibration.bounded([False] * 45, [f"m{k % 9}" for k in range(45)], results.rules)
    assert none.upper == pytest.approx(0.064, abs=5e-4)
    assert none.upper_clustered == pytest.approx(0.283, abs=5e-4)
    twelve = recalibration.bounded([True] * 12 + [False] * 33, ["m"] * 45, results.rules)
    assert twelve.upper == pytest.approx(0.396, abs=5e-4)
    assert recalibration.bounded([], [], results.rules).upper is None


def test_a_single_cell_is_judged_too(single: RunResults) -> None:
    vetoed = recalibration.with_veto(single)
    assert vetoed.certified_cells == ("qwen2-s--seed0",)
    ours = recalibration.selection_quality(single, vetoed)[0]
    assert ours.interval("forget_distance", single.rules) is None
