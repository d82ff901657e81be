"""Columns come back as they were stored, and the same columns are the same bytes."""

import numpy as np
import pytest

from palimpsest.errors import DamagedArtifact, StoreError
from palimpsest.run.tables import concatenate, table_bytes, table_from_bytes

COLUMNS = {
    "model": ["base", "injected", "base"],
    "template": np.array([0, 1, 2], dtype=np.int32),
    "nll_sum": np.array([0.1, -0.0, np.nan]),
    "exact": np.array([True, False, True]),
}


def test_a_table_comes_back_as_it_was_stored():
    data = table_bytes(COLUMNS)
    table = table_from_bytes(data, "t")
    assert list(table) == list(COLUMNS) and table_bytes(table) == data
    assert table["model"].tolist() == COLUMNS["model"]
    for name in ("template", "nll_sum", "exact"):
        assert table[name].dtype == COLUMNS[name].dtype  # type: ignore[union-attr]
        np.testing.assert_array_equal(table[name], COLUMNS[name])
    assert (table["model"] == "base").tolist() == [True, False, True]


def test_the_same_columns_give_the_same_bytes_whatever_holds_them():
    again = {name: np.array(values) for name, values in COLUMNS.items()}
    assert again["model"].dtype.kind == "U"
    assert table_bytes(again) == table_bytes(COLUMNS)
    objects = COLUMNS | {"model": np.array(COLUMNS["model"], dtype=object)}
    assert table_bytes(objects) == table_bytes(COLUMNS)


def test_every_nan_is_stored_as_one():
    odd = np.array([0xFFF8000000000001], dtype=np.uint64).view(np.float64)
    assert table_bytes({"x": odd}) == table_bytes({"x": np.array([np.nan])})


def test_a_table_longer_than_a_row_group_comes_back_whole():
    long = {"fact": [f"f{n % 70_000}" for n in range(140_000)], "n": np.arange(140_000)}
    table = table_from_bytes(table_bytes(long), "t")
    assert table["fact"].tolist() == long["fact"]
    np.testing.assert_array_equal(table["n"], long["n"])


def test_an_empty_table_keeps_its_columns():
    empty = {"fact": np.empty(0, dtype=object), "n": np.empty(0, dtype=np.int32)}
    table = table_from_bytes(table_bytes(empty), "t")
    assert table["fact"].dtype == object and table["n"].dtype == np.int32
    assert len(table["fact"]) == len(table["n"]) == 0


@pytest.mark.parametrize(
    "columns",
    [
        {"x": [1, 2], "y": [1]},
        {"x": np.zeros((2, 2))},
        {"x": ["a", None]},
        {"x": np.array([1], dtype=np.uint8)},
        {"x": ["\ud800"]},
        {},
    ],
)
def test_columns_that_cannot_be_stored_faithfully_are_refused(columns):
    with pytest.raises(StoreError):
        table_bytes(columns)


def test_tables_whose_columns_or_types_differ_are_not_joined():
    one = {"x": np.array([1], dtype=np.int32)}
    other = {"x": np.array([1.0])}
    with pytest.raises(StoreError):
        concatenate([("a", one), ("b", other)], "items")
    assert concatenate([("a", one), ("b", one)], "items")["x"].tolist() == [1, 1]


def test_a_small_file_of_millions_of_equal_rows_is_refused_before_it_is_read():
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    rows = pa.table({f"c{n}": pa.array(np.zeros(5_000_000, dtype=np.int32)) for n in range(21)})
    pq.write_table(rows, sink)
    assert len(sink.getvalue()) < 10**6
    for data in (sink.getvalue(), b"PAR1 nothing PAR1"):
        with pytest.raises(DamagedArtifact):
            table_from_bytes(data, "t")
