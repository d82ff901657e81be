"""The recalibrated bar over a run: its versions, its picks, and its own references under it."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_run import Made, made_plan, write_run

from palimpsest.analysis import recalibrated
from palimpsest.analysis.counts import averaged, bounded
from palimpsest.analysis.results import RunResults, read_run
from palimpsest.analysis.table import Row, Share
from palimpsest.plan import Replication


def test_the_veto_removes_what_relearns_at_once(results: RunResults) -> None:
    bare, vetoed = recalibrated.versions(results)[0], recalibrated.with_veto(results)
    # Without the veto npo (2 in each of 6 cells) and gate_mask (2 in each of 4) are certified.
    assert bare.share() == Share(20, 4 * 10 + 2 * 8)
    assert bare.share("npo").count == 12
    assert bare.share("gate_mask", "qwen2").count == 8
    assert len(bare.certified_cells) == 6
    assert len(vetoed.passed) == 8 and vetoed.share("npo").count == 0
    rows = recalibrated.versions_table(results).records()
    assert [row["suppressing candidates that pass"].count for row in rows[:2]] == [12, 0]  # type: ignore[union-attr]
    assert rows[1]["reasons of the others"] == "no_candidate_clears_bar 2"


def test_the_global_minimum_is_stricter(tmp_path: Path) -> None:
    def change(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        # 1 nat from the reference: within qwen2's 1.2, not within gpt2's 0.8.
        moved = {n: replace(m, forget=1.1) for n, m in models.items() if n.startswith("gate_mask")}
        return models | moved

    results = read_run(write_run(tmp_path / "run", change=change))
    bare, vetoed, smallest, _ = recalibrated.versions(results)
    assert bare.share("gate_mask").count == vetoed.share("gate_mask").count == 8
    assert smallest.share("gate_mask").count == 0
    assert all(noise.delta_f == pytest.approx(0.8) for noise in smallest.tolerances.values())


def test_cells_without_tolerances_are_counted_apart(tmp_path: Path) -> None:
    results = read_run(write_run(tmp_path / "run", skip=["gpt2-s--seed0"]))
    bare = recalibrated.versions(results)[0]
    assert len(bare.verdicts) == 4 and len(bare.tried) == 40
    table = recalibrated.versions_table(results)
    assert {row["cells without tolerances"] for row in table.records()} == {1}


def test_a_run_without_replication_has_no_versions(tmp_path: Path) -> None:
    plan = made_plan(("gpt2-s",), (0, 1))
    results = read_run(write_run(tmp_path / "run", plan, skip=["gpt2-s--seed0"]))
    assert recalibrated.versions(results) == ()
    assert not recalibrated.selection_table(results).rows


def picks(results: RunResults) -> dict[object, Row]:
    """The selection table of the version with veto, by selector."""
    rows = recalibrated.selection_table(results).records()
    return {row["selector"]: row for row in rows if str(row["version"]).endswith("relearn veto")}


def test_selection_quality_by_hand(results: RunResults) -> None:
    found = picks(results)
    ours, trained = found["recalibrated certificate pick"], found["trained-probe best"]
    means = {column: getattr(value, "value", value) for column, value in ours.items()}
    assert {row["cells"] for row in (ours, trained)} == {4}
    assert means["forget distance"] == pytest.approx(0.1)
    # The anchor is the injected model of the candidate's own draw: no shift by epsilon_f.
    assert means["retain damage+"] == pytest.approx(0.0)
    assert means["round-trip damage+"] == pytest.approx(2.0 - 1.8)
    assert means["trained-probe KL"] == pytest.approx(0.7)
    assert trained["forget distance"].value == pytest.approx(1.6)  # type: ignore[union-attr]
    assert (ours["within delta_f"], trained["within delta_f"]) == (Share(4, 4), Share(0, 4))
    assert ours["forget distance"].low is not None  # type: ignore[union-attr]


def test_picks_that_clear_no_bar_are_reported_apart(results: RunResults) -> None:
    found = picks(results)
    # Nobody clears the absolute bar, so its selector falls back on the smallest residual.
    assert found["absolute-bar pick"]["cells"] == 0
    apart = found["smallest residual, where none clears the absolute bar"]
    assert apart["cells"] == 4
    assert recalibrated.absolute_pick(results.cells[0], results.rules) is None
    assert not recalibrated.clearing_absolute(results.cells[0], results.rules)


def test_equal_candidates_go_to_the_first_listed(results: RunResults) -> None:
    cell = results.cell("qwen2-s--seed0")
    assert recalibrated.residual_pick(cell) == "npo-w3"  # as npo-w12, to the last digit
    assert recalibrated.residual_pick(cell, ["npo-w12", "npo-w3"]) == "npo-w12"
    assert recalibrated.residual_pick(cell, ()) is None
    assert recalibrated.nearest_pick({}) is None


def test_bounds_of_counts_are_the_papers(results: RunResults) -> None:
    none = bounded([False] * 45, [f"m{k % 9}" for k in range(45)], results.rules)
    assert none.upper == pytest.approx(0.064, abs=5e-4)
    assert none.upper_clustered == pytest.approx(0.283, abs=5e-4)
    twelve = bounded([True] * 12 + [False] * 33, ["m"] * 45, results.rules)
    assert twelve.upper == pytest.approx(0.396, abs=5e-4)
    assert bounded([], [], results.rules).upper is None
    assert averaged([], [], results.rules) is None


def test_a_single_cell_is_judged_too(single: RunResults) -> None:
    assert recalibrated.with_veto(single).certified_cells == ("qwen2-s--seed0",)
    assert picks(single)["recalibrated certificate pick"]["forget distance"].low is None  # type: ignore[union-attr]


# -- its own references ---------------------------------------------------------------------------


def test_draws_are_judged_by_the_others_alone(results: RunResults) -> None:
    """Draws lie in a row, g apart. The middle one is g from the first, and the other two are 2 g
    apart, so it is accepted; an end one is 2 g from the draw it is held against when tolerances
    of the other two say g."""
    judged = recalibrated.held_out_draws(results)
    bars = {(cell.family, name): bar for cell, name, bar in judged}
    assert len(bars) == 6
    assert bars["qwen2", "reference-1"].clears
    assert "forget equivalence" in bars["qwen2", "reference-2"].failures
    assert bars["gpt2", "reference-2"].delta_f < results.tolerances["gpt2"].delta_f


def test_the_injected_model_is_rejected(results: RunResults) -> None:
    injected = recalibrated.self_check_table(results).records()[1]
    assert injected["models"] == "injected models"
    assert injected["accepted"] == Share(0, 6) and injected["fails screen"] == Share(6, 6)


def test_a_draw_within_the_others_noise_is_accepted(tmp_path: Path) -> None:
    def change(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        places = {"reference": 0.25, "reference-1": 0.1, "reference-2": 0.3}
        near = {
            name: replace(models[name], forget=place, retain=1.2, residual=1.0, fall=0.3)
            for name, place in places.items()
        }
        return models | near

    plan = made_plan(("gpt2-s",), (0,))
    judged = recalibrated.held_out_draws(read_run(write_run(tmp_path / "run", plan, change=change)))
    # reference-1 is 0.15 from the draw it is held against, and the other two are 0.05 apart.
    assert [name for _, name, bar in judged if "forget equivalence" in bar.failures] == [
        "reference-1"
    ]


def test_two_draws_leave_nothing_to_hold_out(tmp_path: Path) -> None:
    plan = replace(made_plan(("gpt2-s",), (0,)), replication=Replication(draws=2))
    assert recalibrated.held_out_draws(read_run(write_run(tmp_path / "run", plan))) == []
