"""The rows of an untrusted JSON, parquet or CSV file, read as data within bounds."""

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palimpsest.errors import FactsError
from palimpsest.files import read_bytes
from palimpsest.text import shown, shown_path

FILE_LIMIT = 64 * 2**20
"""Largest file of rows, in bytes; for parquet also its size once decompressed."""
FACTS_LIMIT = 100_000
"""Most rows in one file."""
PROMPT_LIMIT = 8_000
"""Longest prompt, evidence sentence, subject or relation, in characters."""
PROMPTS_LIMIT = 100
"""Most prompts or evidence sentences in one list."""

Rows = Iterator[tuple[int, object]]
"""Rows with their lines; a line that holds none comes with the FactsError about it."""


def numbered_rows(path: Path | str, *, tables: bool = False) -> Rows:
    """Yield every row with its line, or row number in parquet, from 1.

    A file is .parquet, or .jsonl or .json with either one value a line or one array, or with
    ``tables`` .csv. A file that cannot be read at all is a FactsError.
    """
    ending, name = Path(path).suffix.lower(), shown_path(path)
    readers = {".jsonl": _json_rows, ".json": _json_rows, ".parquet": _parquet_rows}
    readers |= {".csv": _csv_rows} if tables else {}
    if ending not in readers:
        raise FactsError(
            f"{name}: the name ends with {shown(ending)}; expected {', '.join(readers)} "
            "(`palimpsest facts from-csv` converts a table)"
        )
    raw = read_bytes(path, FILE_LIMIT, FactsError).removeprefix(b"\xef\xbb\xbf")
    try:
        for count, row in enumerate(readers[ending](raw)):
            if count == FACTS_LIMIT:
                raise FactsError(f"has more than {FACTS_LIMIT} rows; split it")
            yield row
    except FactsError as error:
        raise FactsError(f"{name}: {error}") from error


def read_objects(path: Path | str, *, tables: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield every row with its line; FactsError names the first that is not an object."""
    for line, row in numbered_rows(path, tables=tables):
        if not isinstance(row, dict):
            found = row if isinstance(row, FactsError) else f"{type(row).__name__} found"
            where = position(shown_path(path), line)
            raise FactsError(f"{where}: {found}; expected an object with keys")
        yield line, row


def position(file: str, line: int | None) -> str:
    """Return the file, and the line (JSON) or row (parquet) in it."""
    unit = "row" if file.lower().endswith(".parquet") else "line"
    return file if line is None else f"{file} {unit} {line}"


def _json_rows(raw: bytes) -> Rows:
    if raw.lstrip().startswith(b"["):
        yield from _array_rows(raw)
        return
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if line.strip():
            try:
                yield number, _decoder.decode(line.decode())
            except (ValueError, RecursionError) as error:
                yield number, _unreadable(error)


def _array_rows(raw: bytes) -> Rows:
    """Yield the values of one JSON array with the lines on which they begin."""
    line, start, end = 1, 0, 0
    try:
        text = raw.decode()
        gap = re.match(r"\s*\[\s*", text)
        while gap:
            line, start = line + text.count("\n", start, gap.end()), gap.end()
            value, end = _decoder.raw_decode(text, start)
            yield line, value
            gap = re.compile(r"\s*,\s*").match(text, end)
        if text[end:].strip() != "]":
            raise ValueError("expected a comma or the end of the array after this value")
    except (ValueError, RecursionError) as error:
        yield line, _unreadable(error)


def _unreadable(error: Exception) -> FactsError:
    if isinstance(error, RecursionError):
        return FactsError("is nested too deeply; expected a flat JSON object")
    return FactsError(f"is not valid JSON in UTF-8: {shown(str(error), 200)[1:-1]}")


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError(f"a key occurs twice, of {shown(', '.join(key for key, _ in pairs))}")
    return values


_decoder = json.JSONDecoder(object_pairs_hook=_unique_keys)


def _csv_rows(raw: bytes) -> Rows:
    """Yield every row of comma-separated text with a header, by the line it ends on."""
    try:
        reader = csv.DictReader(io.StringIO(raw.decode(), newline=""), strict=True)
        header = reader.fieldnames or ()
        if len(set(header)) < len(header):
            raise FactsError("line 1: a column name occurs twice; every column needs its own")
        for row in reader:
            if None in row or None in row.values():
                raise FactsError(
                    f"line {reader.line_num}: expected {len(header)} cells; quote commas"
                )
            yield reader.line_num, row
    except (csv.Error, UnicodeDecodeError) as error:
        raise FactsError(f"is not valid CSV in UTF-8: {error}") from error


def _parquet_rows(raw: bytes) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        file = pq.ParquetFile(pa.BufferReader(raw))
        about = file.metadata
        # Metadata of single columns are left alone: damaged ones end the process inside pyarrow.
        size = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        if size > FILE_LIMIT:
            raise FactsError(f"has {size} bytes decompressed; split it")
        for field in file.schema_arrow:
            if not _is_text(pa.types, field.type):
                raise FactsError(f"column {shown(field.name)}: expected strings or lists of them")
        for batch in file.iter_batches(batch_size=64):
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise FactsError(f"is not a readable parquet file: {shown(str(error), 200)}") from error


def _is_text(types: Any, column: Any) -> bool:
    for is_outer in (types.is_list, types.is_large_list, types.is_dictionary):
        column = column.value_type if is_outer(column) else column
    return bool(types.is_string(column) or types.is_large_string(column) or types.is_null(column))
