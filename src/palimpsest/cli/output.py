"""Where text goes: the answer to stdout, progress and everything else to stderr."""

import contextlib
import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest.run.status import Status, duration, status
from palimpsest.text import escaped

if TYPE_CHECKING:
    from palimpsest.run.executor import Event


_shown = False
"""Whether a line stands on the terminal that the next text replaces."""


def answer(value: Any) -> None:
    """Print the answer on stdout: text as it is, anything else as one JSON document.

    BrokenPipeError where nobody can read it: ``main`` ends with a code that is no answer.
    """
    if _shown:
        say("", live=True)
    if not isinstance(value, str):
        value = json.dumps(value, indent=2, allow_nan=False, default=str)
    try:
        sys.stdout.write(value + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except (OSError, AttributeError) as error:  # a full disk; None where stdout was closed
        say(f"error: the standard output cannot be written ({error})")
        raise BrokenPipeError from error


def paragraphs(*texts: str) -> None:
    """Print paragraphs on stdout, wrapped to the width of the terminal; a row of a table, which has
    two spaces between columns, as it is."""
    from palimpsest.report.table import wrapped

    for text in texts:
        answer(text if "  " in text else wrapped(text))


def say(text: str, *, live: bool = False) -> None:
    """Print what is not the answer on stderr, with control characters escaped; ``live``: as a line
    of a terminal in whose place the next text comes."""
    global _shown
    with contextlib.suppress(OSError, AttributeError):  # stderr may be closed, too
        cleared = "\r\x1b[K" if _shown else ""
        sys.stderr.write(cleared + escaped(text, keep="\n") + ("" if live else "\n"))
        sys.stderr.flush()
        _shown = live and bool(text)


def note(text: str) -> None:
    """Print a remark on stderr."""
    say(f"note: {text}")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


PHASES = {
    "train": "training models",
    "headroom": "scoring facts with evidence",
    "dose": "choosing the learning rate of re-acquisition",
    "measure": "measuring models",
    "unlearn": "making candidates",
    "known_label": "measuring the known-label models",
    "finish": "finishing",
}
"""Kinds of steps, in words."""


class Watch:
    """Shows a run on stderr: on a terminal as one line that changes, else one line a phase."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.live = sys.stderr is not None and sys.stderr.isatty()
        self._several = True
        self._phases: set[tuple[str, str]] = set()
        self._left: float | None = None
        self._read = self._next = 0.0

    def show(self, event: "Event") -> None:
        """Show one event of a run."""
        if event.kind == "run":
            self._several = event.total > 1
            say(event.words)
        elif event.kind == "step":
            new = (event.cell, event.phase) not in self._phases
            self._phases.add((event.cell, event.phase))
            words = event.words if self.live else PHASES.get(event.phase, event.words)
            if self.live or new:
                say(self._fitted(event, words), live=self.live)
        elif event.kind == "again":
            say(f"{event.cell}: {event.words}")
        elif event.kind == "finished" and not self.live:
            say(f"{event.cell}: finished")
        elif event.kind == "failed":
            say(f"{event.cell}: {event.step} failed: {event.words}")

    def _fitted(self, event: "Event", words: str) -> str:
        """Return where a cell stands, in one line of the terminal; its name and words may be
        cut."""
        seconds = self._seconds_left() if event.done else None
        left = "" if not seconds else f", about {duration(seconds)} left"
        stands = f" ({event.done} of {event.total} steps{left})"
        columns = shutil.get_terminal_size().columns
        room = (columns - 1 if self.live else min(columns, 80)) - len(stands)
        text = f"{_cut(event.cell, 24)}: {words}" if self._several else words
        return _cut(text, room) + stands

    def _seconds_left(self) -> float | None:
        """Return the time left, looked up less often the longer that takes."""
        began = time.monotonic()
        if began >= self._next:
            with contextlib.suppress(Exception):  # the folder may be removed at the end
                self._left = status(self.run).seconds_left
            self._read = time.monotonic()
            self._next = began + max(5.0, 20 * (self._read - began))
        return None if self._left is None else max(0.0, self._left - time.monotonic() + self._read)


def status_lines(now: Status) -> list[str]:
    """Return where a run stands: one line for the whole, one per step at work and per cell that
    was interrupted or failed."""

    def stored(cell: str) -> str:
        done, total = len(now.steps.get(cell, ())), now.totals.get(cell)
        return f"{done} steps done" if total is None else f"{done} of {total} steps done"

    candidates = sum(map(len, now.failed_candidates.values()))
    lines = [
        f"{len(now.done)} of {len(now.planned)} cells done, {len(now.running)} running, "
        f"{len(now.failed)} failed, {len(now.waiting)} waiting"
        + (f"; candidates that failed: {candidates}" if candidates else "")
    ]
    if now.working and now.seconds_left is not None:
        lines.append(f"about {duration(now.seconds_left)} left")
    if not now.working and len(now.done) < len(now.planned):
        lines.append("No active process. Run the same command again to resume.")
    for step in now.now:
        words, lasted = escaped(step.words), duration(step.seconds)
        lines.append(f"running  {step.cell}: {words} ({stored(step.cell)}), for {lasted}")
    lines += [f"waiting  {cell}: {stored(cell)}" for cell in now.waiting if now.steps.get(cell)]
    lines += [f"failed   {cell}: {escaped(why.reason)}" for cell, why in now.failed.items()]
    for cell, failed in now.failed_candidates.items():
        lines += [f"failed   {cell}: candidate {n}: {escaped(why)}" for n, why in failed.items()]
    return lines
