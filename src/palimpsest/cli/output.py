"""Where text goes: the answer to stdout, progress and all else to stderr and to a tracker."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palimpsest.report.tracking import Tracking
    from palimpsest.run.executor import Event, OnEvent


def answer(value: Any) -> None:
    """Print the answer on stdout: text as it is, anything else as one JSON document."""
    if not isinstance(value, str):
        value = json.dumps(value, indent=2, allow_nan=False, default=str)
    sys.stdout.write(value + "\n")


def say(text: str) -> None:
    """Print what is not the answer on stderr, with control characters escaped."""
    sys.stderr.write(_escaped(text) + "\n")
    sys.stderr.flush()


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


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
        self._run: Path | None = None
        self._live: Any = None
        self._seen: Any = ""
        self._next = 0.0

    def __enter__(self) -> "Watch":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, markup=False, highlight=False)
            self._live = Live(
                console=console, get_renderable=self._view, refresh_per_second=2, transient=True
            )
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, run: Path) -> "OnEvent":
        """Return what shows the events of a run."""
        self._run = run
        return self._show

    def _view(self) -> Any:
        """Return what ``status`` shows now, for the thread that draws it."""
        began = time.monotonic()
        if self._run is not None and began > self._next:
            from palimpsest.report.live import view
            from palimpsest.run.status import status

            with contextlib.suppress(Exception):  # the folder may be removed at the end
                self._seen = view(self._run.name, status(self._run))
            # A look at a run of very many steps takes long.
            self._next = began + 20 * (time.monotonic() - began)
        return self._seen

    def _say(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(_escaped(text))
        else:
            say(text)

    def _show(self, event: "Event") -> None:
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
