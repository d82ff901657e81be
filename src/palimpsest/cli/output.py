"""Where text goes: the answer to stdout, progress and all else to stderr and to a tracker."""

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palimpsest.report.tracking import Tracking
    from palimpsest.run.executor import Event


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
    """Shows the events of a run on stderr: bars on a terminal, plain lines otherwise."""

    def __init__(self) -> None:
        self._done = self._total = 0
        self._bars: dict[str, Any] = {}
        self._progress: Any = None

    def __enter__(self) -> "Watch":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def say(self, text: str) -> None:
        """Print a line beside the bars."""
        if self._progress is not None:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            say(text)

    def __call__(self, event: "Event") -> None:
        """Show one event: the beginning of the work, a step of a cell, its end, or its failure."""
        if event.kind == "run":
            self._done, self._total = event.done, event.total
            self.say(event.words)
        elif event.kind in ("step", "done"):
            if self._progress is None and event.kind == "step":
                self.say(f"{event.cell}: {event.words} ({event.done}/{event.total})")
            self._bar(event.cell, f"{event.cell} {event.words}", event.done, event.total)
            return
        elif event.kind == "again":
            self.say(f"{event.cell}: {event.words}")
            return
        elif event.kind == "finished":
            self._done += 1
            self.say(f"{event.cell}: finished ({self._done}/{self._total})")
        else:
            self.say(f"{event.cell}: {event.step} {event.kind}: {event.words}")
        if event.cell in self._bars:
            self._progress.remove_task(self._bars.pop(event.cell))
        if self._total > 1:
            self._bar("", "cells", self._done, self._total)

    def _bar(self, name: str, words: str, done: int, total: int) -> None:
        if self._progress is None:
            return
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(words, total=total)
        self._progress.update(self._bars[name], description=words, completed=done, total=total)
