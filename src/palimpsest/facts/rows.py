"""Names and rows from untrusted files: checked or read within bounds, never executed.

Names, such as fact ids and candidates, are safe for paths, tables and HTML. Rows come from a JSON,
parquet or CSV file.
"""

import csv
import io
import json
import os
import re
import stat
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palimpsest.errors import FactsError

NAME_LIMIT = 100
"""Longest name, in characters; it also stays within the 255 bytes file systems allow."""

_DEVICES = r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])\Z"


def shown(text: str, limit: int = 60) -> str:
    """Return the text quoted for an error message: escaped to ASCII and cut."""
    return ascii(text) if len(text) <= limit else f"{text[:limit]!a}... ({len(text)} characters)"


def shown_path(path: object) -> str:
    """Return the path for an error message, escaped when it holds anything that could act there."""
    return str(path) if str(path).isprintable() else ascii(str(path))[1:-1]


def name_problem(name: str) -> str | None:
    """Return why a name is not safe, or None when it is.

    Safe means that it can be a file name on any system, a table cell and a word on a command line:
    letters, digits and ``. _ - + = @ # , ( )`` and spaces inside; no separators, no leading dot or
    dash, no device names of Windows, no control or invisible characters, NFC, bounded length.
    """
    why = ""
    if not name or len(name) > NAME_LIMIT or len(name.encode("utf-8", "surrogatepass")) > 255:
        why = f"expected 1 to {NAME_LIMIT} characters, at most 255 bytes"
    elif not all(sign.isalnum() or sign in "._-+=@#,() " for sign in name):
        why = "expected letters, digits and ._-+=@#,() only, so that a name can never be a path"
    elif name[0] in ".- " or name[-1] in ". ":
        why = "expected no dot, dash or space at the beginning, no dot or space at the end"
    elif re.match(_DEVICES, name.split(".")[0].rstrip(), re.IGNORECASE):
        why = "expected another than a device name of Windows"
    elif not unicodedata.is_normalized("NFC", name):
        why = "expected composed letters (Unicode NFC); retype it"
    return f"{shown(name)} found; {why}" if why else None


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


def read_lines(path: Path | str, limit: int) -> Iterator[bytes]:
    """Yield the lines of a file; FactsError if it is no regular file or has over ``limit`` bytes.

    A line of FILE_LIMIT bytes or more comes in parts, so that memory is bounded.
    """
    name = shown_path(path)
    try:
        # Before it is opened: opening a pipe waits for its writer, and a device never ends.
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):
            raise FactsError(f"{name}: found a folder, device or pipe; expected a file")
        size = about.st_size
        with open(path, "rb") as file:
            while size <= limit and (line := file.readline(FILE_LIMIT)):
                yield line
                size = max(size, file.tell())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or shown(str(error))
        raise FactsError(f"{name}: cannot be read ({why}); expected a file") from error
    if size > limit:
        raise FactsError(f"{name}: has more than {limit} bytes; split it")


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
    raw = b"".join(read_lines(path, FILE_LIMIT)).removeprefix(b"\xef\xbb\xbf")
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
            where = place(shown_path(path), line)
            raise FactsError(f"{where}: {found}; expected an object with keys")
        yield line, row


def place(file: str, line: int | None) -> str:
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
        # Kept as dictionaries until measured: one entry can stand for any number of cells.
        leaves = [about.schema.column(i).path for i in range(len(about.schema))]
        file = pq.ParquetFile(pa.BufferReader(raw), read_dictionary=leaves)
        for batch in file.iter_batches(batch_size=64):
            for name, cells in zip(batch.schema.names, batch.columns, strict=True):
                _check_lengths(pa.types, name, cells)
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise FactsError(f"is not a readable parquet file: {shown(str(error), 200)}") from error


def _is_text(types: Any, column: Any) -> bool:
    for is_outer in (types.is_list, types.is_large_list, types.is_dictionary):
        column = column.value_type if is_outer(column) else column
    return bool(types.is_string(column) or types.is_large_string(column) or types.is_null(column))


def _check_lengths(types: Any, name: str, cells: Any) -> None:
    """Refuse, as FactsError, cells too long or too many to be spelled out."""
    import pyarrow.compute as pc

    longest = 0
    if types.is_list(cells.type) or types.is_large_list(cells.type):
        longest = pc.max(pc.list_value_length(cells)).as_py() or 0
        cells = cells.flatten()
    if types.is_dictionary(cells.type):
        cells = cells.dictionary
    size = 0 if types.is_null(cells.type) else pc.max(pc.binary_length(cells)).as_py() or 0
    if longest > PROMPTS_LIMIT or size > 4 * PROMPT_LIMIT:
        raise FactsError(f"column {shown(name)}: a list has {longest} texts, a text {size} bytes")
