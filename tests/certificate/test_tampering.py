"""No changed bundle passes: any byte, any file, any order, and forgers who repair their digests.

PALIMPSEST_FULL=1 flips every bit of every byte of a signed and an unsigned bundle.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forgery import (
    Members,
    failed,
    failed_apart,
    repaired,
    value,
    with_cell,
    with_rows,
    with_terms,
    written,
)
from small_run import STUDY
from tests.reliability import FULL, count

from palimpsest.certificate import bundle as contents
from palimpsest.certificate.archive import pack, unpack
from palimpsest.certificate.signature import read_public
from palimpsest.certificate.verification import examine, verify
from palimpsest.errors import BundleError, InputError

CELL = f"cells/{STUDY}"


# -- bytes ---------------------------------------------------------------------------------------


def passing_flips(data: bytes, public: bytes | None = None) -> list[int]:
    """Return the bytes of which a bit can be changed without notice."""
    changed = bytearray(data)
    unnoticed = []
    for at in range(0, len(data), 1 if FULL else 7):
        for bit in [1 << n for n in range(8)] if FULL else [1 << at % 8]:
            count("flipped bits of a bundle, all found")
            changed[at] ^= bit
            if examine(bytes(changed), public).ok:
                unnoticed.append(at)
            changed[at] ^= bit
    assert bytes(changed) == data
    return unnoticed


def test_an_archive_has_the_bytes_it_always_had() -> None:
    """A library that packs in another way would break every bundle that was ever written."""
    assert pack({"a/b": b"text"}).hex() == (
        "504b030414000000000000002100c7a78b3b040000000400000003000000612f6274657874504b010214031400"
        "0000000000002100c7a78b3b0400000004000000030000000000000000000000a48100000000612f62504b0506"
        "000000000100010031000000250000000000"
    )


def test_a_changed_file_is_named(bundle: Path, members: Members) -> None:
    data = bytearray(bundle.read_bytes())
    data[data.index(members["terms.json"]) + 1] ^= 1
    with pytest.raises(BundleError, match=r"'terms\.json'"):
        unpack(bytes(data))
    with pytest.raises(InputError, match=r"a folder; expected a bundle, the file that"):
        verify(bundle.parent)


def test_every_single_byte_change_is_noticed(
    bundle: Path, signed_bundle: Path, keys: tuple[Path, Path]
) -> None:
    assert passing_flips(bundle.read_bytes()) == []
    # The reader without a key notices as much.
    assert passing_flips(signed_bundle.read_bytes()) == []
    if FULL:
        assert passing_flips(signed_bundle.read_bytes(), read_public(keys[1])) == []


def test_every_truncation_and_anything_after_the_end_is_noticed(bundle: Path) -> None:
    data = bundle.read_bytes()
    for size in range(0, len(data), 1 if FULL else 97):
        count("truncated bundles, all found")
        failed(data[:size], "archive")
    for more in (b"\0", b"\n", b"PK", data):
        failed(data + more, "archive")
        failed(more + data)


def test_every_deletion_and_doubling_of_a_byte_is_noticed(bundle: Path) -> None:
    data = bundle.read_bytes()
    for at in range(0, len(data), 1 if FULL else 131):
        failed(data[:at] + data[at + 1 :])
        failed(data[:at] + data[at : at + 1] + data[at:])


# -- files ---------------------------------------------------------------------------------------


def test_every_file_removed_renamed_or_added_is_noticed_even_with_a_new_statement(
    members: Members,
) -> None:
    for name in members:
        rest = {other: data for other, data in members.items() if other != name}
        for changed in (rest, rest | {f"{name}x": members[name]}):
            failed(pack(changed), "digests")
            if name != "statement.json":
                failed(repaired(changed))
    for name in ("extra.txt", f"{CELL}/extra.json", "cells/other/cell.json", "models.bin"):
        failed(pack(members | {name: b"x"}), "digests")
        failed(repaired(members | {name: b"x"}), "cells")


def test_an_envelope_nobody_signed_is_noticed(members: Members) -> None:
    failed(pack(members | {"statement.dsse.json": written({"signatures": []})}), "signature")


def test_exchanged_files_are_noticed(members: Members) -> None:
    names = sorted(members)
    for left, right in pairwise(names):
        swapped = members | {left: members[right], right: members[left]}
        failed(pack(swapped))
        if "statement.json" not in (left, right):
            failed(repaired(swapped))


def parts(data: bytes) -> tuple[list[bytes], bytes]:
    """Return each file with its header, and what follows the last one."""
    members, at, files = unpack(data), 0, []
    for name, content in members.items():
        size = 30 + len(name) + len(content)
        files.append(data[at : at + size])
        at += size
    return files, data[at:]


def test_reordered_and_doubled_files_are_noticed(bundle: Path) -> None:
    files, rest = parts(bundle.read_bytes())
    assert b"".join([*files, rest]) == bundle.read_bytes()
    failed(b"".join([*files[::-1], rest]), "archive")
    for n, file in enumerate(files):
        failed(b"".join([*files[: n + 1], file, *files[n + 1 :], rest]), "archive")


@pytest.mark.parametrize(
    "name",
    [
        "../evil.json",
        "cells/../../evil.json",
        "/etc/evil.json",
        "C:evil.json",
        "cells\\evil.json",
        "cells//evil.json",
        "cells/.hidden",
        "a\0b",
        "cells/a/b/c.json",
        "é.json",
        "",
        "x" * 400,
    ],
)
def test_names_that_leave_the_folder_are_refused(name: str, bundle: Path, members: Members) -> None:
    with pytest.raises(BundleError, match="cannot name a file"):
        pack(members | {name: b"x"})
    # The same, packed by hand: the first file under the hostile name.
    data, first = bundle.read_bytes(), sorted(members)[0]
    label = name.encode()
    header = data[:26] + len(label).to_bytes(2, "little") + data[28:30]
    failed(header + label + data[30 + len(first) :], "archive")


def test_sizes_that_lie_are_refused_before_anything_is_allocated(bundle: Path) -> None:
    data = bytearray(bundle.read_bytes())
    for size in (0, 1, 2**31, 2**32 - 1):
        data[18:22] = data[22:26] = size.to_bytes(4, "little")
        failed(bytes(data), "archive")
    failed(b"PK\3\4" * 50_000, "archive")


def test_tables_that_say_they_are_too_large_are_refused_before_they_are_read(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(data: bytes, name: str) -> None:
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(contents, "table_from_bytes", never)
    for limit, least in (("MAX_TABLE_BYTES", 1_000), ("MAX_ROWS", 100)):
        with monkeypatch.context() as patch:
            patch.setattr(contents, limit, least)
            failed(pack(members), "scores")


@pytest.mark.parametrize("field", [2, 3, 7])
def test_pages_that_ask_for_more_than_the_footer_says_fail(field: int, members: Members) -> None:
    """Field 2 is what a page unpacks to, 3 what it is stored in, 7 the entries of a dictionary."""
    name = f"{CELL}/items.parquet"
    data = bytearray(members[name])
    # The first page, a dictionary: 15 04, then its sizes as 15 and a number, then its header.
    assert data[4:7] == b"\x15\x04\x15"
    at = 7
    if field > 2:
        at = data.index(0x15, at) + 1
    if field > 3:
        at = data.index(b"\x4c\x15", at) + 2
    while data[at] >= 128:
        data[at] = 255
        at += 1
    data[at] = 126
    forged = repaired(with_cell(members | {name: bytes(data)}))
    assert failed_apart(forged)


@pytest.mark.parametrize("limit", ["MAX_MODELS", "MAX_REFERENCES", "MAX_FACTS", "MAX_PAIRS"])
def test_more_work_than_a_run_asks_for_is_refused(
    limit: str, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, limit, 2)
    failed(pack(members), "verdicts")


def test_a_plan_of_more_cells_than_memory_holds_is_refused(members: Members) -> None:
    config = value(members, "terms.json")["terms"]["config"] | {
        "models": [f"m{n}" for n in range(50_000)],
        "seeds": list(range(50_000)),
    }
    failed(repaired(with_terms(members, config=config)), "cells")


# -- forgers who repair the statement --------------------------------------------------------------


def test_another_verdict_is_noticed(members: Members, audit_members: Members) -> None:
    for held, cell, other in ((members, STUDY, "ga-w12"), (audit_members, "", "bad")):
        summary = value(held, "summary.json")
        verdict = summary["cells"][cell] if cell else summary
        looser = [control | {"rejected": True} for control in verdict["controls"]]
        finding = verdict["candidates"][other]
        for change in (
            {"candidate": other},
            {"status": "uncertified", "candidate": None, "reason": "all_excluded"},
            {"grade": "equivalent"},
            {"detection_limit": 0.05},
            {"dose": None},
            {"p": 0.99},
            {"controls": looser},
            {"controls": verdict["controls"][1:]},
            {"custom_rules": {"alpha": [0.05, 0.1]}},
            {"candidates": {other: finding}},
            {"candidates": verdict["candidates"] | {other: finding | {"clears": True}}},
            {"worst_axis": verdict["worst_axis"] | {"sd": 0.1}},
        ):
            changed = verdict | change
            whole = summary | {"cells": {cell: changed}} if cell else changed
            failed(repaired(held | {"summary.json": written(whole)}), "verdicts")
        for change in (
            *({"rules_hash": "sha256:0"}, {"certified": 2}, {"more": 1}, {"kind": "tofu"}),
            {"paragraph": "Approved."},  # no sentences: they are written when it is verified
        ):
            forged = held | {"summary.json": written(summary | change)}
            failed(repaired(forged), "summary")
        without = {name: data for name, data in held.items() if name != "summary.json"}
        failed(repaired(without), "cells")


def test_a_statement_that_says_more_than_the_files_is_noticed(members: Members) -> None:
    stated = value(members, "statement.json")
    for change in (
        {"scope": []},
        {"scope": ["Approved."]},
        {"run": "another"},
        {"tried": 1},
        {"custom_rules": {"alpha": [0.05, 0.1]}},
        {"reused": ["sha256:0"]},
    ):
        other = stated | {"predicate": stated["predicate"] | change}
        failed(pack(members | {"statement.json": written(other)}), "statement")
    failed(pack(members | {"statement.json": written(stated | {"more": 1})}), "statement")
    failed(pack(members | {"statement.json": written(stated | {"_type": "other"})}), "digests")


def test_json_in_another_spelling_is_noticed(members: Members) -> None:
    for name in ("terms.json", "statement.json", "summary.json", f"{CELL}/cell.json"):
        data = members[name]
        for other in (data[:-1], b" " + data, data.replace(b":", b": ", 1), b"[" * 10**5, b"NaN\n"):
            failed(pack(members | {name: other}))
            if name != "statement.json":
                failed(repaired(members | {name: other}))


def test_scores_changed_without_the_summary_or_the_record_are_noticed(members: Members) -> None:
    better = with_rows(members, lambda items: items | {"nll_sum": items["nll_sum"] + 0.5})
    items, summary = f"{CELL}/items.parquet", f"{CELL}/cell.json"
    failed(repaired(members | {items: better[items]}), "record")
    failed(repaired(members | {items: better[items], summary: better[summary]}), "record")


def test_scores_that_do_not_give_the_verdict_are_noticed(members: Members) -> None:
    def worse(items: dict[str, Any]) -> dict[str, Any]:
        chosen = (items["model"] == "ga-w3") & (items["pool"] == "evaluation")
        return items | {"nll_sum": np.where(chosen, items["nll_sum"] + 3.0, items["nll_sum"])}

    failed(repaired(with_rows(members, worse)), "verdicts")

    def relearned(curves: dict[str, Any]) -> dict[str, Any]:
        chosen = curves["model"] == "ga-w3"
        later = np.where(chosen, curves["forget_heldout_nll"] - 1.0, curves["forget_heldout_nll"])
        return curves | {"forget_heldout_nll": later}

    failed(repaired(with_rows(members, relearned, tables=("curves",))), "verdicts")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e308, -1e308])
def test_scores_that_are_not_finite_give_no_verdict(bad: float, members: Members) -> None:
    def broken(items: dict[str, Any]) -> dict[str, Any]:
        return items | {"nll_sum": np.where(items["pool"] == "evaluation", bad, items["nll_sum"])}

    failed(repaired(with_rows(members, broken)), "verdicts")
