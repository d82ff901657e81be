"""What `palimpsest status` knows: the steps at work, the time left, and when the work has ended."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
from toy_cell import STEPS, work

from palimpsest.run import progress
from palimpsest.run.graph import Step
from palimpsest.run.locks import lock
from palimpsest.run.status import StepAtWork, status
from palimpsest.run.store import Run

Tell = Callable[..., None]
GRAPH = tuple(Step(name, f"doing {name}", cost=cost) for name, cost in zip(STEPS, (4.0, 1.0, 1.0)))


@pytest.fixture
def tell(run: Run) -> Iterator[Tell]:
    """Write a line of progress of a live worker at a second."""
    progress.write_graph(run.path, {"a": GRAPH, "b": GRAPH})
    with ExitStack() as stack:
        alive: set[str] = set()

        def write(second: float, worker: str, event: str, **data: Any) -> None:
            if worker not in alive:
                alive.add(worker)
                stack.enter_context(lock(progress.worker_lock(run.path, worker), worker))
            time = datetime.fromtimestamp(1e9 + second, UTC).isoformat()
            with open(run.path / "progress" / f"{worker}.jsonl", "a") as file:
                file.write(json.dumps({"time": time, "event": event} | data) + "\n")

        yield write


def test_a_live_worker_says_its_step_and_for_how_long(run: Run, tell: Tell) -> None:
    tell(0, "worker-0", "begun", cell="a", step="injected")
    tell(2, "worker-1", "begun", cell="b", step="injected")
    seen = status(run, 1e9 + 5)
    assert seen.now == (
        StepAtWork("worker-0", "a", "injected", "doing injected", 5.0),
        StepAtWork("worker-1", "b", "injected", "doing injected", 3.0),
    )
    assert seen.running == ("a", "b") and seen.working and seen.seconds_left is None
    tell(6, "worker-0", "done", cell="a", step="injected", seconds=6.0)
    assert [step.cell for step in status(run).now] == ["b"]


def test_the_time_left_is_the_cost_left_at_the_pace_so_far_shared_by_the_workers(
    run: Run, tell: Tell
) -> None:
    work(run.cell("a"), STEPS[:1], finish=False)
    tell(0, "worker-0", "begun", cell="a", step="injected")
    tell(40, "worker-0", "done", cell="a", step="injected", seconds=40.0)  # cost 4: 10 s a unit
    tell(40, "worker-0", "begun", cell="a", step="ga-w3")
    tell(40, "worker-1", "begun", cell="b", step="injected")
    # Cost 2 in a, 6 in b: 80 s, of which each of two workers has spent 4 s.
    assert status(run, 1e9 + 44).seconds_left == pytest.approx((80 - 8) / 2)
    # A step that takes longer than expected does not make the rest shorter.
    assert status(run, 1e9 + 1040).seconds_left == pytest.approx((80 - 10 - 40) / 2)


def test_the_last_word_of_a_dead_worker_is_not_believed(run: Run) -> None:
    progress.note(run.path, "worker-0", "begun", cell="a", step="injected")
    seen = status(run)
    assert seen.now == () and seen.running == () and "a" in seen.waiting


def test_an_interrupted_cell_shows_its_steps_of_how_many(run: Run, tell: Tell) -> None:
    work(run.cell("a"), STEPS[:2], finish=False)
    seen = status(run)
    assert seen.waiting == ("a", "b") and seen.steps["a"] == ("ga-w3", "injected")
    assert seen.totals == {"a": 3, "b": 3}


def test_work_is_seen_by_the_lock_and_ends_with_it(run: Run) -> None:
    assert not status(run).working
    with run.lock("somebody"):
        assert status(run).working
    assert not status(run).working


def test_progress_that_is_not_ours_says_nothing(run: Run, tell: Tell) -> None:
    tell(0, "worker-0", "begun", cell="a", step="injected")
    lines = b'[]\n"x"\n{"cell":"a"}\n{"cell":"a","event":"begun","time":"never"}\n{"event":1}\n'
    lines += b'\xff\n{"c'
    (run.path / "progress" / "worker-0.jsonl").write_bytes(lines)
    (run.path / "progress" / "steps.json").write_bytes(b'{"a": 7}')
    seen = status(run)
    assert seen.now == () and seen.seconds_left is None and seen.totals == {}


def test_reading_makes_no_file(run: Run) -> None:
    before = sorted(run.path.rglob("*"))
    status(run)
    assert sorted(run.path.rglob("*")) == before
