"""A further axis is one entry of the table; every output of the report shows it by itself."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from report_runs import RULES, Made, cell_run, planted, write_run

from palimpsest.analysis.results import read_run
from palimpsest.criteria import axes as table
from palimpsest.criteria.axes import Axis
from palimpsest.criteria.rules import Rules
from palimpsest.report.figures import all_figures
from palimpsest.report.formats import as_csv
from palimpsest.report.html import write_report
from palimpsest.report.tables import all_tables
from palimpsest.report.terminal import candidate_lines

EXTRA = Axis(
    name="trained_probe",
    short="probed",
    meaning="Trained-probe KL from the reference, an axis that only this test knows.",
    read=lambda model: model.oracle_kl,
    needs="forward",
    stake="injected",
    low="is closer on trained probes than a retrained model",
    high="is further on trained probes than a retrained model",
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run judged with one more axis; on that only one candidate is off."""
    longer = (*table.AXES, EXTRA)
    monkeypatch.setattr(table, "AXES", longer)
    cell = "qwen2-s--seed0"
    models = planted(cell, 30)
    varied: dict[str, Made] = {}
    for place, (name, made) in enumerate(models.items()):
        varied[name] = replace(made, oracle_kl=0.5 + 0.01 * (place * 7 % 10))
    varied["replay-1"] = replace(varied["replay-1"], oracle_kl=2.0)
    del varied["replay-2"]
    return write_run(
        tmp_path / "run", {cell: varied}, rules=Rules(bootstrap_resamples=100).without("reversed")
    )


def test_a_new_axis_reaches_verdict_terminal_page_and_csv(run: Path) -> None:
    page = write_report(run)
    results = read_run(run)
    (cell,) = results.cells
    assert cell.verdict is not None
    finding = cell.verdict.finding("replay-1")
    assert finding.comparison is not None
    assert finding.comparison.worst.axis == "trained_probe" and not finding.clears
    told = candidate_lines(cell, 140)
    assert "probed" in told and EXTRA.meaning.rstrip(".")[1:] in " ".join(told.split())
    source = page.read_text()
    assert EXTRA.meaning in source and EXTRA.title in source
    tables = {one.name: one for one in all_tables(results)}
    rows = list(csv.DictReader(io.StringIO(as_csv(tables["candidates"]))))
    mine = next(row for row in rows if row["candidate"] == "replay-1")
    assert float(mine["trained probe"]) == pytest.approx(finding.comparison.z["trained_probe"])
    assert float(mine["trained probe, nats"]) == 2.0 and mine["worst axis"] == "trained probe"
    assert {row[3] for row in tables["positions"].rows} >= {"trained_probe"}
    assert "trained probe" in tables["controls"].columns
    pictures = {one.name: one.figure for one in all_figures(results)}
    labels = [tick.get_text() for tick in pictures["retrainings"].axes[0].get_yticklabels()]
    assert labels == [axis.title for axis in (*table.AXES[:8], EXTRA)]
    assert EXTRA.title in [panel.get_title(loc="left") for panel in pictures["measures"].axes]


def test_an_axis_left_out_of_the_rules_is_left_out_everywhere(tmp_path: Path) -> None:
    cell = "qwen2-s--seed0"
    kept = ("forget", "retain", "general")
    run = write_run(tmp_path / "run", {cell: planted(cell, 30)}, rules=Rules(axes=kept))
    results = read_run(run)
    tables = {one.name: one for one in all_tables(results)}
    assert "residual" not in tables["candidates"].columns
    pictures = {one.name: one.figure for one in all_figures(results)}
    labels = [tick.get_text() for tick in pictures["retrainings"].axes[0].get_yticklabels()]
    assert labels == list(kept)


def test_axes_are_shown_by_their_table(tmp_path: Path) -> None:
    results = read_run(cell_run(tmp_path / "run"))
    told = candidate_lines(results.cells[0], 140)
    for axis in table.chosen(RULES):
        assert axis.meaning.split(".")[0][1:] in " ".join(told.split())
