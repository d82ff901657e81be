"""The one way to read a file that somebody gave: a regular file, within a bound, never executed."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palimpsest.errors import InputError, PalimpsestError
from palimpsest.text import shown, shown_path

LINE_LIMIT = 64 * 2**20
"""Longest line, in bytes, that ``read_lines`` gives in one piece."""


def read_lines(
    path: Path | str,
    limit: int,
    error: type[PalimpsestError] = InputError,
    expected: str = "a file",
) -> Iterator[bytes]:
    """Yield the lines of a regular file of at most ``limit`` bytes; ``error`` if it is none.

    A line of LINE_LIMIT bytes or more comes in parts, so that memory is bounded.

    error: the class of the error, with a message that asks for what is ``expected``.
    """
    name = shown_path(path)
    try:
        # Before it is opened: opening a pipe waits for its writer, and a device never ends.
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):
            raise error(f"{name}: found a folder, device or pipe; expected {expected}")
        size = about.st_size
        with open(path, "rb") as file:
            # The file may grow while it is read.
            while size <= limit and (line := file.readline(min(LINE_LIMIT, limit + 1))):
                yield line
                size = max(size, file.tell())
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or shown(str(problem))
        raise error(f"{name}: cannot be read ({why}); expected {expected}") from problem
    if size > limit:
        raise error(f"{name}: has more than {limit} bytes; expected {expected} of at most that")


def read_bytes(
    path: Path | str,
    limit: int,
    error: type[PalimpsestError] = InputError,
    expected: str = "a file",
) -> bytes:
    """Return the bytes of a regular file of at most ``limit`` bytes; see ``read_lines``."""
    return b"".join(read_lines(path, limit, error, expected))


def read_object(
    path: Path | str,
    limit: int,
    error: type[PalimpsestError] = InputError,
    expected: str = "a JSON object",
) -> dict[str, Any]:
    """Return the JSON object in a regular file of at most ``limit`` bytes; see ``read_lines``."""
    data = read_bytes(path, limit, error, expected)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as problem:
        why = shown(str(problem), 200)[1:-1]
        raise error(f"{shown_path(path)}: is not JSON ({why}); expected {expected}") from problem
    if not isinstance(value, dict):
        found = type(value).__name__
        raise error(f"{shown_path(path)}: holds {found}; expected {expected}")
    return value
