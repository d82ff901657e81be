"""The trial of criteria on planted scores: what is accepted, how the AUCs and the page come out."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report_runs import matrix_run

from palimpsest.analysis import criteria as trial_of
from palimpsest.analysis.criteria import aucs, compared, has_trial, run_trial, threshold
from palimpsest.analysis.results import RunResults, read_run
from palimpsest.criteria import catalogue
from palimpsest.criteria.retraining import p_value
from palimpsest.criteria.rules import Rules
from palimpsest.report.criteria_page import trial_tables, write_criteria
from palimpsest.report.formats import as_csv
from palimpsest.report.html import render_page
from palimpsest.report.record import Record
from palimpsest.report.tables import all_tables

RULES = Rules(bootstrap_resamples=200)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> RunResults:
    """Five cells with 22 references, of which "lens_best" sees suppression and "probability" not.

    "probability" also has a level of its own in each cell, which only calibration takes away.
    """
    read = read_run(matrix_run(tmp_path_factory.mktemp("trial") / "run", references=22))
    assert not has_trial(read)
    cells = []
    for number, cell in enumerate(read.cells):
        generator = np.random.default_rng(number)
        models = {}
        for name, model in cell.evaluation.models.items():
            known = 3.0 * (name == "injected")
            extra = {
                "probability": 10.0 * number + known + generator.normal(0, 0.1),
                "lens_best": known + 3.0 * ("suppression" in name) + generator.normal(0, 0.1),
            }
            models[name] = replace(model, extra=extra)
        cells.append(replace(cell, evaluation=replace(cell.evaluation, models=models)))
    return replace(read, cells=tuple(cells))


def test_a_threshold_is_the_order_statistic_that_rejects_five_percent() -> None:
    assert threshold(np.arange(19.0)) == 18.0
    assert threshold(np.arange(18.0)) == np.inf  # too few for any threshold
    assert threshold(np.arange(39.0)) == 37.0


def test_aucs_within_and_pooled_are_those_of_all_pairs() -> None:
    good = [np.array([0.0, 1.0]), np.array([10.0, 11.0, 12.0])]
    bad = [np.array([1.0, 2.0]), np.array([11.0])]
    within, pooled = aucs(good, bad, RULES)
    assert within is not None and pooled is not None
    assert within.estimate == pytest.approx(np.mean([(1 + 0.5 + 1 + 1) / 4, 1.5 / 3]))
    pairs = [(b > g) + 0.5 * (b == g) for b in (1, 2, 11) for g in (0, 1, 10, 11, 12)]
    assert pooled.estimate == pytest.approx(np.mean(pairs))
    assert within.low <= within.estimate <= within.high


def test_every_reference_is_compared_with_the_others_only() -> None:
    values = np.random.default_rng(1).normal(size=(24, 2))
    p, distance = compared(values, 22, ("two", "two"), 0.05)
    _, outside = p_value(values[23], values[:22], ("two", "two"), 0.05)
    _, inside = p_value(values[3], np.delete(values[:22], 3, axis=0), ("two", "two"), 0.05)
    assert p[23] == pytest.approx(float(outside)) and p[3] == pytest.approx(float(inside))
    assert np.isfinite(distance).all()
    values[23, 1] = np.nan
    assert np.isnan(compared(values, 22, ("two", "two"), 0.05)[0][23])


def test_criteria_are_told_apart_by_whom_they_accept(results: RunResults) -> None:
    assert has_trial(results)
    trial = run_trial(results)
    rows = {(row.name, row.form): row for row in trial.rows}
    assert trial.cells == 5
    blind, seeing = rows["probability", "calibrated"], rows["lens_best", "calibrated"]
    assert seeing.accepted["suppression"] == (0, 5) and blind.accepted["suppression"][0] >= 3
    assert blind.accepted["injected"] == (0, 5) and blind.fresh[1] == 5
    assert rows["probability", "published"].accepted["injected"][0] >= 3  # levels differ by cell
    raw = rows["probability", "published"]
    assert raw.within is not None and raw.pooled is not None
    assert raw.within.estimate > raw.pooled.estimate + 0.05
    ours, more = rows["certificate", "calibrated"], rows["certificate + lens best", "calibrated"]
    assert ours.accepted["injected"] == (0, 5) and more.accepted["suppression"] == (0, 5)


def test_the_first_references_and_candidates_are_not_in_the_bag(results: RunResults) -> None:
    panel = trial_of._Panel.of(results.cells[0])
    names = {model.name for model in panel.known}
    assert "reference-1" not in names and "reference-2" in names
    first = next(model for model in panel.known if model.name == "reference")
    assert first.kind == "other" and not panel.of_kind("reference")[panel.known.index(first)]
    assert not any(results.cells[0].roles[name]["role"] == "candidate" for name in names)


def test_the_page_and_its_tables_are_the_same_bytes_twice(
    results: RunResults, tmp_path: Path
) -> None:
    pages = [write_criteria(results, tmp_path / part) for part in ("first", "second")]
    files = [sorted(p.relative_to(tmp_path / part) for p in (tmp_path / part).rglob("*.*"))
             for part in ("first", "second")]  # fmt: skip
    assert pages[0] is not None and files[0] == files[1] and len(files[0]) == 13
    for file in files[0]:
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    text = pages[0].read_text()
    assert "Which criteria distinguish restored from suppressed models?" in text and "<svg" in text
    tables = all_tables(results)
    record = Record((), (), tables[0], tables[0])
    assert 'href="criteria.html"' in render_page(results, tables, (), record)
    rows = list(csv.DictReader(io.StringIO(as_csv(trial_tables(run_trial(results), RULES)[1]))))
    mine = [r for r in rows if (r["criterion"], r["model"]) == ("lens_best", "suppression")]
    assert {r["accepted"] for r in mine} == {"0"} and all(
        float(r["share high"]) > 0.5 for r in mine
    )


def test_the_catalogue_is_whole_and_every_measure_is_taken() -> None:
    from palimpsest.criteria.axes import OPTIONAL
    from palimpsest.scoring.measures import MEASURES

    assert set(catalogue.MEASURES) == set(MEASURES)
    assert {axis.measure for axis in OPTIONAL} <= set(MEASURES)
    published = {c.number for c in catalogue.CRITERIA if c.number}
    assert len([c for c in catalogue.CRITERIA if c.number]) >= 24 and len(published) >= 35
    assert all(set(c.inputs) <= set(catalogue.INPUTS) for c in catalogue.CRITERIA)


def test_a_curve_reaches_its_goal_between_two_chunks() -> None:
    assert catalogue.first_reached([0, 10, 20], [3.0, 2.0, 1.0], 1.5) == pytest.approx(15.0)
    assert catalogue.first_reached([0, 10], [1.0, 0.5], 1.5) == 0.0
    assert catalogue.first_reached([0, 10], [3.0, 2.0], 1.5) == 10.0
