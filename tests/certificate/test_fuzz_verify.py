"""Mutated bundles: no traceback, no hang, no false pass.

PALIMPSEST_FULL=1 tries 72 000 of them.
"""

import json

import pytest
from forgery import failed_apart, repaired, with_cell, written
from hypothesis import given
from hypothesis import strategies as st
from tests.made_runs import STUDY, write_study
from tests.mutation import EDITS, counted, edited, places, replaced
from tests.reliability import count

from palimpsest.certificate import certify
from palimpsest.certificate.bundle import pack, unpack
from palimpsest.certificate.checks import CHECKS, examine


class Whole(bytes):
    """A bundle whose repr does not fill the screen when a property fails."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return Whole(certify(write_study(tmp_path_factory.mktemp("fuzz") / "run")).read_bytes())


def answered(data: bytes) -> bool:
    """Return whether the bytes verify; whatever they are, the answer can be shown."""
    count("fuzzed inputs of verify")
    verification = examine(data)
    assert verification.ok == all(check.state != "failed" for check in verification.checks)
    assert verification.ok == (len(verification.checks) == len(CHECKS))
    assert verification.ok == bool(verification.verdicts)
    json.dumps(verification.to_json(), allow_nan=False)
    for line in verification.lines():
        assert line.isprintable(), line
    return verification.ok


@counted(60_000, 400)
@given(changes=EDITS)
def test_edited_bytes_never_pass(whole, changes):
    data = edited(whole, changes)
    assert not answered(data) or unpack(data) == unpack(whole)


@counted(5_000, 50)
@given(data=st.binary(max_size=400), head=st.sampled_from([b"", b"PK\3\4", b"PK\5\6"]))
def test_any_bytes_never_pass(data, head):
    assert not answered(head + data)


# -- a forger who repairs every digest of the statement --------------------------------------------

CELL = f"cells/{STUDY}"
NAMES = (
    "terms.json",
    "rosters.json",
    "reveal.json",
    f"{CELL}/cell.json",
    f"{CELL}/items.parquet",
    f"{CELL}/curves.parquet",
    f"{CELL}/measures.parquet",
)


@counted(4_000, 60)
@given(name=st.sampled_from(NAMES), changes=EDITS)
def test_edited_files_with_new_digests_never_pass(whole, name, changes):
    members = unpack(whole)
    data = edited(members[name], changes)
    assert answered(repaired(members | {name: data})) == (data == members[name])


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
    st.sampled_from([STUDY, "../x", "\x1b[31m", "sha256:" + "0" * 64, 1e308, [], {}, [[]]]),
)


@counted(2_000, 100)
@given(name=st.sampled_from(NAMES), where=st.floats(0, 1, exclude_max=True), new=leaves)
def test_any_value_in_any_json_with_repaired_digests_never_passes(whole, name, where, new):
    members = unpack(whole)
    if not name.endswith(".json"):
        return
    value = json.loads(members[name])
    paths = places(value)
    data = written(replaced(value, paths[int(where * len(paths))], new))
    assert answered(repaired(members | {name: data})) == (data == members[name])


@counted(3_000, 40)
@given(table=st.sampled_from(["items", "curves"]), changes=EDITS)
def test_damaged_tables_under_a_record_made_for_them_are_answered_or_end_their_process(
    whole, table, changes
):
    """Whoever makes the record again can invent scores; no exception comes out of it."""
    members = unpack(whole)
    name = f"{CELL}/{table}.parquet"
    failed_apart(repaired(with_cell(members | {name: edited(members[name], changes)})))


def test_the_bundle_under_the_fuzz_is_a_real_one(whole):
    members = unpack(whole)
    assert answered(pack(members))
    assert not failed_apart(repaired(with_cell(members)))
