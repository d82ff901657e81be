"""SIGINT and SIGTERM: noted where steps are scheduled, raised where work is done, never lost."""

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, ClassVar

AGAIN = 0.02
"""Seconds after which a request to stop that Python swallowed is raised again."""


class StopRequest:
    """The first SIGINT or SIGTERM, noted instead of raised at an odd instant."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self.reader, self.writer = os.pipe()

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None:
            # Asked twice: stop waiting for the workers.
            raise KeyboardInterrupt
        self.signum = signum
        os.write(self.writer, b"x")


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Note a SIGINT or SIGTERM instead of raising it; `reader` wakes a wait on files."""
    stop = StopRequest()
    before: dict[int, Any] = {}
    # Only the main thread may set handlers; elsewhere the program around us decides.
    if threading.current_thread() is threading.main_thread():
        before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
    left_early = True
    try:
        yield stop
        left_early = False
    finally:
        _restore(before)
        os.close(stop.reader)
        os.close(stop.writer)
        if stop.signum is not None and not left_early:
            # It came after the last check.
            signal.raise_signal(stop.signum)


def _restore(handlers: dict[int, Any]) -> None:
    for signum, handler in handlers.items():
        signal.signal(signum, signal.SIG_DFL if handler is None else handler)


class Raised:
    """A signal handler that raises `error(signum)`, for the main thread.

    What is raised in a finaliser, a weak reference's callback or a hook at fork is swallowed by
    Python: such a request is raised again a moment later. A library in whose middle it is raised
    may turn it into an error of its own: nothing is stored from then on (`check_stop`). A request
    that comes while the interpreter is ending finds nothing to stop.
    """

    asked: "ClassVar[Raised | None]" = None

    def __init__(self, error: Callable[[int], KeyboardInterrupt]) -> None:
        self.error = error
        self.signum: int | None = None
        self._last: KeyboardInterrupt | None = None
        self._before: dict[int, Any] = {}
        self._hook = sys.unraisablehook

    def listen(self, *signals: int) -> None:
        """Raise at these signals, but not at one that the program was started to ignore."""
        self._hook, sys.unraisablehook = sys.unraisablehook, self._swallowed
        for signum in signals:
            if signal.getsignal(signum) != signal.SIG_IGN:
                self._before[signum] = signal.signal(signum, self)
        # An alarm still set when Python gives its handlers up would kill the program.
        atexit.register(_no_alarm)

    def done(self) -> None:
        """Restore the handlers and the hook that were there before."""
        _no_alarm()
        _restore(self._before)
        sys.unraisablehook = self._hook
        Raised.asked = None

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if not threading.main_thread().is_alive():
            return
        Raised.asked = self
        self.signum = self.signum or signum
        self._last = self.error(self.signum)
        raise self._last

    def _swallowed(self, what: Any) -> None:
        if self._last is None or what.exc_value is not self._last:
            self._hook(what)
            return
        signal.signal(signal.SIGALRM, self)
        signal.setitimer(signal.ITIMER_REAL, AGAIN)


def _no_alarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)


def check_stop() -> None:
    """Raise a request to stop once more, for code that continues in spite of it."""
    if Raised.asked is not None:
        Raised.asked(0, None)


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Block SIGINT and SIGTERM in processes started meanwhile, until they unblock them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
