"""No changed bundle passes: any byte, any file, any statement; and none takes memory or time.

PALIMPSEST_FULL=1 flips every bit of every byte of a signed and an unsigned bundle.
"""

import io
import zipfile
from itertools import pairwise

import pytest
from forgery import (
    Members,
    failed,
    made_up,
    repaired,
    rosters,
    value,
    with_rosters,
    with_rules,
    with_statement,
    with_terms,
    written,
)
from tests.made_runs import AUDIT, STUDY
from tests.reliability import FULL, count

from palimpsest.certificate import bundle as contents
from palimpsest.certificate import verify
from palimpsest.certificate.bundle import pack, unpack
from palimpsest.certificate.checks import examine
from palimpsest.certificate.signature import read_public
from palimpsest.errors import BundleError, InputError
from palimpsest.run import tables

CELL = f"cells/{STUDY}"


def passing_flips(data: bytes, public: bytes | None = None) -> list[int]:
    """Return the bytes of which a bit can be changed so that other files than before pass."""
    changed, members = bytearray(data), unpack(data)
    unnoticed = []
    for at in range(0, len(data), 1 if FULL else 7):
        for bit in [1 << n for n in range(8)] if FULL else [1 << at % 8]:
            count("flipped bits of a bundle, all found")
            changed[at] ^= bit
            if examine(bytes(changed), public).ok and unpack(bytes(changed)) != members:
                unnoticed.append(at)
            changed[at] ^= bit
    assert bytes(changed) == data
    return unnoticed


def test_every_change_of_a_bit_in_a_file_is_noticed(bundle, signed_bundle, keys):
    assert passing_flips(bundle.read_bytes()) == []
    # The reader without a key notices as much.
    assert passing_flips(signed_bundle.read_bytes()) == []
    if FULL:
        assert passing_flips(signed_bundle.read_bytes(), read_public(keys[1])) == []


def test_every_truncation_is_noticed(bundle):
    data = bundle.read_bytes()
    for size in range(0, len(data), 1 if FULL else 97):
        count("truncated bundles, all found")
        failed(data[:size], "archive")


def zipped(members: Members, method: int = zipfile.ZIP_DEFLATED, twice: str = "") -> bytes:
    """Return an archive as another program packs it."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        archive.mkdir("cells")
        for name, data in members.items():
            archive.writestr(name, data)
        if twice:
            with pytest.warns(UserWarning, match="Duplicate"):
                archive.writestr(twice, members[twice])
    return packed.getvalue()


def test_a_bundle_packed_by_another_program_verifies(members):
    assert unpack(zipped(members)) == members and examine(zipped(members)).ok
    failed(zipped(members, twice="terms.json"), "archive")
    failed(zipped(members, zipfile.ZIP_LZMA), "archive")


def test_every_file_removed_renamed_or_added_is_noticed_even_with_a_new_statement(members):
    for name in members:
        rest = {other: data for other, data in members.items() if other != name}
        for changed in (rest, rest | {f"{name}x": members[name]}):
            failed(pack(changed), "digests")
            if name != "statement.json":
                failed(repaired(changed))
    for name in ("extra.txt", f"{CELL}/extra.json", "cells/other/cell.json", "../evil", "/evil"):
        failed(pack(members | {name: b"x"}), "digests")
        failed(repaired(members | {name: b"x"}), "cells")


def test_exchanged_files_are_noticed(members):
    for left, right in pairwise(sorted(members)):
        swapped = members | {left: members[right], right: members[left]}
        failed(pack(swapped))
        if "statement.json" not in (left, right):
            failed(repaired(swapped))


def test_json_in_another_spelling_is_noticed(members):
    for name in ("terms.json", "statement.json", "rosters.json", f"{CELL}/cell.json"):
        data = members[name]
        for other in (data[:-1], b" " + data, data.replace(b":", b": ", 1), b"[" * 10**5, b"NaN\n"):
            failed(pack(members | {name: other}))
            if name != "statement.json":
                failed(repaired(members | {name: other}))


def test_a_statement_that_says_other_than_the_files_is_noticed(members, audit_members):
    for held, cell, other in ((members, STUDY, "ga-w12"), (audit_members, AUDIT, "bad")):
        for change in (
            {"candidate": other},
            {"status": "uncertified", "candidate": None, "reason": "all_excluded"},
            {"grade": "equivalent"},
            {"detection_limit": 0.05},
            {"p": 0.99},
            {"custom_rules": {"alpha": [0.05, 0.1]}},
            {"paragraph": "Approved."},
        ):
            failed(pack(with_statement(held, cell, **change)), "verdicts")
    for change in (
        {"scope": ["Approved."]},
        {"run": "another"},
        {"tried": 1},
        {"custom_rules": {"alpha": [0.05, 0.1]}},
        {"reused": ["sha256:0"]},
        {"more": 1},
    ):
        failed(pack(with_statement(members, **change)), "verdicts")
    stated = value(members, "statement.json")
    failed(pack(members | {"statement.json": written(stated | {"more": 1})}), "verdicts")
    failed(pack(members | {"statement.json": written(stated | {"_type": "other"})}), "digests")


def test_what_is_too_large_is_refused_before_it_is_unpacked(members, tmp_path, monkeypatch):
    bomb = zipped(members | {"bomb.parquet": bytes(contents.MAX_BYTES)})
    assert len(bomb) < 2 * 2**20
    failed(bomb, "archive")
    failed(zipped(members | {"bomb.json": bytes(contents.MAX_TEXT_BYTES + 1)}), "archive")
    for limit in ("MAX_FILES", "MAX_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(contents, limit, 5)
            failed(zipped(members, zipfile.ZIP_STORED), "archive")
            with pytest.raises(BundleError):
                pack(members)
    large = tmp_path / "large.zip"
    with open(large, "wb") as file:
        file.truncate(contents.MAX_BYTES + 1)
    with pytest.raises(BundleError):
        verify(large)
    with pytest.raises(InputError):
        verify(tmp_path)


def test_sizes_that_lie_are_refused(members):
    """The central directory says that a file of 64 MB unpacks to few bytes."""
    data = zipped(members | {"bomb.parquet": bytes(64 * 2**20)})
    size = (64 * 2**20).to_bytes(4, "little")
    assert data.count(size) == 2
    for lie in (0, 1, 2**31, 2**32 - 1):
        failed(data.replace(size, lie.to_bytes(4, "little")), "archive")
    failed(b"PK\3\4" * 50_000, "archive")


def test_tables_that_are_too_large_are_refused(members, monkeypatch):
    for module, limit in ((contents, "MAX_ROWS"), (tables, "MOST_VALUES"), (tables, "MOST_BYTES")):
        with monkeypatch.context() as patch:
            patch.setattr(module, limit, 100)
            failed(pack(members), "scores")


def test_plans_of_more_than_memory_holds_are_refused(members):
    config = value(members, "terms.json")["terms"]["config"]
    many = {"models": [f"m{n}" for n in range(50_000)], "seeds": list(range(50_000))}
    failed(repaired(with_terms(members, config=config | many)), "terms")
    for draws in (10**15, 1_000):
        long = config | {"replication": {"draws": draws, "retrainings": 0}}
        failed(repaired(made_up(with_terms(members, config=long))), "cells")
    shares = [0.1, *(0.25 - n / 10**6 for n in range(900))]
    failed(repaired(made_up(with_rules(members, control_shares=shares))), "cells")
    (listed,) = rosters(members)
    failed(repaired(made_up(with_rosters(members, listed * 600))), "cells")
