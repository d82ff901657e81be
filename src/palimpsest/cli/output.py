"""Where words go: the answer to stdout, all else to stderr, progress to a tracker if asked."""

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palimpsest.report.tracking import Tracking


def answer(value: Any) -> None:
    """Print the answer on stdout: text as it is, anything else as one JSON document."""
    if not isinstance(value, str):
        value = json.dumps(value, indent=2, allow_nan=False, default=str)
    sys.stdout.write(value + "\n")


def say(text: str) -> None:
    """Print what is not the answer on stderr; nothing in it can act on a terminal."""
    shown = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
    sys.stderr.write(shown + "\n")
    sys.stderr.flush()


def progress(label: str, done: int, total: int) -> None:
    """Say how far the work has come."""
    say(f"{label} ({done}/{total})")


@contextlib.contextmanager
def tracked(name: str | None) -> Iterator["Tracking | None"]:
    """Give the tracker of that name, or None; a missing package is said before anything is run."""
    if name is None:
        yield None
        return
    from palimpsest.report.tracking import Tracking

    tracking = Tracking(name, say)
    try:
        yield tracking
    finally:
        tracking.end()
