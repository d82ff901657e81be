"""What `palimpsest status` knows: the steps at work, the time left, and when the work has ended."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
from toy import ToyJob, do_steps, work

from palimpsest.run.files import write_digested
from palimpsest.run.locks import lock
from palimpsest.run.status import StepAtWork, note, status, worker_lock, write_graph
from palimpsest.run.steps import Failure

Tell = Callable[..., None]


@pytest.fixture
def tell(run):
    """Write a line of progress of a live worker at a second."""
    steps = ToyJob(run.path).cell("a").steps
    write_graph(run.path, {"a": steps, "b": steps})
    with ExitStack() as stack:
        alive: set[str] = set()

        def write(second: float, worker: str, event: str, **data: Any) -> None:
            if worker not in alive:
                alive.add(worker)
                stack.enter_context(lock(worker_lock(run.path, worker), worker))
            time = datetime.fromtimestamp(1e9 + second, UTC).isoformat()
            with open(run.path / "progress" / f"{worker}.jsonl", "a") as file:
                file.write(json.dumps({"time": time, "event": event} | data) + "\n")

        yield write


def test_a_live_worker_says_its_step_and_for_how_long(run, tell):
    tell(0, "worker-0", "started", cell="a", step="train")
    tell(2, "worker-1", "started", cell="b", step="train")
    seen = status(run, 1e9 + 5)
    assert seen.now == (
        StepAtWork("worker-0", "a", "train", "doing train", 5.0),
        StepAtWork("worker-1", "b", "train", "doing train", 3.0),
    )
    assert seen.running == ("a", "b") and seen.working and seen.seconds_left is None
    tell(6, "worker-0", "done", cell="a", step="train", seconds=6.0)
    assert [step.cell for step in status(run).now] == ["b"]


def test_the_time_left_is_the_cost_left_at_the_pace_so_far_shared_by_the_workers(run, tell):
    do_steps(run, "a", "train")
    tell(0, "worker-0", "started", cell="a", step="train")
    tell(20, "worker-0", "done", cell="a", step="train", seconds=20.0)  # cost 2: 10 s a unit
    tell(20, "worker-0", "started", cell="a", step="reference")
    tell(20, "worker-1", "started", cell="b", step="train")
    # Cost 5 in a, 7 in b: 120 s, of which each of two workers has spent 4 s.
    assert status(run, 1e9 + 24).seconds_left == pytest.approx((120 - 8) / 2)
    # A step that takes longer than expected does not make the rest shorter.
    assert status(run, 1e9 + 1020).seconds_left == pytest.approx((120 - 10 - 20) / 2)


def test_the_last_minute_goes_by_the_pace_of_each_kind_and_the_longest_step(run, tell):
    for cell in ("a", "b"):
        do_steps(run, cell, "train", "reference", "part-0", "part-1")
        tell(0, "worker-0", "started", cell=cell, step="train")
        tell(100, "worker-0", "done", cell=cell, step="train", seconds=100.0)
    do_steps(run, "b", "part-2")
    tell(100, "worker-1", "started", cell="a", step="part-0")
    tell(101, "worker-1", "done", cell="a", step="part-0", seconds=1.0)
    # One part, and two panels of which nothing is known yet: they cost as the last steps did.
    panel = 201 / 5
    assert status(run, 1e9 + 101).seconds_left == pytest.approx((1 + 2 * panel) / 2)
    do_steps(run, "a", "part-2", "panel")
    tell(101, "worker-0", "started", cell="a", step="panel")
    tell(104, "worker-0", "done", cell="a", step="panel", seconds=3.0)
    # One step is left, which two workers cannot share.
    assert status(run, 1e9 + 104).seconds_left == pytest.approx(3.0)


def test_the_last_word_of_a_dead_worker_is_not_believed(run):
    note(run.path, "worker-0", "started", cell="a", step="train")
    seen = status(run)
    assert seen.now == () and seen.running == () and "a" in seen.waiting


def test_every_cell_has_its_state(run, tell):
    do_steps(run, "a", "train", "reference")
    seen = status(run)
    assert seen.waiting == ("a", "b") and seen.steps["a"] == ("reference", "train")
    assert seen.totals == {"a": 6, "b": 6}
    work(run)
    seen = status(run.path)
    assert (seen.planned, seen.done, seen.waiting) == (("a", "b"), ("a", "b"), ())
    # A finished cell whose growth failed has failed.
    failure = Failure("diverged", "loss is NaN", "part-3")
    run.cell("b").fail(failure)
    assert status(run).failed == {"b": failure} and status(run).done == ("a",)


def test_failed_candidates_of_a_finished_cell_are_named(run):
    work(run)
    cell = run.cell("a")
    failures = {"sound": None, "npo": "diverged", "odd": "not_applicable", "known": "diverged"}
    models = [
        {"name": name, "role": "known_label" if name == "known" else "candidate"}
        | ({"failure": {"kind": kind, "reason": "loss is nan"}} if kind else {})
        for name, kind in failures.items()
    ]
    summary = {key: value for key, value in cell.summary().items() if key != "digest"}
    write_digested(cell.folder / "cell.json", summary | {"models": models})
    seen = status(run)
    assert seen.done == ("a", "b") and seen.failed == {}
    assert seen.failed_candidates == {"a": {"npo": "loss is nan"}}


def test_work_is_seen_by_the_lock_and_ends_with_it(run):
    assert not status(run).working
    with run.lock("another command"):
        assert status(run).working
    assert not status(run).working
