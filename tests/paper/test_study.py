"""The recalibrated bar over a study: tolerances, versions and picks."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.made_runs import (
    DRAW_GAP,
    Made,
    candidate,
    cell_run,
    paper_cell,
    paper_made,
    paper_run,
    read_study,
    write_audit,
    write_run,
)

from palimpsest.paper import tables
from palimpsest.paper.study import read_paper
from palimpsest.report.results import read_run
from palimpsest.report.table import Share

Change = Callable[[str, dict[str, Made]], dict[str, Made]]


def moved(head: str, **planted: float) -> Change:
    """A change of all models whose names begin so."""
    return lambda cell, models: {
        name: replace(made, **planted) if name.startswith(head) else made
        for name, made in models.items()
    }


def test_tolerances_are_those_of_the_planted_draws(study):
    assert set(study.tolerances) == {"qwen2", "gpt2"}
    for family, noise in study.tolerances.items():
        # Three draws in a row: gaps g, g, 2 g on each of four facts; the 90th percentile is 2 g.
        assert noise.delta_f == pytest.approx(2 * DRAW_GAP[family])
        assert noise.epsilon_retain == pytest.approx(0.2)
        assert noise.epsilon_residual == pytest.approx(0.2)  # the sum of two parts
        assert noise.fall_deviation == pytest.approx(0.05)


def test_of_many_draws_the_first_three_are_used_and_never_the_injected_models(study, tmp_path):
    def own(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        return models | {"reference": replace(models["reference"], forget=1.1, retain=1.9)}

    more = read_study(paper_run(tmp_path / "run", draws=6, change=own))
    assert more.tolerances == study.tolerances


def test_candidates_of_other_methods_are_in_no_pool(study, tmp_path):
    """They are not counted, not corrected for, and not picked."""

    def more(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        names = [f"{method}-{n}" for method in ("held_vector", "replay") for n in range(40)]
        best = paper_made(0.1, oracle_kl=0.01, residual=0.9)
        return models | {name: replace(best, model=candidate(name)) for name in names}

    found = read_study(paper_run(tmp_path / "run", change=more))
    assert found.names == study.names and found.screens == study.screens
    assert [found.selected(c) for c in found.cells] == [study.selected(c) for c in study.cells]
    assert [t(found).rows for t in tables.TABLES] == [t(study).rows for t in tables.TABLES]
    lone = more("", {}) | {n: m for n, m in paper_cell("qwen2", True, 4).items() if "-" not in n}
    assert read_paper(read_run(write_run(tmp_path / "lone", {"qwen2-s--seed0": lone}))) is None


def test_the_schedule_is_named_on_every_table_that_was_made_by_it(study):
    summary = dict(study.cells[0].summary) | {"beacon": {"beacon": "x"}}
    cells = (replace(study.cells[0], summary=summary), *study.cells[1:])
    drawn = replace(study, results=replace(study.results, cells=cells))
    assert study.schedule != drawn.schedule and "1 of 6" in drawn.schedule
    named = [t for t in tables.TABLES if drawn.schedule in t(drawn).reading]
    assert named == [
        *(tables.absolute_table, tables.budget_table, tables.replication_table),
        *(tables.known_label_table, tables.recalibrated_table, tables.selection_table),
    ]


def test_the_veto_removes_what_relearns_at_once(study):
    bare, vetoed, *_ = study.versions
    # Without the veto npo (2 in each of 6 cells) and gate_mask (2 in each of 4) pass.
    assert bare.share() == Share(20, 4 * 10 + 2 * 8)
    assert bare.share("npo").count == 12 and bare.share("gate_mask", "qwen2") == Share(8, 8)
    assert sum(pick is not None for pick in bare.picks.values()) == 6
    assert vetoed.share().count == 8 and vetoed.share("npo").count == 0
    assert [cell for cell, pick in vetoed.picks.items() if pick is None] == [
        "gpt2-s--seed0",
        "gpt2-s--seed1",
    ]


def test_the_smallest_delta_of_all_families_is_stricter(tmp_path):
    # 1 nat from the reference: within qwen2's 1.2, not within gpt2's 0.8.
    found = read_study(
        paper_run(tmp_path / "run", change=moved("gate_mask", forget=1.1, early=3.8))
    )
    bare, vetoed, smallest, _ = found.versions
    assert bare.share("gate_mask").count == vetoed.share("gate_mask").count == 8
    assert smallest.share("gate_mask").count == 0
    assert all(noise.delta_f == pytest.approx(0.8) for noise in smallest.tolerances.values())


def test_cells_of_a_family_without_replication_have_no_bar(tmp_path):
    found = read_study(paper_run(tmp_path / "run", skip=["gpt2-s--seed0"]))
    assert len(found.versions[0].picks) == 4 and len(found.versions[0].tried) == 40
    lone = read_study(paper_run(tmp_path / "lone", ["gpt2-s"], skip=["gpt2-s--seed0"]))
    assert lone.versions == () and lone.selected(lone.cells[0])["recalibrated"] is None


def test_where_the_injected_model_knows_nothing_the_bar_abstains(tmp_path):
    found = read_study(
        paper_run(tmp_path / "run", ["gpt2-s"], [0], change=moved("injected", forget=0.1))
    )
    assert set(found.versions[0].picks.values()) == {None}


def test_every_selector_picks_from_the_first_pool(study):
    first, last = (study.results.cell(cell) for cell in ("qwen2-s--seed0", "gpt2-s--seed0"))
    assert study.selected(first) == {
        "certificate": None,  # two references are too few for one
        "recalibrated": "npo-w1",
        "recalibrated, relearn veto": "gate_mask-w1",
        "residual": "npo-w1",  # as npo-w2, to the last digit: the first listed
        "absolute": None,
        "trained-probe": "kl_reversion-w1",
    }
    assert study.selected(last)["recalibrated, relearn veto"] is None


def test_the_screen_is_anchored_to_base(study):
    cell = study.results.cell("qwen2-s--seed0")
    assert study.screens[cell.id].anchor == "base"
    screen = cell.verdict and cell.verdict.screen
    assert screen is not None and screen.anchor == "references"
    assert study.survivors(cell) == [n for n in study.names[cell.id] if "kl_reversion" not in n]


def test_bounds_count_cells_or_architectures(study):
    cells = [replace(study.cells[0], base=f"m{k % 9}") for k in range(45)]
    assert study.upper_bounds([False] * 45, cells) == pytest.approx((0.064, 0.283), abs=5e-4)
    assert study.upper_bounds([], []) == (None, None)


def test_only_a_study_with_the_papers_design_is_read(tmp_path):
    assert read_paper(read_run(write_audit(tmp_path / "audit", ["mine"]))) is None
    assert read_paper(read_run(cell_run(tmp_path / "cell", references=0))) is not None
    none = read_run(
        paper_run(tmp_path / "none", skip=["qwen2-s--seed0"], models=["qwen2-s"], seeds=[0])
    )
    assert read_paper(none) is None


def test_a_candidate_without_reacquisition_is_left_out_of_the_bars(study):
    cell = study.cells[0]
    bare = replace(cell.evaluation["ga-w1"], residual=None, curve=None)
    measures = replace(cell.evaluation, models=dict(cell.evaluation.models) | {"ga-w1": bare})
    changed = replace(study.results, cells=(replace(cell, evaluation=measures),))
    found = read_paper(changed)
    assert found is not None and "ga-w1" not in found.names[cell.id]
    assert found.screens[cell.id]["ga-w1"].name == "ga-w1"  # the screen needs no residual
