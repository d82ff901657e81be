"""Where text goes: the answer to stdout, all else to stderr, progress to a tracker if asked."""

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
