"""Workers: what they compute, what they survive, how they stop. Most of it holds for any pool."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from palimpsest.run.graph import Failure
from palimpsest.run.locks import lock
from palimpsest.run.stop import Raised, shielded
from toy_job import STEPS, ToyCell, ToyJob, artifacts, toy_job, toy_run

import palimpsest
from palimpsest.errors import FolderLocked, InputError, ModelError, PalimpsestError
from palimpsest.run import disk, progress
from palimpsest.run.executor import (
    Event,
    InlineExecutor,
    Interrupted,
    OnEvent,
    Outcome,
    executor,
    silent,
)
from palimpsest.run.local import LocalExecutor
from palimpsest.run.status import status
from palimpsest.run.store import Run


def execute(run: Run, workers: int = 1, *, on_event: OnEvent = silent) -> Outcome:
    return LocalExecutor().execute(
        toy_job(run), run.path, run.cells, workers=workers, on_event=on_event
    )


def test_inline_one_worker_and_three_give_the_same_bytes(tmp_path: Path) -> None:
    cells = ["a", "b", "halts-1"]
    found = []
    for workers in (0, 1, 3):
        run = toy_run(tmp_path / str(workers) / "run", cells)
        which = InlineExecutor() if workers == 0 else LocalExecutor()
        outcome = which.execute(toy_job(run), run.path, cells, workers=max(1, workers))
        assert outcome == Outcome(("a", "b"), {}, {"halts-1": "not identifiable"}, ())
        assert run.verify() == ()
        found.append(artifacts(run.path))
    assert found[0] == found[1] == found[2]
    assert sum(name.endswith("items.parquet") for name in found[0]) == 2
    assert run.cell("a").summary()["threads"] == "1"
    # Two workers shared a cell; no step was done twice.
    lines = [entry for _, entry in progress.lines(run.path) if entry["event"] == "done"]
    assert len({(line["cell"], line["step"]) for line in lines}) == len(lines)


def test_faults_cost_their_own_step_and_what_needs_it(tmp_path: Path) -> None:
    cells = ["fails-1", "diverges-1", "silent-1", "dies-1", "doomed-1", "a"]
    run = toy_run(tmp_path / "run", cells)
    events: list[Event] = []
    outcome = execute(run, 2, on_event=events.append)

    assert set(outcome.done) == {"dies-1", "a"}
    failed = outcome.failed
    assert failed["fails-1"] == Failure("error", "ValueError: fails-1 was made to fail", "part-1")
    assert failed["diverges-1"].kind == "diverged"
    assert failed["silent-1"].kind == "store" and "without storing" in failed["silent-1"].reason
    assert failed["doomed-1"].kind == "worker lost" and "SIGKILL" in failed["doomed-1"].reason
    # What does not need the failed step was done.
    assert run.cell("fails-1").steps() == ("part-0", "part-2", "score", "train")
    # A worker that was killed costs its step a second beginning, once.
    assert [e.cell for e in events if e.kind == "again"].count("dies-1") == 1
    assert [e.cell for e in events if e.kind == "again"].count("doomed-1") == 1
    # What the store says is what was reported.
    assert status(run).failed == failed and set(status(run).done) == set(outcome.done)
    # A fault that nobody foresaw leaves its traceback in the progress.
    lines = [entry for _, entry in progress.lines(run.path)]
    assert any("made to fail" in line.get("traceback", "") for line in lines)
    done = [(line["cell"], line["step"]) for line in lines if line["event"] == "done"]
    assert len(done) == len(set(done))
    # The failed cells are tried again, and only what is missing of them.
    (run.path.parent / "doomed-1-died").touch()
    again: list[Event] = []
    second = InlineExecutor().execute(
        toy_job(run), run.path, ["fails-1", "a"], on_event=again.append
    )
    assert second.skipped == ("a",) and list(second.failed) == ["fails-1"]
    assert [event.step for event in again if event.kind == "step"] == ["part-1"]


class Choosy(ToyJob):
    def cell(self, cell_id: str) -> ToyCell:
        if cell_id == "b":
            raise ModelError("no such model")
        return super().cell(cell_id)


def test_a_cell_without_steps_to_do_fails_alone(tmp_path: Path) -> None:
    run = toy_run(tmp_path / "run", ["a", "b"])
    outcome = InlineExecutor().execute(Choosy(tmp_path), run.path, run.cells)
    failure = Failure("model_error", "no such model", "")
    assert (outcome.done, outcome.failed) == (("a",), {"b": failure})
    assert status(run).failed == {"b": failure}


def test_events_report_each_step_and_the_end_of_a_cell(tmp_path: Path) -> None:
    run = toy_run(tmp_path / "run", ["a"])
    events: list[Event] = []
    InlineExecutor().execute(toy_job(run), run.path, ["a"], on_event=events.append)
    begun = [(e.step, e.words, e.done, e.total) for e in events if e.kind == "step"]
    assert begun == [
        *((step.name, step.words, number, 6) for number, step in enumerate(STEPS)),
        ("finish", "finishing", 6, 6),
    ]
    assert [e.step for e in events if e.kind == "done"] == [*(s.name for s in STEPS), "finish"]
    assert all(e.seconds > 0 for e in events if e.kind == "done")
    assert (events[-1].kind, events[-1].cell) == ("finished", "a")


class Remembering(ToyCell):
    """Its cache is what it has seen: the summary says which steps one worker did."""

    def finish(self, cell: object) -> dict[str, object]:
        return {"seen": self.seen}


class RememberingJob(ToyJob):
    def cell(self, cell_id: str) -> ToyCell:
        return Remembering(cell_id, self.base)


def test_a_worker_keeps_the_work_of_its_cell_between_steps(tmp_path: Path) -> None:
    run = toy_run(tmp_path / "run", ["a", "b"])
    LocalExecutor().execute(RememberingJob(tmp_path), run.path, run.cells)
    assert run.cell("b").summary()["seen"] == [step.name for step in STEPS]


def test_finished_cells_are_not_touched_and_damaged_ones_are_done_again(tmp_path: Path) -> None:
    run = toy_run(tmp_path / "run", ["a", "b", "halts-1"])
    inline = InlineExecutor()
    inline.execute(toy_job(run), run.path, run.cells)
    sound = artifacts(run.path)
    files = [path for path in (run.path / "cells").rglob("*") if path.is_file()]
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files]
    outcome = inline.execute(toy_job(run), run.path, run.cells)
    assert outcome == Outcome((), {}, {"halts-1": "not identifiable"}, ("a", "b", "halts-1"))
    assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files] == before
    (run.path / "cells" / "a" / "items.parquet").write_bytes(b"")
    outcome = inline.execute(toy_job(run), run.path, run.cells)
    assert (outcome.done, outcome.skipped) == (("a",), ("b", "halts-1"))
    assert artifacts(run.path) == sound


def test_the_caller_may_hold_the_run_and_another_process_may_not(tmp_path: Path) -> None:
    run = toy_run(tmp_path / "run", ["a"])
    code = (
        "import sys, palimpsest.run.store as store\n"
        "with store.Run.open(sys.argv[1]).lock('another study'):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(run.path)],
        env=os.environ | {"PYTHONPATH": str(Path(palimpsest.__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(FolderLocked, match="another study"):
            InlineExecutor().execute(toy_job(run), run.path, run.cells)
    with run.lock("palimpsest study"):
        assert InlineExecutor().execute(toy_job(run), run.path, run.cells).done == ("a",)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_workers_and_keeps_what_is_stored(
    tmp_path: Path, signum: signal.Signals
) -> None:
    cells = ["held-1", "held-2"]
    run = toy_run(tmp_path / "run", cells)
    handler = signal.getsignal(signum)

    def stop_in_the_middle(event: Event) -> None:
        if event.step == "part-1":
            os.kill(os.getpid(), signum)

    with pytest.raises(Interrupted, match="0 of 2 cells are finished") as stopped:
        execute(run, 2, on_event=stop_in_the_middle)
    assert stopped.value.exit_code == 128 + signum
    assert signal.getsignal(signum) is handler
    assert not status(run).working and status(run).failed == {}
    assert any("train" in run.cell(cell).steps() for cell in cells)
    assert list(run.path.rglob(".tmp-*")) == []

    (tmp_path / "go").touch()
    resumed = InlineExecutor().execute(toy_job(run), run.path, cells)
    assert resumed.done == tuple(cells)
    whole = toy_run(tmp_path / "whole", cells)
    InlineExecutor().execute(toy_job(whole), whole.path, cells)
    assert artifacts(run.path) == artifacts(whole.path)


def test_workers_end_with_a_parent_that_is_killed_and_the_next_command_waits(
    tmp_path: Path,
) -> None:
    run = toy_run(tmp_path / "run", ["held-1", "held-2"])
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from toy_job import ToyJob\n"
        "from palimpsest.run.local import LocalExecutor\n"
        "if __name__ == '__main__':\n"
        "    job = ToyJob(Path(sys.argv[1]).parent)\n"
        "    LocalExecutor().execute(job, sys.argv[1], sys.argv[2:], workers=2)\n"
    )
    (tmp_path / "parent.py").write_text(script)
    source = f"{Path(palimpsest.__file__).parents[1]}:{Path(__file__).parent}"
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py"), str(run.path), *run.cells],
        env=os.environ | {"PYTHONPATH": source},
    )
    try:
        held = {("held-1", "part-1"), ("held-2", "part-1")}
        _until(lambda: {(work.cell, work.step) for work in status(run).now} == held)
        assert status(run).working
    finally:
        parent.kill()
        parent.wait()
    with run.lock():  # no worker of the command before is left
        assert progress.read(run.path).at_work == ()


def test_a_worker_that_lives_on_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = toy_run(tmp_path / "run", ["a"])
    monkeypatch.setattr("palimpsest.run.store.PATIENCE", 0.1)
    with (
        lock(progress.worker_lock(run.path, "worker-7"), "worker worker-7"),
        pytest.raises(FolderLocked, match="worker-7"),
        run.lock(),
    ):
        pass


def test_what_cannot_run_is_refused_by_name(tmp_path: Path) -> None:
    run = toy_run(tmp_path / "run", ["a"])
    job = toy_job(run)
    with pytest.raises(InputError, match="workers: 0 found"):
        LocalExecutor().execute(job, run.path, ["a"], workers=0)
    with pytest.raises(InputError, match="no cell 'b'"):
        LocalExecutor().execute(job, run.path, ["b"])
    with pytest.raises(InputError, match="expected local, ray or inline"):
        executor("slurm")
    with pytest.raises(InputError, match="not a run"):
        LocalExecutor().execute(job, tmp_path, ["a"])


class Unpicklable(ToyJob):
    def __reduce__(self) -> tuple[object, ...]:
        return (_refuse, ())


def _refuse() -> None:
    raise ImportError("no module of that name here")


def test_a_job_that_no_worker_can_load_is_one_error(tmp_path: Path) -> None:
    run = toy_run(tmp_path / "run", ["a"])
    with pytest.raises(PalimpsestError, match=r"no worker can start \(ImportError: no module"):
        LocalExecutor().execute(Unpicklable(tmp_path), run.path, ["a"])
    assert status(run).failed == {}


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


# -- requests to stop ------------------------------------------------------------------------------


class Asked(KeyboardInterrupt):
    pass


class _Swallower:
    """Its finaliser is where Python swallows whatever is raised."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_request_that_python_swallows_is_raised_again() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)}
    hook = sys.unraisablehook
    handler = Raised(lambda signum: Asked())
    handler.listen(signal.SIGTERM)
    try:
        with pytest.raises(Asked):
            _swallow()
    finally:
        handler.done()
    assert sys.unraisablehook is hook
    assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]
    signal.signal(signal.SIGALRM, before[signal.SIGALRM])


