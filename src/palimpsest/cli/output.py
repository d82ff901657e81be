"""Where text goes: the answer to stdout, progress and all else to stderr and to a tracker."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palimpsest.report.tracking import Tracking
    from palimpsest.run.executor import Event, OnEvent

REFRESH = 0.5
"""Seconds between two looks at a run that is shown on a terminal."""


def answer(value: Any) -> None:
    """Print the answer on stdout: text as it is, anything else as one JSON document."""
    if not isinstance(value, str):
        value = json.dumps(value, indent=2, allow_nan=False, default=str)
    sys.stdout.write(value + "\n")


def say(text: str) -> None:
    """Print what is not the answer on stderr, with control characters escaped."""
    shown = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
    sys.stderr.write(shown + "\n")
    sys.stderr.flush()


@contextlib.contextmanager
def tracked(name: str | None) -> Iterator["Tracking | None"]:
    """Provide the tracker of that name, or None; a missing package is refused before any work."""
    if name is None:
        yield None
        return
    from palimpsest.report.tracking import Tracking

    tracking = Tracking(name, say)
    try:
        yield tracking
    finally:
        tracking.end()


class Watch:
    """Shows a run on stderr: on a terminal what ``status`` shows, else one line per event."""

    def __init__(self) -> None:
        self._live: Any = None
        self._next = 0.0

    def __enter__(self) -> "Watch":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, markup=False, highlight=False)
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, run: Path) -> "OnEvent":
        """Return what shows the events of a run."""
        return partial(self._show, run)

    def _say(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text)
        else:
            say(text)

    def _show(self, run: Path, event: "Event") -> None:
        if event.kind == "run":
            self._say(event.words)
        elif event.kind == "step" and self._live is None:
            self._say(f"{event.cell}: {event.words} ({event.done}/{event.total})")
        elif event.kind == "again":
            self._say(f"{event.cell}: {event.words}")
        elif event.kind == "finished":
            self._say(f"{event.cell}: finished")
        elif event.kind in ("failed", "halted"):
            self._say(f"{event.cell}: {event.step} {event.kind}: {event.words}")
        if self._live is not None and (began := time.monotonic()) > self._next:
            from palimpsest.report.live import view
            from palimpsest.run.status import status

            self._live.update(view(run.name, status(run)), refresh=True)
            # A look at a run of many steps takes long; it must not hold up the scheduling.
            took = time.monotonic() - began
            self._next = began + max(REFRESH, 20 * took)
