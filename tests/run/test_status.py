"""What `palimpsest status` knows: the step a cell is at, its pace, and when the work has ended."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from toy_cell import TERMS

from palimpsest.run import store
from palimpsest.run.status import Step, status
from palimpsest.run.store import Run


class Clock:
    """Stands in for `datetime`; its time is set by hand."""

    fromisoformat = staticmethod(datetime.fromisoformat)
    seconds = 1e9

    @classmethod
    def now(cls, zone: Any) -> datetime:
        return datetime.fromtimestamp(cls.seconds, UTC)


@pytest.fixture
def log(run: Run, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a line to the run's log at a second."""
    monkeypatch.setattr(store, "datetime", Clock)

    def write(second: float, event: str, **data: Any) -> None:
        Clock.seconds = 1e9 + second
        run.note(event, **data)

    return write


def begun(log: Any, second: float, cell: str, step: str, done: int, total: int = 4) -> None:
    log(second, "begun", cell=cell, step=step, done=done, total=total)


def test_a_running_cell_says_its_step_and_its_pace(run: Run, log: Any) -> None:
    with run.cell("a").claim():
        log(0, "started", cell="a")
        begun(log, 0, "a", "train", 0)
        first = status(run, 1e9 + 5)
        assert first.now == {"a": Step("train", 0, 4, 5.0, None)}
        assert first.seconds_left is None
        begun(log, 20, "a", "score", 2)
        # 10 s a step, two steps to go, 4 s of them spent; then all of cell b at 10 s a step.
        later = status(run, 1e9 + 24)
        assert later.now == {"a": Step("score", 2, 4, 4.0, 16.0)}
        assert later.seconds_left == pytest.approx(16 + 32)


def test_a_resumed_cell_is_paced_by_what_it_does_now(run: Run, log: Any) -> None:
    with run.cell("a").claim():
        begun(log, 0, "a", "train", 0)
        log(1000, "started", cell="a")
        begun(log, 1000, "a", "score", 2)
        assert status(run, 1e9 + 1000).now["a"].left is None
        begun(log, 1010, "a", "panel", 3)
        assert status(run, 1e9 + 1010).now["a"].left == pytest.approx(10)


def test_an_interrupted_cell_has_the_steps_it_was_told_of(run: Run, log: Any) -> None:
    with run.cell("a").claim() as claimed:
        begun(log, 0, "a", "train", 0)
        claimed.put("train")
        begun(log, 5, "a", "score", 1)
    seen = status(run)
    assert "a" in seen.waiting and seen.steps["a"] == ("train",)
    assert seen.totals == {"a": 4}


def test_work_is_seen_by_the_lease_and_ends_with_it(run: Run) -> None:
    assert not status(run).working
    with run.lease("somebody"):
        assert status(run).working
    assert not status(run).working
    with run.cell("b").claim():
        assert status(run).working


def test_a_log_that_is_not_ours_says_nothing(run: Run) -> None:
    lines = b'[]\n"x"\n{"cell":"a"}\n{"cell":"a","event":"begun","time":"never"}\n{"cell":"a'
    (run.path / "log.jsonl").write_bytes(lines)
    with run.cell("a").claim():
        seen = status(run)
        assert seen.now == {} and seen.seconds_left is None


def test_reading_makes_no_file(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", *TERMS, cells=("a",))
    before = sorted(run.path.rglob("*"))
    status(run)
    assert sorted(run.path.rglob("*")) == before
