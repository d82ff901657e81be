import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import palimpsest
from palimpsest.errors import LeaseHeld
from palimpsest.run import lease as lease_module
from palimpsest.run.lease import holder, lease, let_go

HOLD = """
import sys, time
from pathlib import Path
from palimpsest.run.lease import lease
with lease(Path(sys.argv[1]), "palimpsest study"):
    print("held", flush=True)
    sys.stdin.readline()
"""
HOLD_AND_FORK = """
import os, sys, time
from pathlib import Path
from palimpsest.run.lease import lease
with lease(Path(sys.argv[1]), "parent") as held:
    if os.fork() == 0:
        assert not held.still_held()
        print("held", flush=True)
        sys.stdin.readline()
        os._exit(0)
    time.sleep(600)
"""


@contextmanager
def child(code: str, path: Path) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        env=os.environ | {"PYTHONPATH": str(Path(palimpsest.__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_a_second_command_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    with child(HOLD, path) as process:
        who = rf"palimpsest study \(pid {process.pid} on "
        with pytest.raises(LeaseHeld, match=who), lease(path, "second"):
            pass
        found = holder(path)
        assert found is not None and found.pid == process.pid and found.boot and found.started


def test_a_dead_owners_lease_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    with child(HOLD, path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert path.exists() and holder(path) is None
    with lease(path, "heir"):
        found = holder(path)
        assert found is not None and found.owner == "heir"


def test_a_lease_ends_with_its_owner_though_a_forked_child_lives_on(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    with child(HOLD_AND_FORK, path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with lease(path, "heir"):
            pass


def test_a_command_that_waits_gets_the_folder_when_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    with child(HOLD, path) as process:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        with lease(path, "second", wait=500):
            assert holder(path).owner == "second"  # type: ignore[union-attr]


def test_a_lease_is_not_shared_within_a_process_and_is_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    with lease(path, "first") as held:
        with pytest.raises(LeaseHeld, match=f"pid {os.getpid()}"), lease(path, "again"):
            pass
        assert held.still_held()
    assert not held.still_held()
    assert not path.exists() and holder(path) is None


def test_a_lease_whose_file_was_deleted_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    with lease(path, "first") as held:
        path.unlink()
        assert not held.still_held()
        with lease(path, "second") as other:
            assert other.still_held()
            assert not held.still_held()


CONTEND = """
import os, sys
from pathlib import Path
from palimpsest.run.lease import lease
path = Path(sys.argv[1])
for _ in range(40):
    with lease(path, "worker", wait=500):
        inside = os.open(path.with_name("inside"), os.O_CREAT | os.O_EXCL)  # fails if not alone
        os.close(inside)
        path.with_name("count").write_text(str(int(path.with_name("count").read_text()) + 1))
        path.with_name("inside").unlink()
print("held", flush=True)
"""


def test_never_two_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    environment = os.environ | {"PYTHONPATH": str(Path(palimpsest.__file__).parents[1])}
    workers = [
        subprocess.Popen([sys.executable, "-c", CONTEND, str(tmp_path / "lease")], env=environment,
                         stdout=subprocess.DEVNULL)
        for _ in range(4)
    ]  # fmt: skip
    assert [worker.wait() for worker in workers] == [0] * 4
    assert (tmp_path / "count").read_text() == "160"


def test_asking_who_holds_a_lease_never_makes_a_claim_fail(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    ask = """
import sys, time
from pathlib import Path
from palimpsest.run.lease import holder
print("held", flush=True)
while True:
    holder(Path(sys.argv[1]))
"""
    with child(ask, path):
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            with lease(path, "worker"):
                pass


def test_an_interrupt_at_any_line_leaves_no_lease_behind(tmp_path: Path) -> None:
    path, module = tmp_path / "run", lease_module.__file__

    def attempt(fatal: int) -> int:
        """Raise at the `fatal`-th line that is run of the module; give how many there were."""
        seen = 0

        def at_each_line(frame: FrameType, event: str, _: object) -> Any:
            nonlocal seen
            if frame.f_code.co_filename != module:
                return None
            if event == "line":
                seen += 1
                if seen == fatal:
                    raise KeyboardInterrupt
            return at_each_line

        before = sys.gettrace()
        sys.settrace(at_each_line)
        try:
            with lease(path, "palimpsest study"):
                pass
        finally:
            sys.settrace(before)
        return seen

    lines = attempt(0)
    assert lines > 30
    for number in range(1, lines + 1):
        with pytest.raises(KeyboardInterrupt):
            attempt(number)
        let_go()
        with lease(path, "the next command"):
            pass
        assert not path.exists(), f"interrupted at line {number}"
