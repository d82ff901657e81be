"""Mutations of bytes, and how many of them a run tries."""

from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.reliability import FULL

EDITS = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "delete", "copy", "cut"]),
        st.floats(0, 1, exclude_max=True),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=4,
)


def edited(data: bytes, changes: list[tuple[str, float, float, bytes]]) -> bytes:
    """Return the bytes after some edits, each at a share of their length."""
    for kind, one, other, more in changes:
        at, to = int(one * len(data)), int(other * len(data))
        match kind:
            case "set":
                data = data[:at] + more + data[at + len(more) :]
            case "insert":
                data = data[:at] + more + data[at:]
            case "delete":
                data = data[:at] + data[at + len(more) :]
            case "copy":
                data = data[:at] + data[to : to + 64 * len(more)] + data[at:]
            case "cut":
                data = data[: max(at, 1)]
    return data


def counted(full: int, reduced: int) -> Any:
    """Return settings: full counts, which --hypothesis-seed makes repeatable, or a fixed few."""
    return settings(
        max_examples=full if FULL else reduced,
        deadline=None,
        database=None,
        derandomize=not FULL,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside a JSON value."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return the JSON value with another one at a path."""
    if not path:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = replaced(value[path[0]], path[1:], new)
    return copied
