"""Workers: what they compute, what they survive, how they stop. Most of it holds for any pool."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from toy import STEPS, ToyJob, digests, toy_run, work

import palimpsest
from palimpsest.errors import FolderLocked, MachineError, PalimpsestError
from palimpsest.run import executor, files
from palimpsest.run.executor import Event, OnEvent, Outcome, Work, silent
from palimpsest.run.locks import lock
from palimpsest.run.signals import Stopped, stop_signals
from palimpsest.run.status import progress_lines, read_progress, status, worker_lock
from palimpsest.run.steps import Failure
from palimpsest.run.store import Run

PATH = f"{Path(palimpsest.__file__).parents[1]}:{Path(__file__).parent}"


def execute(run: Run, workers: int = 1, *, on_event: OnEvent = silent) -> Outcome:
    job, how = ToyJob(run.path.parent), {"executor": "local", "workers": workers}
    return executor.execute(job, run, on_event=on_event, **how)


def test_inline_one_worker_and_three_give_the_same_bytes(quick):
    found = []
    for workers in (0, 1, 3):
        run = toy_run(quick / str(workers) / "run")
        outcome = execute(run, workers) if workers else work(run)
        assert outcome == Outcome(("a", "b"), {}, (), 2 * len(STEPS))
        assert run.verify() == ()
        found.append(digests(run.path))
    assert found[0] == found[1] == found[2]
    assert run.cell("a").summary()["threads"] == "1"
    # Workers shared the cells; no step was done twice.
    lines = [entry for _, entry in progress_lines(run.path) if entry["event"] == "done"]
    assert len({(line["cell"], line["step"]) for line in lines}) == len(lines) == 14


def test_a_worker_lost_after_its_last_write_takes_no_file_of_another_with_it(run):
    with run.lock():
        doing = Work(job := ToyJob(run.path.parent), run, silent)
        task = doing.next("worker-0")
        assert task is not None
        cell, store = job.cell(task.cell), run.cell(task.cell)
        cell.do(doing.scheduler.step(task), store)
        # Another worker is writing meanwhile.
        writing = store.folder / "steps" / "reference" / ".tmp-0123456789ab"
        writing.parent.mkdir()
        writing.write_bytes(b"half")
        doing.lost("worker-0", "killed")
        assert writing.exists() and doing.scheduler.progress(task.cell)[0] == 1
    execute(run)
    assert not writing.exists() and run.verify() == ()


def test_faults_cost_their_own_step_and_what_needs_it(quick):
    cells = ["fails-1", "diverges-1", "silent-1", "dies-1", "doomed-1", "a"]
    run = toy_run(quick / "run", *cells)
    events: list[Event] = []
    outcome = execute(run, 2, on_event=events.append)

    assert set(outcome.done) == {"dies-1", "a"}
    failed = outcome.failed
    assert failed["fails-1"] == Failure("error", "ValueError: fails-1 was made to fail", "part-1")
    kinds = {cell: failure.kind for cell, failure in failed.items()}
    assert kinds == {
        "fails-1": "error",
        "diverges-1": "diverged",
        "silent-1": "store",
        "doomed-1": "worker lost",
    }
    # What does not need the failed step was done.
    assert set(run.cell("fails-1").step_names()) == set(STEPS) - {"part-1"}
    # A step whose worker was killed is started again, once.
    assert [e.cell for e in events if e.kind == "again"].count("dies-1") == 1
    assert [e.cell for e in events if e.kind == "again"].count("doomed-1") == 1
    # What the store says is what was reported.
    assert status(run).failed == failed and set(status(run).done) == set(outcome.done)
    # An unforeseen fault leaves its traceback in the progress.
    lines = [entry for _, entry in progress_lines(run.path)]
    assert any("made to fail" in line.get("traceback", "") for line in lines)
    done = [(line["cell"], line["step"]) for line in lines if line["event"] == "done"]
    assert len(done) == len(set(done))
    # The failed cells are tried again, and only what is missing of them.
    again: list[Event] = []
    os.remove(quick / "doomed-1-died")
    second = execute(run, 1, on_event=again.append)
    assert set(second.skipped) == {"dies-1", "a"} and set(second.failed) == set(failed)
    assert {event.step for event in again if event.kind == "step"} == {"part-1"}


def test_a_cell_whose_steps_cannot_be_planned_fails_alone(quick):
    run = toy_run(quick / "run", "a", "unplanned-1")
    outcome = work(run)
    failure = Failure("model_error", "no such model", "")
    assert (outcome.done, outcome.failed) == (("a",), {"unplanned-1": failure})
    assert status(run).failed == {"unplanned-1": failure}


def test_a_fault_of_the_machine_ends_the_run_and_is_not_recorded(quick):
    run = toy_run(quick / "run", "memory-1", "a")
    with pytest.raises(MachineError):
        execute(run)
    assert status(run).failed == {} and not status(run).working


def test_finished_cells_are_not_touched(quick):
    run = toy_run(quick / "run")
    work(run)
    files = [path for path in (run.path / "cells").rglob("*") if path.is_file()]
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files]
    assert execute(run) == Outcome((), {}, ("a", "b"), 0)
    assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files] == before


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_workers_and_keeps_what_is_stored(quick, signum):
    cells = ("held-1", "held-2")
    run = toy_run(quick / "run", *cells)
    handler = signal.getsignal(signum)

    def stop_in_the_middle(event: Event) -> None:
        if event.step == "part-1":
            os.kill(os.getpid(), signum)

    with pytest.raises(Stopped) as stopped:
        execute(run, 2, on_event=stop_in_the_middle)
    assert stopped.value.exit_code == 128 + signum
    assert signal.getsignal(signum) is handler
    assert not status(run).working and status(run).failed == {}
    assert any("train" in run.cell(cell).step_names() for cell in cells)
    assert list(run.path.rglob(".tmp-*")) == []

    (quick / "go").touch()
    assert work(run).done == cells
    whole = toy_run(quick / "whole", *cells)
    work(whole)
    assert digests(run.path) == digests(whole.path)


PARENT = """
import sys
from pathlib import Path
from toy import ToyJob
from palimpsest.run.executor import execute
from palimpsest.run.store import Run
if __name__ == "__main__":
    run = Run.open(sys.argv[1])
    execute(ToyJob(run.path.parent), run, workers=2, executor="local")
