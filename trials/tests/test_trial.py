"""The trial of criteria on planted scores: what is accepted, how the AUCs and the page come out."""

from dataclasses import replace

import numpy as np
import pytest
from tests.made_runs import matrix_run

from palimpsest.errors import InputError
from palimpsest.report.results import read_run
from palimpsest.report.table import Share
from palimpsest.stats.comparison import p_value, which_test
from palimpsest.stats.models import Role
from palimpsest_trials import criteria as catalogue
from palimpsest_trials.criteria.page import report_trial
from palimpsest_trials.criteria.trial import (
    REFERENCE,
    SAME_DRAW,
    aucs,
    compare_models,
    find_models,
    run_trial,
    threshold,
)

NONE = Share(0, 4)
"""Accepted in none of the four cells."""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Four cells with 21 references, of which "lens_best" sees suppression and "probability" not.

    "probability" also has a level of its own in each cell, which only calibration takes away.
    """
    folder = tmp_path_factory.mktemp("trial") / "run"
    read = read_run(matrix_run(folder, missing="", references=21))
    assert run_trial(read) is None
    with pytest.raises(InputError):
        report_trial(read)
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


def test_a_threshold_is_the_order_statistic_that_rejects_five_percent():
    assert threshold(np.arange(19.0)) == 18.0
    assert threshold(np.arange(18.0)) == np.inf  # too few for any threshold
    assert threshold(np.arange(39.0)) == 37.0


def test_aucs_within_and_pooled_are_those_of_all_pairs():
    good = [np.array([0.0, 1.0]), np.array([10.0, 11.0, 12.0])]
    bad = [np.array([1.0, 2.0]), np.array([11.0])]
    within, pooled = aucs(good, bad)
    assert within is not None and pooled is not None
    assert within.value == pytest.approx(np.mean([(1 + 0.5 + 1 + 1) / 4, 1.5 / 3]))
    pairs = [(b > g) + 0.5 * (b == g) for b in (1, 2, 11) for g in (0, 1, 10, 11, 12)]
    assert pooled.value == pytest.approx(np.mean(pairs))
    assert within.low is not None and within.low <= within.value
    alone, _ = aucs(good[:1], bad[:1])
    assert alone is not None and alone.low is None


@pytest.mark.parametrize("references", [22, 8])
def test_every_reference_is_compared_with_the_others_only(references):
    values = np.random.default_rng(1).normal(size=(references + 2, 2))
    p, statistic = compare_models(values, references, 0.05)
    bag, test = values[:references], which_test(references, 0.05)
    score, outside = p_value(values[-1], bag, test)
    _, inside = p_value(values[3], np.delete(bag, 3, axis=0), test)
    assert p[-1] == pytest.approx(float(outside)) and p[3] == pytest.approx(float(inside))
    assert statistic[-1] == pytest.approx(score)
    values[-1, 1] = np.nan
    again, _ = compare_models(values, references, 0.05)
    assert np.isnan(again[-1]) and again[3] == p[3]


def test_criteria_are_told_apart_by_what_they_accept(results):
    trial = run_trial(results)
    assert trial is not None
    rows = {(row.name, row.form): row for row in trial.rows}
    assert trial.cells == 4
    blind, seeing = rows["probability", "calibrated"], rows["lens_best", "calibrated"]
    assert seeing.accepted["suppression"] == NONE and blind.accepted["suppression"].count >= 3
    assert blind.accepted["injected"] == NONE and blind.accepted["fresh retraining"].total == 4
    raw = rows["probability", "published"]
    assert raw.accepted["injected"].count >= 2  # levels differ by cell
    assert raw.within is not None and raw.pooled is not None
    assert raw.within.value > raw.pooled.value + 0.03
    ours, more = rows["certificate", "calibrated"], rows["certificate + lens best", "calibrated"]
    assert ours.accepted["injected"] == NONE and more.accepted["suppression"] == NONE


def test_the_teacher_the_same_draw_and_candidates_are_not_in_the_bag(results):
    cell = results.cells[0]
    kinds = dict(find_models(cell))
    assert catalogue.find_teacher(cell.evaluation).name == "reference-1"
    assert "reference-1" not in kinds and kinds["reference-2"] == REFERENCE
    assert kinds["reference"] == SAME_DRAW and not SAME_DRAW.wrong
    assert not any(cell.models[name].role is Role.CANDIDATE for name in kinds)
    assert [kind.label for kind in kinds.values()].count("25% injected") == 1
