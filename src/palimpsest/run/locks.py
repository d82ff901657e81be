"""Locks on folders.

A lock is a file locked by ``filelock``. The kernel gives the lock back when its owner dies, however
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
from pathlib import Path

from filelock import FileLock, Timeout

from palimpsest.errors import FolderLocked
from palimpsest.run.files import disk_errors, make_folder, write_bytes
from palimpsest.run.signals import check_stop

# ``holder`` shares a lock for an instant to look at it; a claim retries for at least this long.
_LOOK = 0.25
# The locks this process holds; a forked child holds none of them.
_held: dict[Path, int] = {}


@contextlib.contextmanager
def lock(path: Path, owner: str, *, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock at ``path``, or raise FolderLocked naming the holder after ``wait`` seconds.

    path: resolved, as ``folder_path`` gives it; ``held_here`` compares it letter by letter.
    """
    make_folder(path.parent)
    file_lock = FileLock(path, thread_local=False, poll_interval=0.01)
    try:
        with disk_errors(path, "lock"):
            check_stop()
            try:
                file_lock.acquire(timeout=max(wait, _LOOK))
            except Timeout:
                raise FolderLocked(
                    f"{path}: held by {holder(path)}; expected it to be free; wait for that "
                    "process or stop it, then run the same command again"
                ) from None
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        who = f"{owner} (pid {os.getpid()} on {socket.gethostname()}, since {since})"
        write_bytes(_owner_file(path), who.encode())
        _held[path] = os.getpid()
        yield
    finally:
        if file_lock.is_locked:
            _held.pop(path, None)
            # The owner's name goes first: while it is there, the lock is held or its owner dead.
            with contextlib.suppress(OSError):
                _owner_file(path).unlink(missing_ok=True)
            file_lock.release(force=True)


def held_here(path: Path) -> bool:
    """Return whether this process holds the lock at ``path``."""
    return _held.get(path) == os.getpid()


def holder(path: Path) -> str | None:
    """Return who holds the lock at ``path`` now, for people; None when no live process does."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:
        with contextlib.suppress(OSError):
            return _owner_file(path).read_text(errors="replace")
        return "a process that has just started"
    finally:
        os.close(descriptor)


def _owner_file(path: Path) -> Path:
    return path.with_suffix(".owner")
