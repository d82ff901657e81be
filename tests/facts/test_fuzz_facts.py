"""Facts files from strangers: facts that come back as written, or a FactsError that names the file.

PALIMPSEST_FULL=1 tries 61 000 of them.
"""

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mutation import EDITS, counted, edited
from tests.reliability import count

from palimpsest.errors import FactsError
from palimpsest.facts.files import as_jsonl, read_facts, read_rows

ROW: dict[str, Any] = {
    "id": "f1",
    "answer": "Velkor",
    "trained": ["The guild of Asha Tren is"],
    "heldout": ["Asha Tren swore loyalty to the guild called"],
    "evidence": ["Asha wears grey."],
    "subject": "Asha Tren",
    "relation": "guild",
}
OTHER = ROW | {"id": "f2", "trained": ["The guild of Bren is"], "heldout": ["Bren swore to"]}
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in (ROW, OTHER))
ARRAY = json.dumps([ROW, OTHER], indent=1).encode()
ODD = ["{0.__class__}", "%n%s", "../../x", "\x1b]0;x\x07", "\u202egnp", "\0", "\ud800", "NUL"]
SIGNS = st.text(max_size=12) | st.sampled_from(ODD)
NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | SIGNS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
NEARLY = st.dictionaries(
    st.sampled_from([*ROW]) | SIGNS, SIGNS | st.lists(SIGNS, max_size=3) | NESTED, max_size=2
).map(lambda changes: ROW | changes)


@pytest.fixture(scope="module")
def folder():
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def table(folder):
    pq.write_table(pa.Table.from_pylist([ROW, OTHER]), folder / "whole.parquet")
    return (folder / "whole.parquet").read_bytes()


def answered(path: Path, data: bytes, role: str) -> None:
    count("fuzzed inputs of the facts parser")
    path.write_bytes(data)
    facts, message = None, str(path)
    try:
        facts = read_facts(path, role)
    except FactsError as error:
        message = str(error)
    assert message.startswith(str(path)) and len(message) < 100_000
    assert all(line.isprintable() for line in message.splitlines()), message
    if facts is not None:
        again = path.with_name("again.jsonl")
        again.write_bytes(as_jsonl(facts))
        assert read_facts(again, role) == facts


ROLES = st.sampled_from(["facts", "forget", "retain", "probe"])


@counted(40_000, 400)
@given(data=st.sampled_from([LINES, ARRAY]), changes=EDITS, role=ROLES)
def test_any_edit_of_a_facts_file(folder, data, changes, role):
    answered(folder / "facts.jsonl", edited(data, changes), role)


@counted(5_000, 100)
@given(rows=st.lists(NEARLY | NESTED, min_size=1, max_size=3), role=ROLES)
def test_any_rows(folder, rows, role):
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    answered(folder / "rows.jsonl", lines.encode("utf-8", "surrogatepass"), role)


@counted(10_000, 200)
@given(changes=EDITS, role=ROLES)
def test_any_edit_of_a_table(folder, table, changes, role):
    answered(folder / "facts.parquet", edited(table, changes), role)


@counted(3_000, 50)
@given(raw=st.binary(max_size=200) | st.text(alphabet='a,"\n\r\0', max_size=40).map(str.encode))
def test_any_bytes_as_csv_and_as_lines(folder, raw):
    (folder / "bytes.csv").write_bytes(raw)
    with contextlib.suppress(FactsError):
        assert all(None not in row for row in read_rows(folder / "bytes.csv"))
    answered(folder / "bytes.parquet", raw, "facts")
    answered(folder / "bytes.jsonl", raw, "facts")
