from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_run import DRAW_GAP, Made, made_plan, write_run

from palimpsest.analysis.replication import (
    median_delta,
    pool_tolerances,
    replication_table,
    tolerance_intervals,
)
from palimpsest.analysis.results import RunResults, read_run
from palimpsest.criteria.bars import measure_tolerances
from palimpsest.plan import Replication as Draws


def test_tolerances_are_the_planted_gaps(results: RunResults) -> None:
    assert set(results.tolerances) == {"qwen2", "gpt2"}
    for family, tolerances in results.tolerances.items():
        gap = DRAW_GAP[family]
        # Three draws in a row: gaps g, g, 2 g on each of four facts; the 90th percentile is 2 g.
        assert tolerances.delta_f == pytest.approx(2 * gap)
        assert tolerances.epsilon_retain == pytest.approx(0.2)
        assert tolerances.epsilon_residual == pytest.approx(0.2)  # the sum of two parts
        assert tolerances.fall_deviation == pytest.approx(0.05)


def test_one_replicated_cell_gives_its_own_tolerances(results: RunResults) -> None:
    cell = results.cell("qwen2-s--seed0")
    assert results.tolerances["qwen2"] == measure_tolerances(cell.evaluation, results.rules)


def test_the_median_over_families_is_the_papers_delta(results: RunResults) -> None:
    assert median_delta(results.tolerances) == pytest.approx((1.2 + 0.8) / 2)
    assert median_delta({}) is None


def test_leaving_out_a_draw_shows_how_delta_hangs_on_it(results: RunResults) -> None:
    _, row = replication_table(results.replication, results.rules).records()
    left_out = row["delta_f, one draw left out"]
    assert (left_out.value, left_out.low, left_out.high) == pytest.approx((0.8, 0.4, 0.8))  # type: ignore[union-attr]
    delta, retain, _ = tolerance_intervals(results.replication["gpt2"], results.rules)
    assert (delta.value, delta.low, delta.high) == pytest.approx((0.8, 0.4, 0.8))
    assert retain.low == pytest.approx(0.1)


def test_intervals_vary_with_facts_and_stay_the_same_twice(tmp_path: Path) -> None:
    def change(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        return {name: replace(made, exact=name == "reference-1") for name, made in models.items()}

    results = read_run(write_run(tmp_path / "run", made_plan(("qwen2-s",), (0,)), change=change))
    one = results.replication["qwen2"]
    first, again = (tolerance_intervals(one, results.rules) for _ in range(2))
    assert first == again
    assert first[0].low < first[0].value <= first[0].high  # type: ignore[operator]


def test_the_interval_matches_a_plain_loop(results: RunResults) -> None:
    """The vectorised bootstrap against one written out, on draws without structure."""
    generator = np.random.default_rng(4)
    cell = results.replication["qwen2"].cells[0]
    deltas = generator.normal(size=(3, 12))
    cell = replace(cell, deltas=deltas)
    # Few facts make a lattice of few values, on which quantiles jump: compare with neighbours.
    rules = replace(results.rules, confidence=0.5)
    found = tolerance_intervals(replace(results.replication["qwen2"], cells=(cell,)), rules)[0]
    plain = []
    while len(plain) < 4000:
        draws = set(generator.integers(3, size=3).tolist())
        if len(draws) < 2:
            continue
        facts = generator.integers(12, size=12)
        gaps = [np.abs(deltas[a] - deltas[b])[facts] for a in draws for b in draws if a < b]
        plain.append(np.percentile(np.concatenate(gaps), 90))
    for limit, tail in ((found.low, 0.25), (found.high, 0.75)):
        below, above = np.quantile(plain, [tail - 0.03, tail + 0.03])
        assert below <= limit <= above


def test_several_replicated_cells_are_pooled(results: RunResults) -> None:
    one = results.replication["qwen2"].cells[0]
    wide = replace(
        one,
        deltas=one.deltas * 2,
        tolerances=replace(one.tolerances, epsilon_retain=0.4, fall_deviation=0.15),
    )
    pooled = pool_tolerances("qwen2", (one, wide), results.rules).tolerances
    gaps = [0.6] * 8 + [1.2] * 4 + [1.2] * 8 + [2.4] * 4
    assert pooled.delta_f == pytest.approx(np.percentile(gaps, 90))
    assert pooled.epsilon_retain == pytest.approx(0.3)
    assert pooled.fall_deviation == pytest.approx(np.sqrt((0.05**2 + 0.15**2) / 2))
    assert pooled.draws == 5  # four degrees of freedom


def test_two_draws_are_enough(tmp_path: Path) -> None:
    plan = replace(made_plan(("gpt2-s",), (0,)), replication=Draws(draws=2))
    results = read_run(write_run(tmp_path / "run", plan))
    (row,) = replication_table(results.replication, results.rules).records()
    left_out = row["delta_f, one draw left out"]
    assert (left_out.low, left_out.high) == pytest.approx((0.4, 0.4))  # type: ignore[union-attr]
