"""A model that cannot be measured costs no other a row; a beacon draws what is asked."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.cell.small import cell_work, small_plan

from palimpsest.cell.measure import (
    Measured,
    Scorer,
    Teachers,
    injected_teacher,
    reference_teacher,
    result_tables,
)
from palimpsest.cell.texts import CellTexts
from palimpsest.cell.work import CellWork
from palimpsest.config.sections import Reacquisition
from palimpsest.errors import ScoreError, TrainingDiverged
from palimpsest.known import Unavailable
from palimpsest.known.wrappers import Interpolated
from palimpsest.scoring.answers import score
from palimpsest.scoring.reacquisition import summarize

State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def bench():
    return cell_work(small_plan())


@pytest.fixture(scope="module")
def state(bench):
    return {name: value.clone() for name, value in bench.base.items()}


@pytest.fixture(scope="module")
def instrument(bench, state):
    net, setting = bench.nets([state]), bench.texts
    teachers = Teachers(injected_teacher(net, setting), reference_teacher(net, setting))
    return Scorer(setting, teachers)


def test_the_sound_members_of_a_stack_keep_their_rows(bench, state, instrument):
    name = "model.norm.weight"
    broken = state | {name: torch.full_like(state[name], float("nan"))}
    net = bench.nets([state, broken, state])
    results = instrument.measure(["first", "broken", "last"], net)
    assert results[1].failure is not None and results[1].failure.kind == "not_finite"
    made = result_tables(results)
    assert set(made["items"]["model"]) == set(made["curves"]["model"]) == {"first", "last"}
    assert np.isfinite(made["items"]["nll_sum"]).all()
    owners, sums = np.array(made["items"]["model"]), made["items"]["nll_sum"]
    assert np.allclose(sums[owners == "first"], sums[owners == "last"])
    with pytest.raises(ScoreError, match="broken"):
        results[1].check()
    Measured("sound").check()


def test_a_re_acquisition_that_diverges_names_its_step_and_the_rate(bench, state, instrument):
    rate = replace(instrument.texts.reacquisition, learning_rate=1e30)
    wild = Scorer(replace(instrument.texts, reacquisition=rate), instrument.teachers)
    (result,) = wild.measure(["model"], bench.nets([state]))
    assert result.failure is not None and result.failure.kind == "diverged"
    assert result.diverged is not None and "1e+30" in result.failure.reason
    assert result.items and not result.curves  # what was scored before is still there
    assert result_tables([result]) == {}
    with pytest.raises(TrainingDiverged, match=f"step {result.diverged}"):
        result.check()


def test_re_acquisition_is_left_out_where_it_is_not_asked_for(bench, state, instrument):
    (result,) = instrument.measure(["model"], bench.nets([state]), reacquired=False)
    assert len(result.items) == 1 and not result.curves


def test_the_curve_starts_from_the_forward_scores_of_each_model(bench, state, instrument):
    other = {name: value * 1.01 for name, value in state.items()}
    results = instrument.measure(["base", "other"], bench.nets([state, other]))
    for result, weights in zip(results, (state, other)):
        sheet = instrument.texts.reacquired_sheet
        scores = score(bench.nets([weights]), sheet, injected=instrument.teachers.injected)[0]
        first = summarize(sheet, scores)
        row = result.curves[0]
        for column in ("forget_trained_nll", "retain_nll", "residual_retain", "residual_general"):
            assert row[column][0] == pytest.approx(getattr(first, column), abs=1e-5)
    assert results[0].curves[0]["retain_nll"][0] != results[1].curves[0]["retain_nll"][0]


def test_only_equal_architectures_of_floating_point_weights_can_be_mixed():
    one, other = ({"w": torch.tensor([n, 2], dtype=torch.int8)} for n in (0, 1))
    with pytest.raises(Unavailable, match=r"w is torch\.int8"):
        Interpolated(one, other, 0.5)["w"]
    assert torch.equal(Interpolated(one, one, 0.5)["w"], one["w"])
    with pytest.raises(Unavailable, match="in the injected model only"):
        Interpolated({}, one, 0.5)["w"]


def drawn_setting(beacon: str) -> tuple[CellWork, CellTexts]:
    # So many steps have no order in common by chance.
    longer = Reacquisition(steps=40, chunks=2, learning_rate=1.5e-4, items=2)
    work = cell_work(small_plan(beacon=beacon, reacquisition=longer))
    return work, work.texts


def test_a_beacon_draws_what_is_asked_and_leaves_what_is_trained():
    (_, plain), (work, drawn) = (drawn_setting(text) for text in ("", "tuesday"))
    assert plain.facts.forget == drawn.facts.forget and plain.facts.retain == drawn.facts.retain
    assert plain.stream() == drawn.stream() and plain.seen("forget") == drawn.seen("forget")
    subjects = [{fact.subject for fact in setting.facts.probe} for setting in (plain, drawn)]
    assert not subjects[0] & subjects[1]
    kept, known = (
        {q.template for q in setting.facts.questions if q.pool == "evaluation"}
        for setting in (drawn, plain)
    )
    assert len(kept) == 2 and kept < known
    assert plain.beacon is None and drawn.beacon is not None and 1 <= drawn.beacon.rate < 2
    orders = [
        [step[0].batch.ids.tolist() for step in setting.reacquisition_steps]
        for setting in (plain, drawn)
    ]
    assert orders[0] != orders[1]
    # Adversaries are given the schedule as published, never the drawn one.
    published = work.adversary_kit.schedule(None)
    assert published.learning_rate == drawn.reacquisition.learning_rate
    for mine, theirs in zip(published.steps, plain.reacquisition_steps, strict=True):
        assert mine[0].batch.ids.equal(theirs[0].batch.ids)