def _swallow() -> None:
    _Swallower()
    time.sleep(30)


def test_a_process_started_shielded_sees_no_signal_until_it_listens() -> None:
    handler = Raised(lambda signum: Asked())
    handler.listen(signal.SIGTERM)
    try:
        with pytest.raises(Asked), shielded():
            _listen_late()
    finally:
        handler.done()


def _listen_late() -> None:
    # To this thread: another one that a library started would take it, unshielded.
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    time.sleep(0.01)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    time.sleep(30)


def test_a_request_that_a_library_turns_into_an_error_stores_nothing(tmp_path: Path) -> None:
    run = toy_run(tmp_path / "run", ["a"])

    class Translating(ToyCell):
        def do(self, step: str, cell: object) -> None:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(30)
            except BaseException:
                raise ValueError("could not determine the shape") from None

    class Job(ToyJob):
        def cell(self, cell_id: str) -> ToyCell:
            return Translating(cell_id, self.base)

    handler = Raised(lambda signum: Asked())
    handler.listen(signal.SIGTERM)
    try:
        with pytest.raises(Asked):
            InlineExecutor().execute(Job(tmp_path), run.path, ["a"])
        with pytest.raises(Asked):
            disk.write_bytes(tmp_path / "late.json", b"{}")
    finally:
        handler.done()
    assert run.cell("a").failure() is None and not (tmp_path / "late.json").exists()
    disk.write_bytes(tmp_path / "later.json", b"{}")


