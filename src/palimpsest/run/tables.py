"""Tables as parquet files whose bytes depend on their contents alone.

A table is a mapping from column name to a one-dimensional array or list. Text is stored as UTF-8,
numbers and truth values in their own width. Written with one fixed parquet version, compression
and row-group length, and with a single NaN, so that equal columns give equal bytes.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest.errors import DamagedArtifact, InputError, StoreError
from palimpsest.run.disk import digest, disk_errors, safe_name, write_bytes

# numpy and pyarrow are loaded by the functions that need them, so that commands start quickly.
if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Columns = Mapping[str, Array | Sequence[Any]]
    Table = dict[str, Array]
else:
    Array, Columns, Table = Sequence, Mapping, dict

ROW_GROUP = 65_536
_KEPT = ("bool", "int32", "int64", "float32", "float64")


def as_table(columns: Columns) -> Table:
    """Return the columns as arrays of equal length: text as arrays of str, the rest by dtype."""
    table = {str(name): _as_array(str(name), values) for name, values in columns.items()}
    lengths = {name: len(values) for name, values in table.items()}
    if len(set(lengths.values())) != 1:
        raise StoreError(f"a table has columns of lengths {lengths}; expected one common length")
    return table


def table_bytes(columns: Columns) -> bytes:
    """Return the parquet bytes of a table; equal columns give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = as_table(columns)
    arrays = [
        pa.array(values, type=pa.string() if values.dtype == object else None)
        for values in table.values()
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays(arrays, names=list(table)),
        sink,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=3,
        use_dictionary=[name for name, values in table.items() if values.dtype == object],
        row_group_size=ROW_GROUP,
        store_schema=False,
    )
    return bytes(sink.getvalue())


def table_from_bytes(data: bytes, name: str) -> Table:
    """Return the columns in parquet bytes; `name` is the file to name in errors."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Text arrives dictionary-coded, so that a million rows share a few hundred str objects.
        schema = pq.read_schema(pa.BufferReader(data))
        text = [field.name for field in schema if pa.types.is_string(field.type)]
        table = pq.ParquetFile(pa.BufferReader(data), read_dictionary=text).read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedArtifact(f"{name}: not a parquet table ({error})") from error
    columns: Table = {}
    for field, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count:
            raise DamagedArtifact(f"{name}: column {field!r} has empty entries; expected none")
        if pa.types.is_dictionary(column.type):
            columns[field] = _text(column)
        else:
            columns[field] = column.to_numpy()
    return columns


def table_file(name: str) -> str:
    """Return the file name of a table; InputError when a table cannot be called that."""
    if re.fullmatch(r"[a-z][a-z0-9_]{0,39}", safe_name(name, "table")) is None:
        raise InputError(f"table name {name!r}; expected one lower-case word such as 'items'")
    return f"{name}.parquet"


def write_table(path: Path, columns: Columns) -> str:
    """Write a table as parquet, atomically; return the file's digest."""
    return write_bytes(path, table_bytes(columns))


def read_table(path: Path, expected: str | None = None) -> Table:
    """Return the columns of a parquet file, checked against its digest when one is given."""
    path = Path(path)
    with disk_errors(path, "read"):
        data = path.read_bytes()
    if expected is not None and digest(data) != expected:
        raise DamagedArtifact(f"{path}: digest {digest(data)}; expected {expected}")
    return table_from_bytes(data, str(path))


def concatenate(tables: Sequence[tuple[str, Table]], what: str) -> Table:
    """Return one table with the rows of several, in order; their columns and types must agree."""
    import numpy as np

    owner, first = tables[0]
    shape = {name: values.dtype for name, values in first.items()}
    for other, table in tables[1:]:
        found = {name: values.dtype for name, values in table.items()}
        if list(found.items()) != list(shape.items()):
            raise StoreError(
                f"{what} of step {other!r} has columns {found}; expected those of step {owner!r}: "
                f"{shape}; store the same columns in every step"
            )
    return {name: np.concatenate([table[name] for _, table in tables]) for name in shape}


def _as_array(name: str, values: Array | Sequence[Any]) -> Array:
    import numpy as np

    array = np.asarray(values)
    if array.ndim != 1:
        raise StoreError(f"column {name!r} has shape {array.shape}; expected one dimension")
    if array.dtype.kind == "U" or array.dtype == object:
        texts = array.tolist()
        strange = {type(item).__name__ for item in texts if type(item) is not str}
        if strange:
            raise StoreError(f"column {name!r} holds {sorted(strange)}; expected text only")
        try:
            "".join(texts).encode("utf-8")
        except UnicodeEncodeError as error:
            raise StoreError(f"column {name!r} holds text that is not Unicode ({error})") from error
        result = np.empty(len(texts), dtype=object)
        result[:] = texts
        return result
    if array.dtype.name not in _KEPT:
        raise StoreError(f"column {name!r} has type {array.dtype}; expected text or one of {_KEPT}")
    if array.dtype.kind == "f":
        # NaNs differ in sign and payload between instructions; store only one kind of them.
        array = np.where(np.isnan(array), array.dtype.type(np.nan), array)
    return array


def _text(column: Any) -> Array:
    import numpy as np

    if len(column) == 0:
        return np.empty(0, dtype=object)
    parts = []
    for chunk in column.chunks:
        words = np.empty(len(chunk.dictionary), dtype=object)
        words[:] = chunk.dictionary.to_pylist()
        parts.append(words[chunk.indices.to_numpy()])
    return np.concatenate(parts)
