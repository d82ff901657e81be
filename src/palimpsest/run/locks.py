"""Locks: one live process at a time works on a run folder, or under a worker's name.

A lock is a file locked by `filelock`. The kernel gives the lock back when its owner dies, however
it dies, so there is no expiry to guess. The file stays where it is; a second file beside it says
who holds the lock, for people. On storage shared between machines the lock must reach across them
(NFS, CephFS, GPFS and Lustre mounted with `-o flock` do).
"""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from palimpsest.errors import DamagedArtifact, FolderLocked, StoreError
from palimpsest.run import disk

# `holder` shares a lock for an instant to look at it; a claim retries for at least this long.
_LOOK = 0.25
_locks: set[FileLock] = set()


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a lock: what it is doing, where, and since when."""

    owner: str
    host: str
    pid: int
    since: str

    def __str__(self) -> str:
        return f"{self.owner or 'a process'} (pid {self.pid} on {self.host}, since {self.since})"


@contextlib.contextmanager
def lock(path: Path, owner: str, *, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock at `path`, or raise FolderLocked naming the holder after `wait` seconds."""
    path = Path(path).absolute()
    disk.make_folder(path.parent)
    file_lock = FileLock(path, thread_local=False, poll_interval=0.01)
    _locks.add(file_lock)
    try:
        with disk.disk_errors(path, "lock"):
            disk.begin("lock", path)
            locked = _acquire(file_lock, max(wait, _LOOK))
        if not locked:
            raise FolderLocked(
                f"{path}: held by {holder(path) or 'another process'}; expected it to be free; "
                "wait for that process or stop it, then run the same command again"
            )
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        who = {"owner": owner, "host": socket.gethostname(), "pid": os.getpid(), "since": since}
        disk.write_json(_owner_file(path), who)
        yield
    finally:
        _release(file_lock)


def held_here(path: Path) -> bool:
    """Return whether this process holds the lock at `path`."""
    name = str(Path(path).absolute())
    return any(file_lock.is_locked and file_lock.lock_file == name for file_lock in _locks)


def holder(path: Path) -> Owner | None:
    """Return who holds the lock at `path` now, or None when no live process does."""
    path = Path(path).absolute()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:
        with contextlib.suppress(DamagedArtifact, StoreError, TypeError):
            return Owner(**disk.read_json(_owner_file(path)))
        return Owner("", "an unknown machine", 0, "just now")
    finally:
        os.close(descriptor)


def _acquire(file_lock: FileLock, wait: float) -> bool:
    try:
        file_lock.acquire(timeout=wait)
    except Timeout:
        return False
    return True


def _release(file_lock: FileLock) -> None:
    if file_lock.is_locked:
        # The owner's name goes first: while it is there, the lock is held or its owner is dead.
        with contextlib.suppress(OSError):
            _owner_file(Path(file_lock.lock_file)).unlink(missing_ok=True)
        file_lock.release(force=True)
    _locks.discard(file_lock)


def _owner_file(path: Path) -> Path:
    return path.with_suffix(".owner.json")