"""


def test_workers_end_with_a_command_that_is_killed_and_the_next_command_waits(quick):
    run = toy_run(quick / "run", "held-1", "held-2")
    (quick / "parent.py").write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(quick / "parent.py"), str(run.path)],
        env=os.environ | {"PYTHONPATH": PATH},
    )
    try:
        held = {("held-1", "part-1"), ("held-2", "part-1")}
        _until(lambda: {(work.cell, work.step) for work in status(run).now} == held)
        assert status(run).working
        with pytest.raises(FolderLocked, match=f"pid {parent.pid}"):
            work(run)
    finally:
        parent.kill()
        parent.wait()
    with run.lock():  # no worker of the killed command is left
        assert read_progress(run.path).at_work == ()
        (quick / "go").touch()
        assert work(run).done == run.cells  # the caller may hold the run itself


def test_a_worker_that_lives_on_is_named(quick, monkeypatch):
    run = toy_run(quick / "run", "a")
    monkeypatch.setattr("palimpsest.run.store.PATIENCE", 0.1)
    with (
        lock(worker_lock(run.path, "worker-7"), "worker worker-7"),
        pytest.raises(FolderLocked, match="worker-7"),
        run.lock(),
    ):
        pass


class Unpicklable(ToyJob):
    def __reduce__(self) -> tuple[object, ...]:
        return (_refuse, ())


def _refuse() -> None:
    raise ImportError("no module of that name here")


def test_a_job_that_no_worker_can_load_is_one_error(quick):
    run = toy_run(quick / "run", "a")
    with pytest.raises(PalimpsestError, match="ImportError"):
        executor.execute(Unpicklable(quick), run, executor="local")
    assert status(run).failed == {}


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


class _Swallower:
    """Its finalizer is where Python swallows whatever is raised."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_is_noted_where_python_swallows_exceptions_and_raised_before_the_next_write(quick):
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals() as stop:
        _Swallower()
        assert stop.signum == signal.SIGTERM
        with stop_signals() as inner:
            assert inner is stop
        with pytest.raises(Stopped):
            files.write_bytes(quick / "late.json", b"{}")
        with pytest.raises(Stopped):  # a second one does not wait for a write
            signal.raise_signal(signal.SIGINT)
    assert os.listdir(quick) == [] and signal.getsignal(signal.SIGTERM) == before
    files.write_bytes(quick / "later.json", b"{}")


def test_a_signal_that_a_library_turns_into_an_error_is_no_failure_of_the_step(quick):
    run = toy_run(quick / "run", "stopped-1")
    with stop_signals(), pytest.raises(Stopped):
        work(run)
    assert run.cell("stopped-1").failure() is None
