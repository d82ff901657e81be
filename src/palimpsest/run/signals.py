"""SIGINT and SIGTERM: noted, and acted on between two operations.

A handler that raises can be swallowed where Python ignores exceptions (finalizers, fork hooks). So
the command only notes a signal, and ``check_stop``, called before every write and in every wait,
raises. A second signal raises at once, for code that never gets there.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM ended the work, in good order; nothing that was stored is lost."""

    def __init__(self, signum: int, detail: str = "finished steps are kept") -> None:
        name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
        super().__init__(f"stopped by {name}: {detail}; run the same command again to resume")
        self.signum = signum
        self.exit_code = 128 + signum


class StopSignal:
    """The first SIGINT or SIGTERM; ``reader`` is a descriptor that can be waited on for it."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self.owner = os.getpid()
        self.reader, self.writer = os.pipe()

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        again, self.signum = self.signum is not None, self.signum or signum
        os.write(self.writer, b"x")
        if again:
            raise Stopped(self.signum)


_current: StopSignal | None = None


@contextlib.contextmanager
def stop_signals() -> Iterator[StopSignal]:
    """Note SIGINT and SIGTERM while the block runs; inside another such block, share its note."""
    global _current
    if _current is not None and _current.owner == os.getpid():
        yield _current
        return
    stop, before = StopSignal(), dict[int, Any]()
    # Only the main thread may set handlers; elsewhere the program around us decides.
    if threading.current_thread() is threading.main_thread():
        # A signal that the program was started to ignore stays ignored.
        kept = [n for n in SIGNALS if signal.getsignal(n) != signal.SIG_IGN]
        before = {n: signal.signal(n, stop) for n in kept}
    _current = stop
    try:
        yield stop
    finally:
        _current = None
        for signum, handler in before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        os.close(stop.reader)
        os.close(stop.writer)


def check_stop() -> None:
    """Raise ``Stopped`` if this process was asked to stop."""
    if _current is not None and _current.signum is not None and _current.owner == os.getpid():
        raise Stopped(_current.signum)


def ignore_signals() -> None:
    """Ignore SIGINT and SIGTERM from now on."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Block SIGINT and SIGTERM in processes started meanwhile, until they unblock them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set(SIGNALS))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
