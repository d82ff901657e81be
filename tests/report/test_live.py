"""`palimpsest status` on a terminal and in a pipe: refreshed, ended with the work, no fuss."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from palimpsest.cli.output import Watch, follow, status_lines
from palimpsest.run.executor import Event
from palimpsest.run.status import Status, StepAtWork, duration, status
from palimpsest.run.steps import Failure
from palimpsest.run.store import Run, Terms

TERMS = Terms("study", {"name": "toy"}, {}, {"commitment": "c"}, {}, ("a", "b"))
FOLLOW = (
    "import sys; from palimpsest.cli.output import follow; "
    "follow(sys.argv[1], terminal=True, say=print)"
)
COMMAND = [sys.executable, "-c", FOLLOW]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create_or_resume(tmp_path / "run", TERMS)


def made(**changes: object) -> Status:
    values: dict[str, object] = {
        "planned": ("a", "b"),
        "done": (),
        "running": ("a",),
        "failed": {},
        "failed_candidates": {},
        "waiting": ("b",),
        "steps": {"a": ("draw",)},
        "totals": {"a": 4},
        "now": (StepAtWork("worker-0", "a", "train", "training the injected model", 100.0),),
        "working": True,
        "seconds_left": 8000.0,
    }
    return Status(**(values | changes))  # type: ignore[arg-type]


def test_lines_name_the_steps_at_work_and_the_time_left() -> None:
    assert status_lines(made()) == [
        "0 of 2 cells done, 1 running, 0 failed, 1 waiting",
        "about 2.2 h left",
        "running  a: training the injected model (1 of 4 steps done), for 2 min",
    ]


def test_failed_candidates_of_finished_cells_are_counted_and_named() -> None:
    told = status_lines(made(failed_candidates={"a": {"npo": "loss is nan\x1b"}}))
    assert told[0].endswith("candidates that failed: 1")
    assert told[-1] == r"failed   a: candidate npo: loss is nan\x1b"


def test_a_run_without_a_process_says_how_to_resume() -> None:
    told = status_lines(made(running=(), now=(), waiting=("a", "b"), working=False))
    assert told[1] == "No active process. Run the same command again to resume."
    assert not any("left" in line for line in told)


def test_reasons_cannot_command_the_terminal() -> None:
    failure = Failure("error", "\x1b[31m[red]x", "train")
    told = status_lines(made(failed={"b": failure}, waiting=()))
    assert told[-1] == r"failed   b: \x1b[31m[red]x"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "1 s"), (89, "89 s"), (95, "2 min"), (5400, "1.5 h"), (2e5, "2.3 days")],
)
def test_durations_are_in_the_usual_units(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_in_a_pipe_every_change_is_one_line_until_the_work_ends(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = (StepAtWork("worker-0", "a", "train", "training the injected model", 101.0),)
    looks = iter([made(), made(now=later), made(working=False)])
    monkeypatch.setattr("palimpsest.cli.output.status", lambda run: next(looks))
    said: list[str] = []
    follow(run.path, terminal=False, say=said.append, refresh=0)
    assert said == [
        "0 of 2 cells done, 1 running, 0 failed, 1 waiting; a: training the injected model (1 of "
        "4 steps done)",
    ]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_terminal_is_refreshed_until_the_work_ends_or_ctrl_c(run: Run, stopped: bool) -> None:
    with run.lock("work"):
        process, terminal = started(run)
        shown = read_until(terminal, "cells done")
        if stopped:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0 and status(run).working
    shown += read_until(terminal, None)
    assert process.wait(30) == 0 and "0 of 2 cells done, 0 running" in shown
    assert "Traceback" not in shown and "interrupted" not in shown


def test_a_pipe_gets_a_line_per_step_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("palimpsest.cli.output.status", lambda run: made())
    with Watch() as watch:
        watch.show(Event("", "run", words="RUN: 1 of 1 cells to do"))
        for done in (0, 1, 2):
            watch.show(Event("a", "step", "train", "training", done, 4))
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "a: training (0/4)"
    assert lines[2:] == [f"a: training ({n}/4, about 2.2 h left)" for n in (1, 2)]


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
        except OSError:  # how Linux reports that the other side is closed
            break
        if not data:
            break
        shown += data.decode(errors="replace")
        if word is not None and word in shown:
            break
    return shown
