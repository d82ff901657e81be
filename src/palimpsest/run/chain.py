"""A list of events in which every entry names the digest of the one before it.

One line of JSON per entry: {"n", "event", "data", "previous", "digest"}, where

    digest = SHA-256(previous + canonical({"n", "event", "data", "previous"})).

The first entry names what the chain hangs on: the digest of a run's terms. Nothing in it depends on
the clock, the machine or the number of workers.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from palimpsest.errors import DamagedArtifact, StoreError
from palimpsest.run.disk import canonical, digest


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of a chain."""

    n: int
    event: str
    data: dict[str, Any]
    previous: str
    digest: str

    def line(self) -> bytes:
        """Return the entry's one line of JSON."""
        return canonical(asdict(self)) + b"\n"


def link(n: int, event: str, data: Mapping[str, Any], previous: str) -> Entry:
    """Return the entry that follows the one with digest ``previous``."""
    # Through JSON and back, so that an entry in memory equals the same entry read from disk.
    plain: dict[str, Any] = json.loads(canonical(dict(data)))
    body = canonical({"n": n, "event": event, "data": plain, "previous": previous})
    return Entry(n, event, plain, previous, digest(previous.encode() + body))


def chain_bytes(events: Sequence[tuple[str, Mapping[str, Any]]], origin: str) -> bytes:
    """Return the bytes of a whole chain that hangs on ``origin``."""
    lines, previous = [], origin
    for n, (event, data) in enumerate(events):
        entry = link(n, event, data, previous)
        lines.append(entry.line())
        previous = entry.digest
    return b"".join(lines)


def verify_chain(data: bytes, name: str, origin: str) -> tuple[Entry, ...]:
    """Return the entries in some bytes; raise DamagedArtifact naming the first unsound line."""
    entries: list[Entry] = []
    previous = origin
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        entry: Entry | None = None
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError, StoreError):
            fields = json.loads(line)
            entry = link(len(entries), fields["event"], fields["data"], previous)
        # Byte for byte: the same content spelled another way is a change too.
        if entry is None or not isinstance(entry.event, str) or entry.line() != line:
            raise DamagedArtifact(
                f"{name} line {number}: does not follow from the line before, or is incomplete; "
                "expected an unbroken chain"
            )
        entries.append(entry)
        previous = entry.digest
    return tuple(entries)
