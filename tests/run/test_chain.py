import hashlib
import json

import pytest
from toy import mutations

from palimpsest.errors import DamagedArtifact
from palimpsest.run.chain import chain_bytes, verify_chain

ORIGIN = "sha256:" + "0" * 64
EVENTS = [("rules", {"alpha": 0.05}), ("seal", {"commitment": "x"}), ("report", {"cells": [1, 2]})]


@pytest.fixture
def sound() -> bytes:
    return chain_bytes(EVENTS, ORIGIN)


def test_an_entry_is_digested_as_documented(sound: bytes) -> None:
    first, second = (json.loads(line) for line in sound.splitlines()[:2])
    body = b'{"data":{"commitment":"x"},"event":"seal","n":1,"previous":"%s"}'
    previous = first["digest"].encode()
    expected = hashlib.sha256(previous + body % previous).hexdigest()
    assert second["digest"] == f"sha256:{expected}"
    assert first["previous"] == ORIGIN


def test_every_flipped_byte_and_truncation_inside_a_line_is_found(sound: bytes) -> None:
    for changed in mutations(sound):
        if changed and sound.startswith(changed) and changed.endswith(b"\n"):
            assert len(verify_chain(changed, "chain", ORIGIN)) == changed.count(b"\n")
        elif changed:
            with pytest.raises(DamagedArtifact):
                verify_chain(changed, "chain", ORIGIN)


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
    with pytest.raises(DamagedArtifact):
        verify_chain(b"\n".join(lines) + b"\n", "chain", ORIGIN)


def test_a_chain_hangs_on_its_origin(sound: bytes) -> None:
    assert len(verify_chain(sound, "chain", ORIGIN)) == 3
    with pytest.raises(DamagedArtifact):
        verify_chain(sound, "chain", "sha256:" + "1" * 64)
