"""An append-only journal in which every entry names the digest of the one before it.

One JSON line an entry: {"n", "event", "data", "previous", "digest"}, where

    digest = SHA-256(previous + canonical({"n", "event", "data", "previous"})).

Nothing in a chain depends on the clock, the machine or the number of workers. A line without its
line end is the torn remains of an interrupted append and does not count; any other line that does
not fit is damage.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.errors import DamagedArtifact, StoreError
from palimpsest.run.disk import append_line, canonical, digest, disk_errors

# What the first entry of a run's chain names as its predecessor.
ORIGIN = "sha256:" + "0" * 64


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of a chain."""

    n: int
    event: str
    data: dict[str, Any]
    previous: str
    digest: str

    def line(self) -> bytes:
        """The entry's one line of JSON."""
        fields = {"n": self.n, "event": self.event, "data": self.data}
        return canonical(fields | {"previous": self.previous, "digest": self.digest}) + b"\n"


@dataclass(frozen=True, slots=True)
class Chain:
    """The sound beginning of a chain file, and what is wrong after it, if anything."""

    path: Path
    genesis: str
    entries: tuple[Entry, ...]
    size: int  # bytes of the sound beginning
    damage: str | None = None
    torn: bool = False  # an unfinished line follows the sound beginning

    @property
    def head(self) -> str:
        """The digest of the last entry."""
        return self.entries[-1].digest if self.entries else self.genesis

    def find(self, event: str) -> Entry | None:
        """The last entry of a kind."""
        return next((entry for entry in reversed(self.entries) if entry.event == event), None)

    def append(self, event: str, data: Mapping[str, Any]) -> "Chain":
        """The chain with one more entry, which is on disk when this returns."""
        entry = link(len(self.entries), event, data, self.head)
        size = append_line(self.path, entry.line(), self.size)
        return Chain(self.path, self.genesis, (*self.entries, entry), size)


def link(n: int, event: str, data: Mapping[str, Any], previous: str) -> Entry:
    """The entry that follows the one with digest `previous`."""
    # Through JSON and back, so that an entry in memory equals the same entry read from disk.
    plain: dict[str, Any] = json.loads(canonical(dict(data)))
    body = canonical({"n": n, "event": event, "data": plain, "previous": previous})
    return Entry(n, event, plain, previous, digest(previous.encode() + body))


def chain_bytes(events: Sequence[tuple[str, Mapping[str, Any]]], genesis: str = ORIGIN) -> bytes:
    """The bytes of a whole chain, for one that is written at once."""
    lines, previous = [], genesis
    for n, (event, data) in enumerate(events):
        entry = link(n, event, data, previous)
        lines.append(entry.line())
        previous = entry.digest
    return b"".join(lines)


def parse_chain(data: bytes, genesis: str, path: Path) -> Chain:
    """The chain in some bytes: its sound beginning, with the damage after it named."""
    entries: list[Entry] = []
    size, previous = 0, genesis
    for line in data.split(b"\n")[:-1]:
        try:
            found = json.loads(line)
            event, content = found["event"], found["data"]
            if not isinstance(event, str) or not isinstance(content, dict):
                raise TypeError
            entry = link(len(entries), event, content, previous)
        except (ValueError, TypeError, KeyError, RecursionError, StoreError):
            return _damaged(path, genesis, entries, size, "is not an entry")
        # Byte for byte: the same content spelled another way is a change too.
        if entry.line() != line + b"\n":
            return _damaged(path, genesis, entries, size, "does not follow from the one before")
        entries.append(entry)
        previous = entry.digest
        size += len(line) + 1
    return Chain(path, genesis, tuple(entries), size, torn=size != len(data))


def read_chain(path: Path, genesis: str = ORIGIN) -> Chain:
    """The chain in a file; an empty one when there is no file."""
    with disk_errors(path, "read"):
        data = path.read_bytes() if path.exists() else b""
    return parse_chain(data, genesis, path)


def verify_chain(data: bytes, genesis: str = ORIGIN, name: str = "chain.jsonl") -> Chain:
    """The whole chain in some bytes; DamagedArtifact naming the line when any of it is unsound."""
    chain = parse_chain(data, genesis, Path(name))
    if chain.damage is not None:
        raise DamagedArtifact(chain.damage)
    if chain.torn:
        raise DamagedArtifact(
            f"{name} line {len(chain.entries) + 1}: the line is incomplete; expected a line end"
        )
    return chain


def seal_problems(chain: Chain, commitment: str) -> list[str]:
    """What a cell's chain says against its seal: opened twice, for another pool, scored twice."""
    name = chain.path
    openings = [entry for entry in chain.entries if entry.event == "seal opened"]
    problems = []
    if len(openings) > 1:
        problems.append(f"{name}: the audit pool was opened {len(openings)} times; expected once")
    for opening in openings:
        step = opening.data.get("step")
        if opening.data.get("commitment") != commitment:
            problems.append(f"{name}: another pool than the sealed one was opened for {step!r}")
        scored = [
            entry.n
            for entry in chain.entries
            if entry.event == "step" and entry.data.get("step") == step
        ]
        if len(scored) > 1 or any(n < opening.n for n in scored):
            problems.append(
                f"{name}: step {step!r} was recorded at lines {[n + 1 for n in scored]}; expected "
                f"once, after the audit pool was opened at line {opening.n + 1}"
            )
    return problems


def _damaged(path: Path, genesis: str, entries: list[Entry], size: int, what: str) -> Chain:
    why = f"{path} line {len(entries) + 1}: {what}; expected an unbroken chain"
    return Chain(path, genesis, tuple(entries), size, why)
