"""Where text goes: the answer to stdout, progress and everything else to stderr."""

import contextlib
import json
import shutil
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palimpsest.run.executor import Event


def answer(value: Any) -> None:
    """Print the answer on stdout: text as it is, anything else as one JSON document."""
    if not isinstance(value, str):
        value = json.dumps(value, indent=2, allow_nan=False, default=str)
    sys.stdout.write(value + "\n")


def paragraphs(*texts: str) -> None:
    """Print paragraphs on stdout, wrapped to the width of the terminal."""
    width = min(100, shutil.get_terminal_size((80, 24)).columns)
    for text in texts:
        answer(textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False))


def say(text: str) -> None:
    """Print what is not the answer on stderr, with control characters escaped."""
    sys.stderr.write(_escaped(text) + "\n")
    sys.stderr.flush()


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


class Watch:
    """Shows a run on stderr: on a terminal what ``status`` shows, else one line per step."""

    def __init__(self) -> None:
        self._run: Path | None = None
        self._live: Any = None
        self._seen: Any = ""
        self._left = ""
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

    def show(self, event: "Event") -> None:
        """Show one event of a run."""
        if event.kind == "run":
            self._run = Path(event.words.partition(": ")[0])
            self._print(event.words)
        elif event.kind == "step" and self._live is None:
            left = self._time_left() if event.done else ""
            self._print(f"{event.cell}: {event.words} ({event.done}/{event.total}{left})")
        elif event.kind == "again":
            self._print(f"{event.cell}: {event.words}")
        elif event.kind == "finished":
            self._print(f"{event.cell}: finished")
        elif event.kind == "failed":
            self._print(f"{event.cell}: {event.step} failed: {event.words}")

    def _time_left(self) -> str:
        """Return the time left, looked up at most every few seconds."""
        from palimpsest.run.status import duration, status

        if self._run is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + 5
            with contextlib.suppress(Exception):
                seconds = status(self._run).seconds_left
                self._left = "" if seconds is None else f", about {duration(seconds)} left"
        return self._left

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

    def _print(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(_escaped(text))
        else:
            say(text)
