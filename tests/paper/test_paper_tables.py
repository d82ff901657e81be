"""The paper's tables over a study, against hand computations on planted scores."""

from dataclasses import replace

import pytest
from tests.made_runs import Made, paper_run, read_study

from palimpsest.paper import tables
from palimpsest.report.table import Estimate, Row, Share, Table


def rows(table: Table) -> dict[object, Row]:
    """The rows of a table by the value in their first column."""
    return {row[table.columns[0]]: row for row in table.records()}


def test_every_table_has_rows_a_reading_and_a_name_of_its_own(study):
    made = [table(study) for table in tables.TABLES]
    assert len({table.name for table in made}) == len(made) == 10
    assert all(table.rows and table.reading.endswith(".") for table in made)


def test_adequate_candidates_still_know_held_out_facts(study):
    found = rows(tables.trained_probe_table(study))
    base = found["base"]
    # Oracle-KL 0.2 against the injected model's 1.0: both kl_reversion candidates of six cells.
    assert (base["candidates"], base["facts"], base["cells"]) == (12, 48, 6)
    assert base["median per fact"] == pytest.approx(-1.5)
    means = [found[level]["mean per fact"].value for level in ("base", "probes", "reference")]
    assert means == pytest.approx([-1.5, -1.6, -1.6]) and base["mean per fact"].high < 0
    # The injected model lies 2 nats below base.
    shares = [row["mean, share of what was taught"].value for row in found.values()]
    assert shares == pytest.approx([-0.75, -0.8, -0.8])


def test_every_value_is_in_the_unit_of_its_own_cell():
    found = tables.in_units([-1.0, -3.0, -1.0], [2.0, 2.0, 4.0], ["a", "a", "b"])
    assert found is not None and found.value == pytest.approx((-0.5 - 1.5 - 0.25) / 3)
    assert tables.in_units([-1.0, -1.0], [2.0, -0.1], ["a", "b"]) is None  # taught nothing


def test_the_screen_splits_methods_and_restoration_is_compared_at_matched_forgetting(study):
    table = tables.methods_table(study)
    found = rows(table)
    assert found["kl_reversion"]["excluded by the screen"] == Share(12, 12)
    assert found["kl_reversion"]["rated adequate"] == Share(12, 12)
    assert found["gate_mask"]["excluded by the screen"] == Share(0, 8)
    assert found["task_vector"]["retain NLL beyond the injected model"] == pytest.approx(2.8)
    assert found["ga"]["median gap"] == pytest.approx(5.9)
    assert found["ga"]["forget NLL beyond the reference"] == pytest.approx(5.9)
    # Within 1 nat of npo (+0.15) lie the task vectors (+0.3), not kl_reversion (-1.5): 4 a cell.
    assert tables.matched_forgetting(study) == [pytest.approx((0.6, 2.0))] * 24
    assert " 24" in table.reading


def test_four_probes_are_vacuous_and_sixteen_are_not(study):
    found = rows(tables.fewer_probes_table(study))
    assert list(found) == list(range(1, 17))
    assert found[16]["cells that can exclude"] == Share(6, 6)
    assert found[16]["excluded"] == Share(12, 56) and found[16]["at the smallest p"] == 12
    assert found[16]["smallest p"] == pytest.approx(1 / 4845)
    # 10 candidates at 0.05 need 200 arrangements, 8 need 160: C(9, 4) = 126, C(10, 4) = 210.
    vacuous = [n for n in found if found[n]["cells that can exclude"].count == 0]
    assert vacuous == [1, 2, 3, 4, 5]
    assert all(found[n]["excluded"].count == 0 for n in vacuous)


def test_survivors_are_not_all_equivalent(study):
    found = rows(tables.survivors_table(study))
    assert found["survivors"]["count"] == Share(44, 56)
    # |gap|: gate_mask 0.1 (8), task_vector 0.2 (12), ga 5.9 (12), npo 0.05 (12).
    assert found["median |gap|, nats"]["estimate"].value == pytest.approx(0.2)
    shares = found["median |gap|, share of what was taught"]["estimate"]
    assert shares.value == pytest.approx(0.1)
    common, own = found["equivalent at median delta_f"], found["equivalent at family's delta_f"]
    assert (common["margin"].low, common["margin"].high) == pytest.approx((1.0, 1.0))
    assert (own["margin"].low, own["margin"].high) == pytest.approx((0.8, 1.2))
    assert common["count"] == own["count"] == Share(32, 44)


