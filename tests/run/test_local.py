"""Worker processes of this machine: what they compute, what they survive, how they stop."""

import contextlib
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
from toy_cells import artifacts, go, toy_run

import palimpsest
from palimpsest.errors import InputError, LeaseHeld
from palimpsest.run import disk
from palimpsest.run import executor as shared
from palimpsest.run.executor import Event, Interrupted, do_cell, executor
from palimpsest.run.local import LocalExecutor
from palimpsest.run.status import status
from palimpsest.run.stop import Leave, leave_when_told, shielded

TOY = "toy_cells:toy_cell"


@pytest.fixture
def toy() -> LocalExecutor:
    return LocalExecutor(function=TOY)


def test_one_worker_and_three_give_the_same_bytes(tmp_path: Path, toy: LocalExecutor) -> None:
    cells = ["a", "b", "c", "d"]
    found = []
    for workers in (1, 3):
        run = toy_run(tmp_path / f"run-{workers}", cells)
        outcome = toy.execute(run.path, cells, workers=workers)
        assert outcome.done == tuple(cells)
        assert run.verify() == ()
        found.append(artifacts(run.path))
    assert found[0] == found[1]
    assert sum(name.endswith("items.parquet") for name in found[0]) == 4


def test_faults_cost_their_own_cell_and_no_other(tmp_path: Path, toy: LocalExecutor) -> None:
    cells = ["fails-1", "dies-1", "doomed-1", "a", "b"]
    run = toy_run(tmp_path / "run", cells)
    events: list[Event] = []
    outcome = toy.execute(run.path, cells, workers=2, on_event=events.append)

    assert set(outcome.done) == {"dies-1", "a", "b"}
    assert outcome.failed["fails-1"] == "ValueError: fails-1 was made to fail"
    assert "SIGKILL" in outcome.failed["doomed-1"]
    # A worker that was killed costs its cell a second beginning, once.
    assert [e.cell for e in events if e.kind == "again"].count("dies-1") == 1
    assert [e.cell for e in events if e.kind == "again"].count("doomed-1") == 1
    # What the store says is what was reported.
    assert status(run).failed == outcome.failed
    assert set(status(run).done) == set(outcome.done)
    # Nothing that was stored before the kill is made again.
    log = [json.loads(line) for line in (run.path / "log.jsonl").read_text().splitlines()]
    steps = [(line["cell"], line["step"]) for line in log if line["event"] == "step"]
    assert len(steps) == len(set(steps))
    # A fault that nobody foresaw leaves its traceback in the log.
    assert any("made to fail" in line.get("traceback", "") for line in log)


def test_events_tell_each_step_and_the_end_of_a_cell(tmp_path: Path, toy: LocalExecutor) -> None:
    run = toy_run(tmp_path / "run", ["a"])
    events: list[Event] = []
    toy.execute(run.path, ["a"], workers=2, on_event=events.append)
    assert [(e.kind, e.label, e.done, e.total) for e in events] == [
        ("step", "train-injected", 0, 4),
        ("step", "models", 1, 4),
        ("step", "candidates-00", 2, 4),
        ("step", "panel", 3, 4),
        ("step", "finish", 4, 4),
        ("finished", "", 0, 0),
    ]


def test_a_worker_has_one_thread_and_the_pool_file(tmp_path: Path, toy: LocalExecutor) -> None:
    run = toy_run(tmp_path / "run", ["a"])
    before = os.environ.get("OMP_NUM_THREADS")
    toy.execute(run.path, ["a"], pool_file=tmp_path / "pool.json")
    assert run.cell("a").summary()["threads"] == "1"
    assert run.cell("a").summary()["pool"] == "pool.json"
    assert os.environ.get("OMP_NUM_THREADS") == before


def test_finished_cells_are_not_touched(tmp_path: Path, toy: LocalExecutor) -> None:
    run = toy_run(tmp_path / "run", ["a", "b"])
    toy.execute(run.path, ["a", "b"])
    files = [path for path in run.path.rglob("*") if path.is_file()]
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files]
    # Were a cell begun, the function that does not exist would fail it.
    outcome = LocalExecutor(function="nowhere:cell").execute(run.path, ["a", "b"])
    assert outcome.skipped == ("a", "b")
    assert not outcome.done and not outcome.failed
    assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files] == before


