"""Tables and figures of a run: complete, the verdict's own numbers, and named from records."""

from dataclasses import replace

import pytest
from matplotlib.figure import Figure
from tests.made_runs import RULES, compared_cell, write_run

from palimpsest import plots
from palimpsest.errors import InputError
from palimpsest.report.canvas import FAR
from palimpsest.report.results import read_run
from palimpsest.report.table import Share, Table
from palimpsest.report.tables import candidates_table, run_tables
from palimpsest.stats import axes, rules
from palimpsest.stats.axes import AXES, Axis, Side, Sign, chosen


def column(table: Table, name: str) -> list:
    place = table.columns.index(name)
    return [row[place] for row in table.rows]


def test_every_table_has_a_reading_and_rows(results, single):
    for run in (results, single):
        tables = run_tables(run).values()
        assert all(table.reading.endswith(".") and table.rows for table in tables)
    named = set(run_tables(results)) - set(run_tables(single))
    assert named == {"leaderboard", "settings"}


def test_missing_cells_stand_in_the_cells_table(results):
    table = run_tables(results)["cells"]
    assert str(Share(3, 4)) in table.reading
    assert column(table, "state").count("waiting") == 1 and len(table.rows) == 4
    assert column(table, "detection limit")[0] == results.judged[0][1].detection_limit


def test_the_candidates_table_holds_the_verdicts_numbers(single):
    records = {row["candidate"]: row for row in candidates_table(single).records()}
    for finding in single.judged[0][1].findings:
        row, comparison = records[finding.name], finding.comparison
        assert comparison is not None
        assert (row["p"], row["label"]) == (comparison.p, finding.label)
        for axis in chosen(RULES):
            assert row[axis.title] == comparison.gaps[axis.name].sd
            assert row[f"{axis.title}, {axis.unit}"] == finding.values[axis.name]
    assert records["ga-w3"]["cost, retrainings"] == 0.5
    assert records["replay-1"]["cost, retrainings"] is None


def test_what_the_audit_notices_is_counted_by_kind(single, results):
    one = {row["model"]: row for row in run_tables(single)["power"].records()}
    assert one["25 % of the injected weights"]["was"] == Share(2, 2)
    assert one["25 % of the injected weights"]["rate at least"] == pytest.approx(0.05**0.5)
    assert one["known-label model"]["was"] == Share(2, 2)
    many = {row["model"]: row for row in run_tables(results)["power"].records()}
    assert many["router"]["was"] == Share(3, 3) and many["router"]["cells"] == 3
    assert many["injected"]["should be"] == "rejected"
    assert many["fresh retraining"]["should be"] == "accepted"


def test_axes_say_how_far_a_model_must_move_to_be_noticed(results):
    rows = {row["axis"]: row for row in run_tables(results)["axes"].records()}
    assert list(rows) == [axis.title for axis in chosen(RULES)]
    found = [verdict.sensitivity["relearn_early"] for _, verdict in results.judged]
    known = sorted(share for share in found if share is not None)
    limits = rows["relearn early"]["detected from"]
    assert (limits.low, limits.high) == (known[0], known[-1])
    assert rows["relearn early"]["detected in"] == Share(len(known), 3)


def test_a_further_axis_reaches_verdict_tables_and_picture(tmp_path, monkeypatch):
    sides = Side(Sign.FORGETS, "is lower"), Side(Sign.KNOWS, "is higher")
    extra = Axis("probed", "An axis only here.", lambda model: model.oracle_kl, *sides)
    for module in (axes, rules):
        monkeypatch.setattr(module, "AXES", (*AXES, extra))
    models = {
        name: replace(made, oracle_kl=0.5 + 0.01 * (place * 7 % 10))
        for place, (name, made) in enumerate(compared_cell("qwen2-s--seed0").items())
    }
    models["replay-1"] = replace(models["replay-1"], oracle_kl=2.0)
    results = read_run(write_run(tmp_path / "run", {"qwen2-s--seed0": models}))
    finding = results.judged[0][1].finding("replay-1")
    assert finding.label == "suppressed" and finding.failing[0].axis == "probed"
    assert "probed" in run_tables(results)["candidates"].columns
    labels = [tick.get_text() for tick in plots.retrainings(results).axes[0].get_yticklabels()]
    assert labels[-1] == "probed"


def test_figures_of_one_cell_and_of_several(single, results):
    for draw in (plots.retrainings, plots.forget_deltas, plots.relearning):
        assert isinstance(draw(single), Figure)
        assert isinstance(draw(results, results.cells[1].id), Figure)
    for draw in (plots.retrainings, plots.forget_deltas):
        with pytest.raises(InputError):
            draw(results)
    assert isinstance(plots.acceptance(results), Figure)
    assert len(plots.relearning(results).axes) == 2  # one panel per family
    with pytest.raises(InputError):
        plots.acceptance(single)
    with pytest.raises(InputError, match="ga-w3"):
        plots.retrainings(single, candidate="ga")


def test_the_picture_of_a_candidate_has_one_row_per_axis_and_names_its_distances(single):
    (panel,) = plots.retrainings(single, candidate="ga-w3").axes
    assert [t.get_text() for t in panel.get_yticklabels()] == [a.title for a in chosen(RULES)]
    comparison = single.judged[0][1].finding("ga-w3").comparison
    assert comparison is not None
    notes = [text.get_text() for text in panel.texts if "sd" in text.get_text()]
    assert notes == [f"{gap.sd:+.1f} sd" for gap in comparison.gaps.values()]
    places = [x for line in panel.lines for x in line.get_xdata()]
    assert max(map(abs, places)) <= 1.05 * FAR  # further out is drawn at the edge
