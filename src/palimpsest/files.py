"""The one way to read a file that somebody gave: regular, within bounds, never executed."""

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from palimpsest.errors import InputError, PalimpsestError, PlanError
from palimpsest.text import shown, shown_path

LINE_LIMIT = 64 * 2**20
"""Most bytes that are read in one piece: the longest line that ``read_lines`` gives whole."""
YAML_LIMIT = 2**20
"""Largest document, in bytes."""


def given_path(key: str, value: Any) -> Path:
    """Return the path that a Python caller gives under a key; PlanError if it is none."""
    if not isinstance(value, str | os.PathLike):
        raise PlanError(f"expected a path, got {shown(value)}", key=key)
    return Path(value)


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
    return _pieces(path, limit, error, expected, lambda file, most: file.readline(most))


def read_bytes(
    path: Path | str,
    limit: int,
    error: type[PalimpsestError] = InputError,
    expected: str = "a file",
) -> bytes:
    """Return the bytes of a regular file of at most ``limit`` bytes; see ``read_lines``."""
    # Not by lines: a log has millions of them.
    return b"".join(_pieces(path, limit, error, expected, lambda file, most: file.read(most)))


def _pieces(
    path: Path | str,
    limit: int,
    error: type[PalimpsestError],
    expected: str,
    read: Callable[[BinaryIO, int], bytes],
) -> Iterator[bytes]:
    name = shown_path(path)
    try:
        # Before it is opened: opening a pipe waits for its writer, and a device never ends.
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):
            raise error(f"{name}: found a folder, device or pipe; expected {expected}")
        size = about.st_size
        with open(path, "rb") as file:
            # The file may grow while it is read.
            while size <= limit and (piece := read(file, min(LINE_LIMIT, limit + 1))):
                yield piece
                size = max(size, file.tell())
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or shown(str(problem))
        raise error(f"{name}: cannot be read ({why}); expected {expected}") from problem
    if size > limit:
        raise error(f"{name}: has more than {limit} bytes; expected {expected}")


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


def is_yaml(source: Path | str) -> bool:
    """Return whether a source is the text of a YAML document rather than the path of one."""
    return isinstance(source, str) and ("\n" in source or ": " in source)


def read_yaml(source: Path | str, expected: str) -> dict[str, Any]:
    """Return the keys and values of YAML; ``expected`` says what a message asks for.

    source: a path, or the text itself, which has a line end or a colon before a space.
    """
    import yaml

    inside = is_yaml(source)
    name = "the text" if inside else shown_path(source)
    try:
        text = str(source) if inside else read_bytes(source, YAML_LIMIT, PlanError).decode()
        data = parse_yaml(text)
    except (PlanError, yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).removeprefix(f"{name}: ").split())[:400]
        raise PlanError(f"{name}: cannot be read ({problem}); expected {expected}") from error
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise PlanError(f"{name}: contains {type(data).__name__}; expected {expected}")
    return data


def parse_yaml(text: str) -> Any:
    """Return what YAML holds; ValueError where a key stands twice in a mapping, or where aliases
    or tags make it more than it says: a few hundred bytes of aliases can stand for gigabytes."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise ValueError("has an alias (*name); write out what it stands for")
            node = super().compose_node(parent, index)
            keys: set[str] = set()
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                if str(key.value) in keys:
                    raise ValueError(f"the key {shown(key.value)} occurs twice")
                keys.add(str(key.value))
            return node

    try:
        return yaml.load(text, Loader)
    except (IndexError, KeyError, AttributeError, TypeError) as error:  # a tag on what it is not
        raise ValueError(f"a value does not fit its tag ({type(error).__name__})") from error
