import hashlib
import json
import re
from pathlib import Path

import pytest

from palimpsest.errors import DamagedArtifact, StoreError
from palimpsest.run.chain import (
    ORIGIN,
    chain_bytes,
    parse_chain,
    read_chain,
    seal_problems,
    verify_chain,
)

EVENTS = [("rules", {"alpha": 0.05}), ("seal", {"commitment": "x"}), ("report", {"cells": [1, 2]})]


@pytest.fixture
def sound() -> bytes:
    return chain_bytes(EVENTS)


def test_an_entry_is_digested_as_documented(sound: bytes) -> None:
    first, second = (json.loads(line) for line in sound.splitlines()[:2])
    body = b'{"data":{"commitment":"x"},"event":"seal","n":1,"previous":"%s"}'
    previous = first["digest"].encode()
    expected = hashlib.sha256(previous + body % previous).hexdigest()
    assert second["digest"] == f"sha256:{expected}"
    assert first["previous"] == ORIGIN


def test_a_chain_appended_entry_by_entry_has_the_bytes_of_one_written_at_once(
    tmp_path: Path, sound: bytes
) -> None:
    chain = read_chain(tmp_path / "chain.jsonl")
    for event, data in EVENTS:
        chain = chain.append(event, data)
    assert chain.path.read_bytes() == sound
    assert read_chain(chain.path) == chain
    assert verify_chain(sound).head == chain.head


def test_every_flipped_byte_is_found(sound: bytes) -> None:
    for position in range(len(sound)):
        for mask in (0x01, 0x20, 0x80):
            changed = bytearray(sound)
            changed[position] ^= mask
            with pytest.raises(DamagedArtifact):
                verify_chain(bytes(changed))


def test_every_truncation_inside_a_line_is_torn_and_at_a_line_end_is_a_shorter_chain(
    sound: bytes,
) -> None:
    for length in range(len(sound)):
        chain = parse_chain(sound[:length], ORIGIN, Path("chain.jsonl"))
        assert chain.damage is None
        assert len(chain.entries) == sound[:length].count(b"\n")
        assert chain.torn == (length > 0 and sound[length - 1 : length] != b"\n")
        if chain.torn:
            with pytest.raises(DamagedArtifact, match="incomplete"):
                verify_chain(sound[:length])


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [lines[1], lines[0], lines[2]],  # order
        lambda lines: [lines[0], lines[2]],  # an entry left out
        lambda lines: [lines[0], lines[0], *lines[1:]],  # an entry repeated
        lambda lines: lines[1:],  # the beginning left out
        lambda lines: [lines[0].replace(b'"n":0', b'"n": 0'), *lines[1:]],  # other spelling
        lambda lines: [b'{"event":"x","data":{"y":NaN}}', *lines],
        lambda lines: [b"[" * 100_000, *lines],
        lambda lines: [b"", *lines],
    ],
)
def test_a_rearranged_chain_is_refused(sound: bytes, change: object) -> None:
    lines = change(sound.splitlines())  # type: ignore[operator]
    with pytest.raises(DamagedArtifact, match="line"):
        verify_chain(b"\n".join(lines) + b"\n")


def test_a_chain_belongs_to_its_genesis(sound: bytes) -> None:
    with pytest.raises(DamagedArtifact, match="line 1"):
        verify_chain(sound, "sha256:" + "1" * 64)


def test_a_torn_line_is_dropped_by_the_next_append(tmp_path: Path, sound: bytes) -> None:
    path = tmp_path / "chain.jsonl"
    path.write_bytes(sound + b'{"data":{"half')
    chain = read_chain(path).append("later", {})
    assert verify_chain(path.read_bytes()).head == chain.head
    assert len(chain.entries) == 4


STARTED = ("started", {"cell": "a"})
OPENED = ("seal opened", {"step": "panel", "commitment": "c", "models": {"injected": "1"}})
SCORED = ("step", {"step": "panel", "artifacts": {}})


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([STARTED, OPENED, OPENED, SCORED], "opened 2 times"),
        ([STARTED, OPENED, SCORED, SCORED], r"recorded at lines \[3, 4\]"),
        ([STARTED, SCORED, OPENED], "expected once, after"),
        ([STARTED, ("seal opened", OPENED[1] | {"commitment": "d"})], "another pool"),
    ],
)
def test_a_seal_opened_or_scored_twice_is_seen_in_the_chain(
    events: list[tuple[str, dict[str, object]]], words: str
) -> None:
    problems = seal_problems(verify_chain(chain_bytes(events)), "c")
    assert problems and re.search(words, problems[0])


def test_a_seal_opened_once_and_scored_once_or_not_yet_is_in_order() -> None:
    for events in ([STARTED, OPENED, SCORED], [STARTED, OPENED], [STARTED]):
        assert seal_problems(verify_chain(chain_bytes(events)), "c") == []


def test_two_writers_cannot_both_append(tmp_path: Path) -> None:
    mine = read_chain(tmp_path / "chain.jsonl")
    mine.append("theirs", {})
    with pytest.raises(StoreError, match="another process"):
        mine.append("mine", {})
