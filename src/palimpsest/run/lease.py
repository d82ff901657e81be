"""Leases: one live process at a time works on a run folder, or on a cell.

A lease is a file locked with flock(2). The kernel gives the lock back when its owner dies, however
it dies, so a dead owner's lease is simply free: there is no expiry to guess and no race between two
heirs. The file says who holds it, for people. On storage shared between machines the lock must
reach across them (NFS, CephFS, GPFS and Lustre mounted with `-o flock` do).
"""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from palimpsest.errors import LeaseHeld, StoreError
from palimpsest.run.disk import begin, canonical, disk_errors, make_folder

_POLL = 0.02

_held: "set[Lease]" = set()


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a lease: what it is doing, where, and since when."""

    owner: str
    host: str
    boot: str
    pid: int
    started: str  # the process's start in clock ticks since boot, so that a pid cannot be mistaken
    since: str

    def __str__(self) -> str:
        return f"{self.owner or 'a process'} (pid {self.pid} on {self.host}, since {self.since})"


class Lease:
    """A lease held by this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def still_held(self) -> bool:
        """Whether this process still holds it: not released, not deleted, not inherited by fork."""
        try:
            mine, now = os.fstat(self.descriptor), os.stat(self.path)
        except OSError:
            return False
        return (mine.st_dev, mine.st_ino) == (now.st_dev, now.st_ino)


@contextlib.contextmanager
def lease(path: Path, owner: str, *, wait: float = 0.0) -> Iterator[Lease]:
    """Hold the lease at `path`, or raise LeaseHeld saying who does after `wait` seconds."""
    path = Path(path)
    make_folder(path.parent)
    deadline = time.monotonic() + wait
    while (taken := _take(path, owner)) is None:
        if time.monotonic() >= deadline:
            raise LeaseHeld(
                f"{path}: held by {holder(path) or 'another process'}; expected nobody; "
                "wait for it or stop it, then run the same command again"
            )
        time.sleep(_POLL)
    try:
        yield taken
    finally:
        _release(taken)


def let_go() -> None:
    """Give back what a request to stop, raised at an odd instant, may have left in our hands."""
    for taken in list(_held):
        _release(taken)


def holder(path: Path) -> Owner | None:
    """Who holds the lease at `path` now, or None when nobody alive does."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if _lock(descriptor, fcntl.LOCK_SH):
            return None
        return Owner(**json.loads(os.pread(descriptor, 65_536, 0)))
    except (ValueError, TypeError):  # between taking the lock and signing it
        return Owner("", "an unknown machine", "", 0, "", "just now")
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _take(path: Path, owner: str) -> Lease | None:
    """The lease, or None when a live process holds it."""
    while True:
        with disk_errors(path, "lock"):
            begin("lease", path)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            taken = Lease(path, os.open(path, flags, 0o644))
            _held.add(taken)
            try:
                locked = _lock(taken.descriptor, fcntl.LOCK_EX)
                # The owner before may have removed the file after it was opened here: try again.
                if locked and taken.still_held():
                    os.ftruncate(taken.descriptor, 0)
                    os.pwrite(taken.descriptor, canonical(_signature(owner)) + b"\n", 0)
                    return taken
                # `holder` shares the lock for an instant to look: that is not an owner.
                held = not locked and not _lock(taken.descriptor, fcntl.LOCK_SH)
            except BaseException:
                _release(taken)
                raise
            _close(taken)
        if held:
            return None
        time.sleep(_POLL / 10)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _release(taken: Lease) -> None:
    # A lease that is ours is locked once more; one that was being asked for may be another's.
    if taken.still_held() and _lock(taken.descriptor, fcntl.LOCK_EX):
        # Removed while still locked, so that nobody can lock a file that is about to go.
        with contextlib.suppress(OSError):
            begin("release", taken.path)
            taken.path.unlink()
    _close(taken)


def _close(taken: Lease) -> None:
    descriptor, taken.descriptor = taken.descriptor, -1
    if descriptor >= 0:
        os.close(descriptor)
    _held.discard(taken)


def _signature(owner: str) -> dict[str, str | int]:
    return {
        "owner": owner,
        "host": socket.gethostname(),
        "boot": _proc("/proc/sys/kernel/random/boot_id").strip(),
        "pid": os.getpid(),
        # Field 22, counted after the command name, which may itself hold spaces and brackets.
        "started": (_proc("/proc/self/stat").rpartition(")")[2].split() + [""] * 20)[19],
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _proc(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _disown() -> None:
    """Let go of the parent's leases in a forked child, so that they end with the parent."""
    for taken in _held:
        with contextlib.suppress(OSError):
            os.close(taken.descriptor)
        taken.descriptor = -1
    _held.clear()


os.register_at_fork(after_in_child=_disown)


def require(taken: Lease | None, what: str, remedy: str) -> None:
    """Raise StoreError unless this process holds the lease."""
    if taken is None or not taken.still_held():
        raise StoreError(f"{what}: this process does not hold its lease; {remedy}")