@pytest.mark.parametrize("where", ["thread", "atexit"])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_interpreter_ends_breaks_nothing_off(
    where: str, signum: signal.Signals
) -> None:
    """The command is over: there is nothing to stop, and nobody left to say so."""
    script = (
        "import atexit, os, signal, sys, threading, time\n"
        "from palimpsest.run.stop import Raised\n"
        "def strike():\n"
        "    while threading.main_thread().is_alive():\n"
        "        time.sleep(0.001)\n"
        f"    os.kill(os.getpid(), {int(signum)})\n"
        "    time.sleep(0.1)\n"
        "    print('to the end')\n"
        "atexit.register(time.sleep, 0.1)\n"
        f"if {where!r} == 'thread':\n"
        "    threading.Thread(target=strike).start()\n"
        "else:\n"
        "    atexit.register(strike)\n"
        "Raised(lambda signum: KeyboardInterrupt()).listen(signal.SIGINT, signal.SIGTERM)\n"
        "sys.exit(3)\n"
    )
    source = str(Path(palimpsest.__file__).parents[1])
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "to the end\n", "")


def test_progress_is_legible_lines_of_json(tmp_path: Path) -> None:
    run = toy_run(tmp_path / "run", ["a"])
    InlineExecutor().execute(toy_job(run), run.path, ["a"])
    lines = (run.path / "progress" / "inline.jsonl").read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert events == ["begun", "done"] * 7 + ["ended"]
