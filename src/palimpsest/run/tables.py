"""Tables as parquet files whose bytes depend on their contents alone.

A table is a mapping from column name to a one-dimensional array or list. Text is stored as UTF-8,
numbers and truth values in their own width. Written with one fixed parquet version, compression
and row-group length, and with a single NaN, so that equal columns give equal bytes.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from palimpsest.errors import DamagedArtifact, InputError, StoreError
from palimpsest.run.files import safe_name

# numpy and pyarrow are loaded by the functions that need them, so that commands start quickly.
if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Columns = Mapping[str, Array | Sequence[Any]]
    Table = dict[str, Array]
else:
    Array, Columns, Table = Sequence, Mapping, dict

ROW_GROUP = 65_536
MOST_VALUES = 10**8
"""Rows times columns of a table; a cell of hundreds of models has some millions."""
MOST_BYTES = 2**31
_KEPT = ("bool", "int32", "int64", "float32", "float64")


def table_bytes(columns: Columns) -> bytes:
    """Return the parquet bytes of a table; equal columns give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = {str(name): _as_array(str(name), values) for name, values in columns.items()}
    lengths = {name: len(values) for name, values in table.items()}
    if len(set(lengths.values())) != 1:
        raise StoreError(f"a table has columns of lengths {lengths}; expected one common length")
    if sum(lengths.values()) > MOST_VALUES:
        raise StoreError(
            f"a table has {sum(lengths.values())} values; expected at most {MOST_VALUES}; ask for "
            "fewer facts, or spread them over several cells"
        )
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays([_arrow(values) for values in table.values()], names=list(table)),
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
        footer = pq.read_metadata(pa.BufferReader(data))
        _check_size(name, footer)
        schema = footer.schema.to_arrow_schema()
        text = [field.name for field in schema if pa.types.is_string(field.type)]
        table = pq.ParquetFile(pa.BufferReader(data), read_dictionary=text).read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedArtifact(f"{name}: not a parquet table ({error})") from error
    for field, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count:
            raise DamagedArtifact(f"{name}: column {field!r} has empty entries; expected none")
    return {field: _column(table[field]) for field in table.column_names}


def _check_size(name: str, footer: Any) -> None:
    """Refuse a table that takes gigabytes: a few kilobytes may hold millions of equal rows."""
    values = footer.num_rows * footer.num_columns
    size = sum(footer.row_group(n).total_byte_size for n in range(footer.num_row_groups))
    if not 0 <= values <= MOST_VALUES or not 0 <= size <= MOST_BYTES:
        raise DamagedArtifact(
            f"{name}: {footer.num_rows} rows of {footer.num_columns} columns with {size} bytes "
            f"once decompressed; expected at most {MOST_VALUES} values and {MOST_BYTES} bytes"
        )


def table_file(name: str) -> str:
    """Return the file name of a table; InputError when a table cannot be called that."""
    if re.fullmatch(r"[a-z][a-z0-9_]{0,39}", safe_name(name, "table")) is None:
        raise InputError(f"table name {name!r}; expected one lower-case word such as 'items'")
    return f"{name}.parquet"


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


def _arrow(values: Array) -> Any:
    """Return an array as Arrow's; ``pa.array`` would import pandas first, where that is there."""
    import numpy as np
    import pyarrow as pa

    if values.dtype == object:
        texts = [text.encode("utf-8") for text in values]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        kind, parts = pa.string(), [ends, b"".join(texts)]
    else:
        bits = values.dtype == bool
        kind = pa.from_numpy_dtype(values.dtype)
        parts = [np.packbits(values, bitorder="little") if bits else np.ascontiguousarray(values)]
    buffers = [None, *(pa.py_buffer(part) for part in parts)]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _column(column: Any) -> Array:
    """Return a column as an array; ``to_numpy`` would import pandas first, where that is there."""
    import numpy as np
    from pyarrow import types

    array: Array
    if types.is_dictionary(column.type):
        values = column.combine_chunks()
        words = np.array(values.dictionary.to_pylist(), dtype=object)
        array = words[np.from_dlpack(values.indices)]
    elif types.is_integer(column.type) or types.is_floating(column.type):
        array = np.from_dlpack(column.combine_chunks()).copy()
    else:
        array = np.array(column.to_pylist(), dtype=bool)
    return array


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
