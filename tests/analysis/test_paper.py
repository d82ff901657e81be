"""The paper's edition over a run: absolute bar, trained probes, survivors, sub-panels, panel."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_run import Made, made_plan, write_run

from palimpsest.analysis import absolute, panel, trained_probes
from palimpsest.analysis.results import RunResults, read_run
from palimpsest.analysis.table import Estimate, Row, Share, Table


def rows(table: Table) -> dict[object, Row]:
    """The rows of a table by the value in their first column."""
    return {row[table.columns[0]]: row for row in table.records()}


def components(table: Table, model: str) -> tuple[object, ...]:
    """How many pass each part of the absolute bar."""
    row = rows(table)[model]
    return tuple(row[part].count for part in absolute.COMPONENTS.values())  # type: ignore[union-attr]


# -- absolute bar ---------------------------------------------------------------------------------


def test_reference_and_injected_fail_limits_below_their_operating_point(
    results: RunResults,
) -> None:
    table = absolute.absolute_table(results)
    assert components(table, "reference") == (6, 0, 0, 0)
    assert components(table, "injected") == (0, 0, 0, 0)
    assert rows(table)["injected"]["retain NLL, median and range"] == Estimate(1.2, 1.2, 1.2)
    assert len(absolute.absolute_cells_table(results).rows) == 12


def test_every_component_is_counted_on_its_own(tmp_path: Path) -> None:
    def change(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        low = replace(models["reference"], retain=0.4, residual=0.15 if "seed0" in cell else 0.3)
        return models | {"reference": low, "ga-w3": Made(6.0, retain=0.5, residual=0.25)}

    table = absolute.absolute_table(read_run(write_run(tmp_path / "run", change=change)))
    assert components(table, "reference") == (6, 6, 3, 3)
    # At the limit passes: "at most 0.5". The sum of two parts of 0.25 is 0.5.
    assert components(table, "ga") == (12, 6, 6, 6)
    assert components(table, "all candidates")[-1] == 6
    # The mean of the two parts would let every reference pass.
    assert rows(table)["reference"]["residual, if it were the mean"] == Share(6, 6)


def test_the_floor_rises_with_the_budget_as_planted(results: RunResults) -> None:
    table = absolute.budget_table(results)
    points = [row for row in table.records() if row["family"] == "qwen2"]
    assert [row["steps"] for row in points] == [15, 30, 45, 60, 75]
    assert [row["median residual"] for row in points] == pytest.approx(
        [0.36, 0.72, 1.08, 1.44, 1.8]
    )
    assert [row["at most the limit"].count for row in points] == [4, 0, 0, 0, 0]  # type: ignore[union-attr]
    assert "in 2 of 2 families; the median floor is 1.800 nats" in table.reading


# -- trained probes -------------------------------------------------------------------------------


def test_adequate_candidates_still_know_held_out_facts(results: RunResults) -> None:
    found = rows(trained_probes.trained_probe_table(results))
    base = found["base"]
    # Oracle-KL 0.2 against the injected model's 1.0: both kl_reversion candidates of six cells.
    assert (base["candidates"], base["facts"], base["cells"]) == (12, 48, 6)
    assert base["median per fact"] == pytest.approx(-1.5)
    means = [found[level]["mean per fact"] for level in ("base", "probes", "reference")]
    assert [mean.value for mean in means] == pytest.approx([-1.5, -1.6, -1.6])  # type: ignore[union-attr]
    assert means[0].high < 0  # type: ignore[union-attr, operator]


def test_adequate_is_half_of_the_injected_models_own(tmp_path: Path) -> None:
    def change(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        return models | {"npo-w3": replace(models["npo-w3"], oracle_kl=0.5)}

    results = read_run(write_run(tmp_path / "run", made_plan(("gpt2-s",), (0,)), change=change))
    names = [name for _, name in trained_probes.adequate(results)]
    assert names == ["kl_reversion-w3", "kl_reversion-w12", "npo-w3"]


def test_none_adequate_is_said_and_not_averaged(tmp_path: Path) -> None:
    def change(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        return {name: replace(made, oracle_kl=1.0) for name, made in models.items()}

    results = read_run(write_run(tmp_path / "run", made_plan(("gpt2-s",), (0,)), change=change))
    table = trained_probes.trained_probe_table(results)
    assert not table.rows and table.reading.startswith("No candidate is rated adequate")


def test_the_screen_splits_methods(results: RunResults) -> None:
    found = rows(trained_probes.dichotomy_table(results))
    assert found["kl_reversion"]["excluded"] == Share(12, 12)
    assert found["gate_mask"]["excluded"] == Share(0, 8)
    assert found["task_vector"]["median rise of retain NLL"] == pytest.approx(2.8)
    assert found["ga"]["median gap"] == pytest.approx(5.9)


def test_restoration_is_compared_at_matched_forgetting(results: RunResults) -> None:
    points = trained_probes.diagnostic(results)
    assert len(points) == 56
    # Within 1 nat of npo (+0.15) lie the task vectors (+0.3), not kl_reversion (-1.5): 4 a cell.
    pairs = trained_probes.matched_forgetting(points, results.rules.matched_within)
    assert len(pairs) == 24 and pairs == [pytest.approx((0.6, 2.0))] * 24
    assert "restoration is closer in 24" in trained_probes.matched_sentence(points, 1.0)
    assert not trained_probes.matched_forgetting((), 1.0)


# -- survivors and sub-panels ---------------------------------------------------------------------


def test_survivors_are_not_all_equivalent(results: RunResults) -> None:
    found = rows(trained_probes.survivors_table(results))
    assert found["survivors"]["count"] == Share(44, 56)
    # |gap|: gate_mask 0.1 (8), task_vector 0.2 (12), ga 5.9 (12), npo 0.05 (12).
    assert found["median |gap|, nats"]["estimate"].value == pytest.approx(0.2)  # type: ignore[union-attr]
    common, own = found["equivalent at median delta_f"], found["equivalent at family's delta_f"]
    assert common["smallest margin"] == common["largest margin"] == pytest.approx(1.0)
    assert (own["smallest margin"], own["largest margin"]) == pytest.approx((0.8, 1.2))
    assert common["count"] == Share(32, 44)


def test_equivalence_depends_on_the_margin(tmp_path: Path) -> None:
    def change(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        # 0.85 above its probes: beyond gpt2's 0.8, within qwen2's 1.2 and the median 1.0.
        return {n: replace(m, forget=0.95) if n[:3] == "ga-" else m for n, m in models.items()}

    results = read_run(write_run(tmp_path / "run", change=change))
    found = rows(trained_probes.survivors_table(results))
    assert found["equivalent at median delta_f"]["count"] == Share(44, 44)
    # Two in each of gpt2's two cells fall out.
    assert found["equivalent at family's delta_f"]["count"] == Share(40, 44)


def test_four_probes_are_vacuous_and_sixteen_are_not(results: RunResults) -> None:
    sizes = {size.probes: size for size in trained_probes.sub_panels(results)}
    assert list(sizes) == list(range(1, 17))
    assert sizes[4].vacuous and sizes[4].excluded == 0
    assert sizes[16].certifiable == 6 and sizes[16].excluded == 12
    assert sizes[16].smallest_p == pytest.approx(1 / 4845)
    assert sizes[16].at_floor == 12
    # 10 candidates at 0.05 need 200 arrangements, 8 need 160: C(9, 4) = 126, C(10, 4) = 210.
    assert [n for n, size in sizes.items() if size.vacuous] == [1, 2, 3, 4, 5]
    assert all(size.excluded == 0 for size in sizes.values() if size.vacuous)


# -- the panel ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("challenge", "accepted"),
    [
        ("base", (6, 6, 0, 0, 0, 0)),
        ("injected", (0, 0, 6, 0, 0, 0)),
        ("reference", (6, 6, 6, 6, 6, 6)),
        ("suppression", (6, 6, 6, 6, 6, 0)),
        ("router", (0, 6, 6, 0, 0, 0)),
        ("embedding", (6, 0, 0, 0, 0, 0)),
        ("interpolate-0.25", (0, 0, 6, 0, 0, 0)),
        ("interpolate-0.5", (0, 4, 6, 0, 0, 0)),
    ],
)
def test_the_panel_is_accepted_where_planted(
    results: RunResults, challenge: str, accepted: tuple[int, ...]
) -> None:
    models = panel.by_challenge(panel.challenge_panel(results))[challenge]
    found = [panel.acceptance(models, battery, results.rules) for battery in panel.BATTERIES]
    assert tuple(rate.count for rate in found) == accepted
    assert {rate.total for rate in found} == {6}


def test_acceptance_carries_bounds(results: RunResults) -> None:
    models = panel.by_challenge(panel.challenge_panel(results))["router"]
    router = panel.acceptance(models, "screen", results.rules)
    assert router.upper == pytest.approx(1 - 0.05 ** (1 / 6))
    assert router.upper_clustered == pytest.approx(1 - 0.05 ** (1 / 3))


def test_the_panel_is_read_on_the_sealed_pool(tmp_path: Path) -> None:
    """A suppressor that looks retaining on the evaluation pool is judged by the sealed one."""
    results = read_run(write_run(tmp_path / "run", made_plan(("gpt2-s",), (0,))))
    cell = results.cells[0]
    assert cell.panel is not None and cell.panel.pool == "audit"
    assert set(cell.panel) & set(cell.candidates) == set()


def test_without_tolerances_only_the_screen_is_said(tmp_path: Path) -> None:
    results = read_run(write_run(tmp_path / "run", skip=["gpt2-s--seed0"]))
    models = panel.by_challenge(panel.challenge_panel(results))["reference"]
    assert panel.acceptance(models, "screen", results.rules).total == 5
    assert panel.acceptance(models, "forward", results.rules).total == 4
    lone = next(model for model in models if model.cell.id == "gpt2-s--seed1")
    assert lone.accepted["forward"] is None and lone.accepted["equivalence"] is None


def test_suppression_passes_until_the_veto(results: RunResults) -> None:
    found = rows(panel.suppression_table(results))
    accepted = [row["npo candidates accepted"] for row in found.values()]
    assert accepted == [Share(12, 12)] * 3 + [Share(0, 12)]
    assert found["with round trip and relearn veto"]["cells accepting any"] == Share(0, 6)
    assert panel.residual_selects_suppression(results).count == 6
