"""Locks: one owner at a time, named, and none that outlives its process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import palimpsest
from palimpsest.errors import FolderLocked
from palimpsest.run.locks import held_here, holder, lock

HEAD = "import os, sys, time\nfrom pathlib import Path\nfrom palimpsest.run.locks import *\n"
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
def path(tmp_path):
    return tmp_path / "run.lock"


def test_a_second_command_is_told_who_holds_the_folder(path):
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


def test_a_lock_ends_with_its_owner_though_a_forked_child_lives_on(path):
    with child(HOLD_AND_FORK, path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with lock(path, "heir"):
            pass


def test_a_lock_is_not_shared_within_a_process_and_its_file_stays(path):
    with lock(path, "first"):
        assert held_here(path)
        with pytest.raises(FolderLocked, match=f"pid {os.getpid()}"), lock(path, "again"):
            pass
        assert held_here(path)
    assert path.exists() and not held_here(path) and holder(path) is None
