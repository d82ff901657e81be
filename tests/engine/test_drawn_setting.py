"""A plan's beacon changes what is measured, alike for every model, and nothing that is trained."""

from dataclasses import replace

import pytest
from palimpsest.engine.matrix import StudyJob, start
from tests.study.test_cell import small_plan

from palimpsest.adversaries.workshop import Schedule
from palimpsest.config.plan import Plan, plan_from_dict
from palimpsest.engine.setting import Setting, make_setting
from palimpsest.models.load import load


@pytest.fixture(scope="module")
def plan(tiny_checkpoint) -> Plan:  # type: ignore[no-untyped-def]
    plan = small_plan(tiny_checkpoint("qwen2-s"))
    # The draw depends on the checkpoint's path; so many steps have no order in common by chance.
    return replace(plan, round_trip=replace(plan.round_trip, steps=40))


@pytest.fixture(scope="module")
def both(plan) -> tuple[Setting, Setting]:  # type: ignore[no-untyped-def]
    tokenizer = load(plan.models[0]).tokenizer
    plain, drawn = (
        make_setting(replace(plan, beacon=text).cells()[0], tokenizer) for text in ("", "tuesday")
    )
    return plain, drawn


def test_what_is_trained_stays_and_what_is_asked_is_drawn(both) -> None:  # type: ignore[no-untyped-def]
    plain, drawn = both
    assert plain.facts.forget == drawn.facts.forget and plain.facts.retain == drawn.facts.retain
    assert plain.stream() == drawn.stream()
    assert plain.seen("forget") == drawn.seen("forget")
    assert not {fact.subject for fact in plain.facts.probe} & {
        fact.subject for fact in drawn.facts.probe
    }
    kept = {q.template for q in drawn.facts.questions if q.pool == "evaluation"}
    assert len(kept) == 2 and kept < {
        q.template for q in plain.facts.questions if q.pool == "evaluation"
    }
    assert 1 <= drawn.rate < 2 and plain.rate == 1 and plain.optimiser == "adamw"
    orders = [[step[0].batch.ids.tolist() for step in s.way_back_steps] for s in both]
    assert orders[0] != orders[1]


def test_an_adversary_is_given_the_published_schedule(plan, both, tmp_path) -> None:  # type: ignore[no-untyped-def]
    plain, _ = both
    run = start(replace(plan, beacon="tuesday"), tmp_path / "run")
    published: Schedule = StudyJob(run.path).cell(run.cells[0]).workshop.schedule()
    assert published.learning_rate == plan.round_trip.learning_rate
    for mine, theirs in zip(published.steps, plain.way_back_steps, strict=True):
        assert mine[0].batch.ids.equal(theirs[0].batch.ids)


def test_a_plan_without_beacon_is_written_as_before(plan) -> None:  # type: ignore[no-untyped-def]
    assert "beacon" not in plan.as_dict()
    text = replace(plan, beacon="tuesday")
    assert plan_from_dict(text.as_dict()) == text and text.hash() != plan.hash()
