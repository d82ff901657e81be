"""`palimpsest status` on a terminal and in a pipe: refreshed, ended with the work, no fuss."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from palimpsest.report.live import duration, status_lines, watch
from palimpsest.run.status import Status, Step, status
from palimpsest.run.store import Run

TERMS = ({"name": "toy"}, {"alpha": 0.05}, {}, {"commitment": "c"})
COMMAND = [sys.executable, "-m", "palimpsest.cli", "status"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run", *TERMS, cells=("a", "b"))


def made(**changes: object) -> Status:
    values: dict[str, object] = {
        "planned": ("a", "b"),
        "done": (),
        "running": ("a",),
        "failed": {},
        "waiting": ("b",),
        "steps": {"a": ()},
        "totals": {},
        "now": {"a": Step("train", 1, 4, 100.0, 300.0)},
        "working": True,
        "seconds_per_cell": None,
        "seconds_left": 8000.0,
    }
    return Status(**(values | changes))  # type: ignore[arg-type]


def test_lines_say_the_step_and_the_time_left() -> None:
    assert status_lines(made()) == [
        "0 of 2 cells done, 1 running, 0 failed, 1 waiting",
        "about 2 h 13 min left",
        "running  a: train (step 2 of 4), for 2 min, about 5 min left",
    ]


def test_a_run_nobody_works_on_says_how_to_go_on() -> None:
    told = status_lines(made(running=(), waiting=("a", "b"), working=False))
    assert told[1] == "nobody is working on it; run the same command again to go on"
    assert not any("left" in line for line in told)


def test_an_interrupted_cell_says_how_much_of_it_is_kept() -> None:
    steps = {"a": ("train", "models"), "b": ()}
    idle = {"running": (), "waiting": ("a", "b"), "working": False, "now": {}}
    told = status_lines(made(steps=steps, totals={"a": 4}, **idle))
    assert told[2:] == ["waiting  a: 2 of 4 steps kept"]
    assert status_lines(made(steps=steps, **idle))[2:] == ["waiting  a: 2 steps kept"]


def test_reasons_cannot_command_the_terminal() -> None:
    told = status_lines(made(failed={"b": "\x1b[31m[red]x"}, waiting=()))
    assert told[-1] == "failed   b: �[31m[red]x"


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (89, "89 s"), (95, "2 min"), (5399, "1 h 30 min")]
)
def test_durations_read_like_speech(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_in_a_pipe_every_change_is_one_line_until_the_work_ends(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([made(), made(now={"a": Step("train", 1, 4, 101.0, 299.0)}), made(working=False)])
    monkeypatch.setattr("palimpsest.report.live.status", lambda run: next(looks))
    said: list[str] = []
    watch(run.path, terminal=False, say=said.append, refresh=0)
    assert said == [
        "0 of 2 cells done, 1 running, 0 failed, 1 waiting; a: train (step 2 of 4)",
    ]


def test_a_terminal_is_refreshed_and_left_when_the_work_ends(run: Run) -> None:
    shown = on_a_terminal(run, lambda read: None)
    assert "0 of 2 cells done, 1 running" in shown
    assert "score (step 2 of 4)" in shown
    assert "Traceback" not in shown


def test_ctrl_c_ends_the_watching_cleanly(run: Run) -> None:
    with run.lease("work"), run.cell("a").claim():
        process, terminal = started(run)
        shown = read_until(terminal, "cells done")
        process.send_signal(signal.SIGINT)
        shown += read_until(terminal, None)
        assert process.wait(30) == 0
        assert "Traceback" not in shown and "interrupted" not in shown
        assert status(run).working


def test_a_pipe_gets_one_answer_at_once(run: Run) -> None:
    with run.lease("work"), run.cell("a").claim():
        done = subprocess.run([*COMMAND, str(run.path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.splitlines()[0] == "0 of 2 cells done, 1 running, 0 failed, 1 waiting"
    assert "\x1b" not in done.stdout


def on_a_terminal(run: Run, meanwhile: Callable[[int], None]) -> str:
    """What the command shows while a cell is worked on and then left."""
    with run.lease("work"), run.cell("a").claim():
        process, terminal = started(run)
        shown = read_until(terminal, "cells done")
        run.note("begun", cell="a", step="score", done=1, total=4)
        shown += read_until(terminal, "score")
    shown += read_until(terminal, None)
    assert process.wait(30) == 0
    return shown


def started(run: Run) -> tuple[subprocess.Popen[bytes], int]:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    process = subprocess.Popen(
        [*COMMAND, str(run.path)],
        stdout=theirs,
        stderr=theirs,
        stdin=theirs,
        env=environment,
        # A shell that runs the tests in the background has Ctrl-C ignored, and children inherit it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(theirs)
    return process, ours


def read_until(terminal: int, word: str | None) -> str:
    """What the terminal shows up to a word, or to the end."""
    shown = ""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            data = os.read(terminal, 65_536)
        except OSError:  # how Linux says that nobody holds the other side any more
            break
        if not data:
            break
        shown += data.decode(errors="replace")
        if word is not None and word in shown:
            break
    return shown