def test_a_finished_cell_that_was_damaged_is_done_again(tmp_path: Path, toy: LocalExecutor) -> None:
    run = toy_run(tmp_path / "run", ["a", "b"])
    toy.execute(run.path, ["a", "b"])
    sound = artifacts(run.path)
    (run.path / "cells" / "a" / "items.parquet").write_bytes(b"")
    outcome = toy.execute(run.path, ["a", "b"])
    assert (outcome.done, outcome.skipped) == (("a",), ("b",))
    assert sound.items() <= artifacts(run.path).items()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_workers_in_good_order(
    tmp_path: Path, toy: LocalExecutor, signum: signal.Signals
) -> None:
    cells = ["held-1", "held-2", "held-3"]
    run = toy_run(tmp_path / "run", cells)
    handler = signal.getsignal(signum)

    def stop_in_the_middle(event: Event) -> None:
        if event.done == 2:
            os.kill(os.getpid(), signum)

    with pytest.raises(Interrupted, match="0 of 3 cells are finished") as stopped:
        toy.execute(run.path, cells, workers=2, on_event=stop_in_the_middle)
    assert stopped.value.exit_code == 128 + signum
    assert signal.getsignal(signum) is handler
    assert list((run.path / ".leases").iterdir()) == []
    assert status(run).failed == {}
    assert any(len(run.cell(cell).steps()) >= 2 for cell in cells)

    go(run.path).touch()
    outcome = toy.execute(run.path, cells, workers=2)
    whole = toy_run(tmp_path / "whole", cells)
    toy.execute(whole.path, cells, workers=3)
    assert outcome.done == tuple(cells)
    assert artifacts(run.path) == artifacts(whole.path)


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    run = toy_run(tmp_path / "run", ["held-1", "held-2"])
    script = (
        "import sys\n"
        "from palimpsest.run.local import LocalExecutor\n"
        "if __name__ == '__main__':\n"
        f"    LocalExecutor(function={TOY!r}).execute(sys.argv[1], sys.argv[2:], workers=2)\n"
    )
    (tmp_path / "parent.py").write_text(script)
    source = f"{Path(palimpsest.__file__).parents[1]}:{Path(__file__).parent}"
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py"), str(run.path), *run.cells],
        env=os.environ | {"PYTHONPATH": source},
    )
    try:
        _until(lambda: len(status(run).running) == 2)
    finally:
        parent.kill()
        parent.wait()
    _until(lambda: not status(run).running)


def test_a_cell_whose_owner_is_about_to_go_is_waited_for(tmp_path: Path) -> None:
    run = toy_run(tmp_path / "run", ["a"])
    held, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with run.cell("a").claim("a worker that is dying"):
            held.set()
            enough.wait(120)

    owner = threading.Thread(target=hold)
    owner.start()
    assert held.wait(120)
    threading.Timer(0.5, enough.set).start()
    assert do_cell(TOY, run.path, "a", None, lambda *step: None) is None
    owner.join()
    assert run.cell("a").finished()


def test_a_cell_that_stays_with_another_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "PATIENCE", 0.0)
    run = toy_run(tmp_path / "run", ["a"])
    with run.cell("a").claim("another study"):
        reason = do_cell(TOY, run.path, "a", None, lambda *step: None)
    assert reason is not None
    assert reason.startswith(LeaseHeld.__name__)
    assert "another study" in reason


def test_what_cannot_run_is_refused_by_name(tmp_path: Path, toy: LocalExecutor) -> None:
    run = toy_run(tmp_path / "run", ["a"])
    with pytest.raises(InputError, match="workers: 0 found"):
        toy.execute(run.path, ["a"], workers=0)
    with pytest.raises(InputError, match="no cell 'b'"):
        toy.execute(run.path, ["b"])
    with pytest.raises(InputError, match="expected local or ray"):
        executor("slurm")
    with pytest.raises(InputError, match="not a run"):
        toy.execute(tmp_path, ["a"])
    missing = executor("local", function="nowhere:cell").execute(
        run.path, ["a"], workers=1, on_event=shared.silent
    )
    assert "nowhere" in missing.failed["a"]


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


class _Swallower:
    """Its finaliser is where Python swallows whatever is raised."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_request_to_leave_that_python_swallows_is_raised_again() -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)}
    hook = sys.unraisablehook

    def work() -> None:
        _Swallower()
        time.sleep(30)

    with pytest.raises(Leave), leave_when_told():
        work()
    assert sys.unraisablehook is hook
    assert signal.getsignal(signal.SIGTERM) == handlers[signal.SIGTERM]
    signal.signal(signal.SIGALRM, handlers[signal.SIGALRM])


def test_a_worker_told_to_leave_before_it_listens_leaves_when_it_does() -> None:
    with shielded():
        # To this thread: another one that a library started would take it, unshielded.
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Leave), leave_when_told():
            time.sleep(30)


def test_a_request_to_leave_that_a_library_turns_into_an_error_stores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = toy_run(tmp_path / "run", ["a"])

    def translated(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
        except BaseException:
            raise ValueError("could not determine the shape") from None

    monkeypatch.setattr(shared, "imported", lambda _: translated)
    with pytest.raises(Leave), leave_when_told():
        do_cell(TOY, run.path, "a", None, lambda *_: None)
    assert run.cell("a").ended() is False

    def tried_again() -> None:
        with contextlib.suppress(ValueError):
            translated()
        disk.write_bytes(tmp_path / "late.json", b"{}")

    with pytest.raises(Leave), leave_when_told():
        tried_again()
    assert not (tmp_path / "late.json").exists()
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
