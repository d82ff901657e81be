"""Rows of a stranger's JSON lines, parquet or CSV file, read within bounds and never executed."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.errors import FactsError
from palimpsest.facts.names import shown, shown_path

FILE_LIMIT = 64 * 2**20
"""Largest file, in bytes; for parquet also its size once decompressed."""
FACTS_LIMIT = 100_000
"""Most rows in one file."""
PROMPT_LIMIT = 8_000
"""Longest prompt, evidence sentence, subject or relation, in characters."""
PROMPTS_LIMIT = 100
"""Most prompts or evidence sentences in one list."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """In place of a row: why this line holds none."""

    why: str


def read_bytes(path: Path | str) -> bytes:
    """Return the bytes of an ordinary file within the size limit, or FactsError."""
    path, name = Path(path), shown_path(path)
    try:
        if not path.is_file():
            what = "a folder or device" if path.exists() else "nothing"
            raise FactsError(f"{name}: found {what} there; expected a file")
        with path.open("rb") as file:
            raw = file.read(FILE_LIMIT + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or shown(str(error))
        raise FactsError(f"{name}: cannot be read: {why}") from error
    if len(raw) > FILE_LIMIT:
        raise FactsError(f"{name}: is larger than {FILE_LIMIT} bytes; split it")
    return raw


def numbered_rows(path: Path | str, tables: bool = False) -> Iterator[tuple[int, object]]:
    """Yield every row with its line (JSON lines, CSV) or row number (parquet, JSON array), from 1.

    A line that holds no JSON value comes as ``Unreadable``; a file that cannot be read at all is a
    FactsError. With ``tables`` a file may also be .csv or .json (an array or JSON lines).
    """
    ending, name = Path(path).suffix.lower(), shown_path(path)
    readers: dict[str, Callable[[bytes], Iterable[tuple[int, object]]]]
    readers = {".jsonl": json_rows, ".parquet": _parquet_rows}
    readers |= {".csv": csv_rows, ".json": _array_rows} if tables else {}
    if ending not in readers:
        raise FactsError(
            f"{name}: the name ends with {shown(ending)}; expected .jsonl (one JSON object a "
            "line) or .parquet"
        )
    raw = read_bytes(path)
    try:
        yield from readers[ending](raw)
    except FactsError as error:
        raise FactsError(f"{name}: {error}") from error


def _array_rows(raw: bytes) -> Iterable[tuple[int, object]]:
    whole = parse_json(raw.removeprefix(b"\xef\xbb\xbf"))
    return enumerate(whole, 1) if isinstance(whole, list) else json_rows(raw)


def json_rows(raw: bytes) -> Iterator[tuple[int, object]]:
    """Yield every JSON value with its line number; blank lines are skipped."""
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            yield number, parse_json(line)


def parse_json(raw: bytes) -> object:
    """Return the value of strict JSON text, or ``Unreadable``: UTF-8, no repeated keys, no NaN."""
    try:
        value: object = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant
        )
    except UnicodeDecodeError as error:
        return Unreadable(f"byte {error.start + 1} is not UTF-8; save the file as UTF-8")
    except RecursionError:
        return Unreadable("is nested too deeply; expected a flat JSON object")
    except ValueError as error:
        return Unreadable(f"is not valid JSON: {shown(str(error), 200)[1:-1]}")
    return value


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key {shown(key)} occurs twice")
        values[key] = value
    return values


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON value")


def csv_rows(raw: bytes) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield every row of comma-separated text with a header, by the line it ends on."""
    try:
        text = raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        header = reader.fieldnames or ()
        if len(set(header)) < len(header):
            raise FactsError("line 1: a column name occurs twice; every column needs its own")
        for row in reader:
            if None in row or None in row.values():
                raise FactsError(
                    f"line {reader.line_num}: has another number of cells than the header's "
                    f"{len(header)}; quote cells that hold commas"
                )
            yield reader.line_num, row
    except UnicodeDecodeError as error:
        raise FactsError(f"byte {error.start + 1} is not UTF-8; save the file as UTF-8") from error
    except csv.Error as error:
        raise FactsError(f"near line {reader.line_num}: is not valid CSV: {error}") from error


def _parquet_rows(raw: bytes) -> Iterator[tuple[int, object]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        file = pq.ParquetFile(pa.BufferReader(raw))
        about = file.metadata
        size = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        if size > FILE_LIMIT or about.num_rows > FACTS_LIMIT:
            raise FactsError(
                f"{about.num_rows} rows of {size} bytes decompressed; at most "
                f"{FACTS_LIMIT} rows and {FILE_LIMIT} bytes are allowed"
            )
        for field in file.schema_arrow:
            if not _is_text(pa, field.type):
                raise FactsError(
                    f"column {shown(field.name)} is {shown(str(field.type))}; expected "
                    "strings or lists of strings"
                )
        # Kept as dictionaries until measured: one entry can stand for any number of cells.
        leaves = [about.schema.column(i).path for i in range(len(about.schema))]
        file = pq.ParquetFile(pa.BufferReader(raw), read_dictionary=leaves)
        for batch in file.iter_batches(batch_size=64):
            for column, cells in zip(batch.schema.names, batch.columns, strict=True):
                _measure(pa, f"column {shown(column)}", cells)
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise FactsError(f"is not a readable parquet file: {shown(str(error), 200)}") from error


def _is_text(pa: Any, column: Any) -> bool:
    if pa.types.is_list(column) or pa.types.is_large_list(column):
        column = column.value_type
    if pa.types.is_dictionary(column):
        column = column.value_type
    text = pa.types.is_string(column) or pa.types.is_large_string(column)
    return bool(text or pa.types.is_null(column))


def _measure(pa: Any, where: str, cells: Any) -> None:
    """Refuse, as FactsError, cells too long or too many to be spelled out."""
    import pyarrow.compute as pc

    if pa.types.is_list(cells.type) or pa.types.is_large_list(cells.type):
        longest = pc.max(pc.list_value_length(cells)).as_py() or 0
        if longest > PROMPTS_LIMIT:
            raise FactsError(
                f"{where}: a list has {longest} entries; at most {PROMPTS_LIMIT} are allowed"
            )
        cells = cells.flatten()
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary
    if not pa.types.is_null(cells.type):
        longest = pc.max(pc.binary_length(cells)).as_py() or 0
        if longest > 4 * PROMPT_LIMIT:
            raise FactsError(
                f"{where}: a text has {longest} bytes; at most {PROMPT_LIMIT} characters are "
                "allowed"
            )