def test_every_component_of_the_absolute_bar_is_counted(study, tmp_path):
    def counts(table: Table, model: str) -> tuple[int, ...]:
        row = rows(table)[model]
        return tuple(row[part].count for part in ("screen", "retain", "residual", "all three"))

    table = tables.absolute_table(study)
    assert counts(table, "reference") == (6, 0, 0, 0) and counts(table, "injected") == (0, 0, 0, 0)
    assert rows(table)["injected"]["retain NLL, median and range"] == Estimate(1.2, 1.2, 1.2)

    def change(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        low = replace(models["reference"], retain=0.4, residual=0.15 if "seed0" in cell else 0.3)
        ga = replace(models["ga-w1"], retain=0.5, residual=0.25)
        return models | {"reference": low, "ga-w1": ga}

    table = tables.absolute_table(read_study(paper_run(tmp_path / "run", change=change)))
    assert counts(table, "reference") == (6, 6, 3, 3)
    # At the limit passes: "at most 0.5". The sum of two parts of 0.25 is 0.5.
    assert counts(table, "ga") == (12, 6, 6, 6) and counts(table, "all candidates")[-1] == 6


def test_the_floor_rises_with_the_budget_as_planted(study):
    records = tables.budget_table(study).records()
    points = [row for row in records if row["family"] == "qwen2"]
    assert [row["steps"] for row in points] == [15, 30, 45, 60, 75]
    medians = [row["residual, median and range"].value for row in points]
    assert medians == pytest.approx([0.36, 0.72, 1.08, 1.44, 1.8])
    assert [row["at most the limit"].count for row in points] == [4, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("model", "accepted"),
    [
        ("base", (6, 6, 0, 0, 0, 0)),
        ("injected", (0, 0, 6, 0, 0, 0)),
        ("reference", (6, 6, 6, 6, 6, 6)),
        ("suppression", (6, 6, 6, 6, 6, 0)),
        ("router", (0, 6, 6, 0, 0, 0)),
        ("embedding", (6, 0, 0, 0, 0, 0)),
        ("left-75", (0, 0, 6, 0, 0, 0)),
        ("left-50", (0, 4, 6, 0, 0, 0)),
        ("npo candidates", (12, 12, 12, 12, 12, 0)),
        ("ga candidates", (12, 0, 12, 0, 0, 0)),
    ],
)
def test_known_label_models_are_accepted_where_planted(study, model, accepted):
    records = tables.known_label_table(study).records()
    (row,) = [r for r in records if r["model"] == model and r["family"] == "all"]
    assert tuple(row[words].count for words in tables.BATTERIES.values()) == accepted
    families = [r for r in records if r["model"] == model and r["family"] != "all"]
    assert sum(r["screen alone"].count for r in families) == accepted[0]
    if model == "router":
        assert row["forward battery: upper bound"] == pytest.approx(1 - 0.05 ** (1 / 6))
        assert row["forward battery: by architecture"] == pytest.approx(1 - 0.05 ** (1 / 3))


def test_without_tolerances_only_the_screen_judges(tmp_path):
    found = read_study(paper_run(tmp_path / "run", ["gpt2-s"], skip=["gpt2-s--seed0"]))
    row = rows(tables.known_label_table(found))["suppression"]
    assert row["screen alone"] == Share(1, 1) and row["forward battery"].total == 0
    assert not tables.recalibrated_table(found).rows and not tables.replication_table(found).rows


def test_the_recalibrated_bar_is_counted_by_method_and_family(study):
    table = tables.recalibrated_table(study)
    found = {(row["version"], row["method"]): row for row in table.records()}
    bare, veto = "family's delta_f, no veto", "family's delta_f, relearn veto"
    assert found[bare, "all methods"]["all families"] == Share(20, 56)
    assert found[bare, "all methods"]["cells with a pick"] == Share(6, 6)
    assert found[veto, "gate_mask"]["qwen2"] == Share(8, 8)
    assert found[veto, "gate_mask"]["gpt2"] == Share(0, 0)
    assert found[veto, "all methods"]["cells with a pick"] == Share(4, 6)


def test_selection_quality_by_hand(study):
    found = rows(tables.selection_table(study))
    ours, veto = found["recalibrated"], found["recalibrated, relearn veto"]
    trained = found["trained-probe"]
    assert (ours["same cells"], veto["same cells"], trained["same cells"]) == (6, 4, 6)
    assert ours["forget distance"].value == pytest.approx(0.05)
    assert veto["forget distance"].value == pytest.approx(0.1)
    assert veto["re-acquisition damage+"].value == pytest.approx(2.0 - (1.8 - 0.2))
    assert veto["trained-probe KL"].value == pytest.approx(0.7)
    assert trained["forget distance"].value == pytest.approx(1.6)
    assert (ours["within delta_f"], trained["within delta_f"]) == (Share(6, 6), Share(0, 6))
    assert found["absolute"]["same cells"] == 0 and found["absolute"]["forget distance"] is None
    # Selection by the smallest residual picks npo, which suppresses, in every cell.
    assert found["residual"]["suppression picked, all cells"] == Share(6, 6)
    assert veto["suppression picked, all cells"] == Share(0, 4)
