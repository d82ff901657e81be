"""Steps are addressed by what they depend on: only what is new or changed is computed."""

import shutil
from dataclasses import replace

import pytest
from toy import STEPS, ToyJob, contents, damage, do_steps, toy_run, work

from palimpsest.run.executor import Event
from palimpsest.run.store import Run


def computed(run: Run, job: ToyJob, reuse: Run | None = None) -> list[str]:
    """Do what is left; return the steps that were computed."""
    events: list[Event] = []
    outcome = work(run, job, on_event=events.append, reuse=reuse)
    assert outcome.failed == {} and run.verify() == ()
    steps = [event.step for event in events if event.kind == "done" and event.step != "finish"]
    assert len(steps) == outcome.computed
    return steps


@pytest.fixture
def one(quick):
    return toy_run(quick / "run", "a")


@pytest.fixture
def job(quick):
    return ToyJob(quick)


def test_one_more_candidate_costs_its_own_steps_wherever_it_stands(one, job):
    assert computed(one, job) == list(STEPS)
    rows = one.cell("a").table("items")
    for candidates in (
        ("part-0", "part-1", "part-2", "part-3"),
        ("part-9", "part-0", "part-1", "part-2", "part-3"),
    ):
        grown = replace(job, candidates=candidates)
        new = next(name for name in candidates if name not in one.cell("a").table("items")["model"])
        # Weights are not kept: the new candidate needs the training again.
        assert computed(one, grown) == ["train", new]
        assert not list(one.path.rglob("weights.safetensors"))
        after = one.cell("a").table("items")
        kept = after["model"] != new
        if new == "part-3":
            assert after["nll_sum"][kept].tolist() == rows["nll_sum"].tolist()
    assert computed(one, grown) == []


def test_a_grown_run_has_the_rows_of_one_made_at_once(one, job, quick):
    grown = replace(job, candidates=("part-0", "part-1"))
    computed(one, replace(job, candidates=("part-0",)))
    computed(one, grown)
    whole = toy_run(quick / "whole", "a")
    computed(whole, grown)
    assert contents(one.path) == contents(whole.path)


def test_an_edited_plug_in_redoes_its_own_rows_and_no_others(one, job):
    computed(one, job)
    before = one.cell("a").table("items")
    edited = replace(job, versions=(("part-1", 2),))
    assert computed(one, edited) == ["train", "part-1"]
    after = one.cell("a").table("items")
    changed = before["nll_sum"] != after["nll_sum"]
    assert set(before["model"][changed]) == {"part-1"}
    assert before["model"].tolist() == after["model"].tolist()
    # What the reference depends on changes the reference, and the panel that needs it.
    assert computed(one, replace(edited, versions=(("part-1", 2), ("reference", 2)))) == [
        "train", "reference", "panel",
    ]  # fmt: skip


def test_a_candidate_that_is_left_out_leaves_the_cell(one, job):
    computed(one, job)
    fewer = replace(job, candidates=("part-0", "part-2"))
    assert computed(one, fewer) == []
    assert "part-1" not in one.cell("a").table("items")["model"]
    # What the cell is not made of may be damaged; asked for again, it is computed again.
    damage(one.cell("a").folder / "steps" / "part-1" / "values.json", "flip")
    assert one.verify() == ()
    assert computed(one, job) == ["train", "part-1"]


def test_a_reused_run_gives_its_results_by_key_and_is_named_as_their_origin(one, job, quick):
    computed(one, job)
    before = contents(one.path)
    other = toy_run(quick / "other", "a", steps={"inject": 999})
    grown = replace(job, candidates=("part-0", "part-1", "part-5"))
    # The sealed pool is opened in the run that scores it: the panel is not taken over.
    assert computed(other, grown, reuse=one) == ["train", "part-5", "panel"]
    origins = {step["step"]: step["origin"] for step in other.cell("a").summary()["steps"]}
    taken = {"train", "reference", "part-0", "part-1"}
    assert {name for name, origin in origins.items() if origin} == taken
    assert {origins[name] for name in taken} == {one.rosters[-1].digest}
    assert contents(one.path) == before
    # The rows are those of the run they came from, and of one without reuse.
    alone = toy_run(quick / "alone", "a", steps={"inject": 999})
    computed(alone, grown)
    name = "cells/a/items.parquet"
    assert contents(other.path)[name] == contents(alone.path)[name]
    # The first origin is named, however often a result is taken over.
    third = toy_run(quick / "third", "a", steps={"inject": 7})
    computed(third, grown, reuse=other)
    assert third.cell("a").manifest("part-0")["origin"] == one.rosters[-1].digest
    assert third.cell("a").manifest("part-5")["origin"] == other.rosters[-1].digest
    # What was taken over is whole without the run it came from.
    shutil.rmtree(one.path)
    assert computed(other, grown) == []


def test_what_is_damaged_in_a_reused_run_is_computed(one, job, quick):
    computed(one, job)
    damage(one.cell("a").folder / "steps" / "part-0" / "items.parquet", "flip")
    damage(one.cell("a").folder / "steps" / "part-1" / "manifest.json", "flip")
    other = toy_run(quick / "other", "a", steps=7)
    assert computed(other, job, reuse=one) == ["train", "part-0", "part-1", "panel"]


def test_an_unfinished_run_can_be_reused(one, job, quick):
    do_steps(one, "a", "train", "reference", "part-2")
    other = toy_run(quick / "other", "a", steps=7)
    # Its weights are still there, so nothing is trained again; the other run keeps its own.
    assert computed(other, job, reuse=one) == ["part-0", "part-1", "panel"]
    assert not list(other.path.rglob("weights.safetensors"))
    (weights,) = one.path.rglob("weights.safetensors")
    damage(weights, "flip")
    third = toy_run(quick / "third", "a", steps=8)
    assert computed(third, job, reuse=one) == ["train", "part-0", "part-1", "panel"]
