"""Locks: one owner at a time, named, and none that outlives its process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import palimpsest
from palimpsest.errors import FolderLocked
from palimpsest.run.disk import held_here, holder, lock

HEAD = "import os, sys, time\nfrom pathlib import Path\nfrom palimpsest.run.disk import *\n"
HOLD = """
with lock(Path(sys.argv[1]), "palimpsest study"):
    print("held", flush=True)
    sys.stdin.readline()
"""
HOLD_AND_FORK = """
with lock(Path(sys.argv[1]), "parent"):
    if os.fork() == 0:
        assert not held_here(Path(sys.argv[1]))
        print("held", flush=True)
        sys.stdin.readline()
        os._exit(0)
    time.sleep(600)
"""
ASK = """
print("held", flush=True)
while True:
    holder(Path(sys.argv[1]))
"""
CONTEND = """
path = Path(sys.argv[1])
for _ in range(15):
    with lock(path, "worker", wait=500):
        os.close(os.open(path.with_name("inside"), os.O_CREAT | os.O_EXCL))  # fails if not alone
        path.with_name("count").write_text(str(int(path.with_name("count").read_text()) + 1))
        path.with_name("inside").unlink()
"""


@contextmanager
def child(code: str, path: Path) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD + code, str(path)],
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.lock"


def test_a_second_command_is_told_who_holds_the_folder(path: Path) -> None:
    with child(HOLD, path) as process:
        who = rf"palimpsest study \(pid {process.pid} on "
        with pytest.raises(FolderLocked, match=who), lock(path, "second"):
            pass
        assert f"pid {process.pid} on" in (holder(path) or "")
        process.send_signal(signal.SIGKILL)
        process.wait()
        # A dead owner's lock is free, whatever its file says.
        assert path.exists() and holder(path) is None
        with lock(path, "heir"):
            assert (holder(path) or "").startswith("heir (pid")


def test_a_lock_ends_with_its_owner_though_a_forked_child_lives_on(path: Path) -> None:
    with child(HOLD_AND_FORK, path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with lock(path, "heir"):
            pass


def test_a_command_that_waits_gets_the_folder_when_it_is_free(path: Path) -> None:
    with child(HOLD, path) as process:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        with lock(path, "second", wait=500):
            assert (holder(path) or "").startswith("second (pid")


def test_a_lock_is_not_shared_within_a_process_and_its_file_stays(path: Path) -> None:
    with lock(path, "first"):
        assert held_here(path)
        with pytest.raises(FolderLocked, match=f"pid {os.getpid()}"), lock(path, "again"):
            pass
        assert held_here(path)
    assert path.exists() and not held_here(path) and holder(path) is None


def test_asking_who_holds_a_lock_never_makes_a_claim_fail(path: Path) -> None:
    with lock(path, "first"):
        pass
    with child(ASK, path):
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            with lock(path, "worker"):
                pass


def test_never_two_at_a_time(path: Path) -> None:
    path.with_name("count").write_text("0")
    environment = os.environ | {"PYTHONPATH": str(Path(palimpsest.__file__).parents[1])}
    command = [sys.executable, "-c", HEAD + CONTEND, str(path)]
    workers = [subprocess.Popen(command, env=environment) for _ in range(4)]
    assert [worker.wait() for worker in workers] == [0] * 4
    assert path.with_name("count").read_text() == "60"
