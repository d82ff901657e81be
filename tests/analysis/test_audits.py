"""The audits over a run: absolute bar, trained probes, survivors, sub-panels and the panel."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_run import Made, made_plan, write_run

from palimpsest.analysis import absolute, panel, subpanels, trained_probe
from palimpsest.analysis.results import RunResults, read_run
from palimpsest.analysis.survivors import survivors

# -- absolute bar ---------------------------------------------------------------------------------


def test_reference_and_injected_fail_limits_below_their_operating_point(
    results: RunResults,
) -> None:
    rows = absolute.audit_models(results)
    reference = absolute.components([row.bar for row in rows if row.model == "reference"])
    injected = absolute.components([row.bar for row in rows if row.model == "injected"])
    assert reference == absolute.ComponentCounts(6, screen=6, retain=0, residual=0, all=0)
    assert injected == absolute.ComponentCounts(6, screen=0, retain=0, residual=0, all=0)
    assert absolute.summary([row.retain_nll for row in rows]).median == pytest.approx(1.2)


def test_every_component_is_counted_on_its_own(tmp_path: Path) -> None:
    def change(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        low = replace(models["reference"], retain=0.4, residual=0.3 if "seed0" in cell else 0.6)
        return models | {"reference": low, "ga-w3": Made(6.0, retain=0.5, residual=0.5)}

    results = read_run(write_run(tmp_path / "run", change=change))
    rows = [row.bar for row in absolute.audit_models(results) if row.model == "reference"]
    assert absolute.components(rows) == absolute.ComponentCounts(6, 6, 6, 3, 3)
    ascent = absolute.components(absolute.candidate_bars(results, "ga"))
    # At the limit passes: "at most 0.5".
    assert ascent == absolute.ComponentCounts(12, screen=12, retain=6, residual=6, all=6)
    assert absolute.components(absolute.candidate_bars(results)).all == 6


def test_the_floor_rises_with_the_budget_as_planted(results: RunResults) -> None:
    points = [point for point in absolute.budget_curve(results) if point.family == "qwen2"]
    assert [point.step for point in points] == [15, 30, 45, 60, 75]
    assert [point.residual.median for point in points] == pytest.approx(
        [0.18, 0.36, 0.54, 0.72, 0.9]
    )
    assert [point.closes for point in points] == [4, 4, 0, 0, 0]
    floor = absolute.floors(results, "gpt2")
    assert floor is not None and floor.median == pytest.approx(0.9)


# -- trained probes -------------------------------------------------------------------------------


def test_adequate_candidates_still_know_held_out_facts(results: RunResults) -> None:
    found = {level: trained_probe.held_out(results, level) for level in trained_probe.LEVELS}
    base = found["base"]
    assert base is not None and base.interval is not None
    # Oracle-KL 0.2 against the injected model's 1.0: both kl_reversion candidates of six cells.
    assert (base.candidates, base.facts, base.cells) == (12, 48, 6)
    assert (base.mean, base.median) == pytest.approx((-1.5, -1.5))
    assert base.interval.high < 0
    assert found["probes"] is not None and found["probes"].mean == pytest.approx(-1.6)
    assert found["reference"] is not None and found["reference"].mean == pytest.approx(-1.6)


def test_adequate_is_half_of_the_injected_models_own(tmp_path: Path) -> None:
    def change(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        return models | {"npo-w3": replace(models["npo-w3"], oracle_kl=0.5)}

    results = read_run(write_run(tmp_path / "run", made_plan(("gpt2-s",), (0,)), change=change))
    names = [name for _, name in trained_probe.adequate(results)]
    assert names == ["kl_reversion-w3", "kl_reversion-w12", "npo-w3"]


def test_none_adequate_is_said_and_not_averaged(tmp_path: Path) -> None:
    def change(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        return {name: replace(made, oracle_kl=1.0) for name, made in models.items()}

    results = read_run(write_run(tmp_path / "run", made_plan(("gpt2-s",), (0,)), change=change))
    assert trained_probe.held_out(results) is None


def test_the_screen_splits_methods(results: RunResults) -> None:
    rows = {row.method: row for row in trained_probe.by_method(results)}
    assert (rows["kl_reversion"].excluded, rows["kl_reversion"].candidates) == (12, 12)
    assert rows["gate_mask"].excluded == 0 and rows["gate_mask"].candidates == 8
    assert rows["task_vector"].median_retain_rise == pytest.approx(2.8)
    assert rows["ga"].median_gap == pytest.approx(5.9)


def test_restoration_is_compared_at_matched_forgetting(results: RunResults) -> None:
    points = trained_probe.diagnostic(results)
    assert len(points) == 56
    matched = trained_probe.matched_forgetting(points)
    # Within 1 nat of npo (+0.15) lie the task vectors (+0.3), not kl_reversion (-1.5): 4 a cell.
    assert (matched.pairs, matched.cells, matched.closer) == (24, 6, 24)
    assert (matched.restoration, matched.suppression) == pytest.approx((0.6, 2.0))
    assert trained_probe.matched_forgetting(()).pairs == 0


# -- survivors and sub-panels ---------------------------------------------------------------------


def test_survivors_are_not_all_equivalent(results: RunResults) -> None:
    found = survivors(results)
    assert (found.candidates, found.survivors, found.cells) == (56, 44, 6)
    # |gap|: gate_mask 0.1 (8), task_vector 0.2 (12), ga 5.9 (12), npo 0.05 (12).
    assert found.median_gap == pytest.approx(0.2)
    common, own = found.shares
    assert common.smallest == common.largest == pytest.approx(1.0)
    assert (own.smallest, own.largest) == pytest.approx((0.8, 1.2))
    assert (common.equivalent, common.total) == (32, 44)


def test_equivalence_depends_on_the_margin(tmp_path: Path) -> None:
    def change(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        # 0.85 above its probes: beyond gpt2's 0.8, within qwen2's 1.2 and the median 1.0.
        return {n: replace(m, forget=0.95) if n[:3] == "ga-" else m for n, m in models.items()}

    results = read_run(write_run(tmp_path / "run", change=change))
    common, own = survivors(results).shares
    assert (common.equivalent, common.total) == (44, 44)
    assert (own.equivalent, own.total) == (40, 44)  # two in each of gpt2's two cells fall out


def test_four_probes_are_vacuous_and_sixteen_are_not(results: RunResults) -> None:
    rows = {row.probes: row for row in subpanels.sub_panels(results)}
    assert list(rows) == list(range(1, 17))
    assert rows[4].vacuous and rows[4].excluded == 0
    assert rows[16].certifiable == 6 and rows[16].excluded == 12
    assert rows[16].smallest_p == pytest.approx(1 / 4845)
    assert rows[16].at_floor == 12
    # 10 candidates at 0.05 need 200 arrangements, 8 need 160: C(9, 4) = 126, C(10, 4) = 210.
    assert [n for n, row in rows.items() if row.vacuous] == [1, 2, 3, 4, 5]
    assert all(row.excluded == 0 for row in rows.values() if row.vacuous)


# -- the panel ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("challenge", "accepted"),
    [
        ("base", (6, 6, 0, 0, 0, 0)),
        ("injected", (0, 0, 6, 0, 0, 0)),
        ("reference", (6, 6, 6, 6, 6, 6)),
        ("panel:suppression", (6, 6, 6, 6, 6, 0)),
        ("panel:router", (0, 6, 6, 0, 0, 0)),
        ("panel:embedding", (6, 0, 0, 0, 0, 0)),
        ("panel:interpolate-0.25", (0, 0, 6, 0, 0, 0)),
        ("panel:interpolate-0.5", (0, 4, 6, 0, 0, 0)),
    ],
)
def test_the_panel_is_accepted_where_planted(
    results: RunResults, challenge: str, accepted: tuple[int, ...]
) -> None:
    rows = panel.challenge_panel(results)
    found = [panel.acceptance(rows, results, challenge, axis) for axis in panel.AXES]
    assert tuple(one.count for one in found) == accepted
    assert {one.total for one in found} == {6}


def test_acceptance_carries_bounds_and_families(results: RunResults) -> None:
    rows = panel.challenge_panel(results)
    router = panel.acceptance(rows, results, "panel:router", "screen")
    assert router.upper == pytest.approx(1 - 0.05 ** (1 / 6))
    assert router.upper_clustered == pytest.approx(1 - 0.05 ** (1 / 3))
    family = panel.acceptance(rows, results, "panel:suppression", "forward", "gpt2")
    assert (family.count, family.total) == (2, 2)


def test_the_panel_is_read_on_the_sealed_pool(tmp_path: Path) -> None:
    """A suppressor that looks retaining on the evaluation pool is judged by the sealed one."""
    results = read_run(write_run(tmp_path / "run", made_plan(("gpt2-s",), (0,))))
    cell = results.cells[0]
    assert cell.panel is not None and cell.panel.pool == "audit"
    assert set(cell.panel) & set(cell.candidates) == set()


def test_without_tolerances_only_the_screen_is_said(tmp_path: Path) -> None:
    results = read_run(write_run(tmp_path / "run", skip=["gpt2-s--seed0"]))
    rows = panel.challenge_panel(results)
    assert panel.acceptance(rows, results, "reference", "screen").total == 5
    assert panel.acceptance(rows, results, "reference", "forward").total == 4
    lone = next(row for row in rows if row.cell == "gpt2-s--seed1")
    assert lone.verdicts["forward"] is None and lone.verdicts["equivalence"] is None
