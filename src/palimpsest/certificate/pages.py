"""What a parquet file asks its reader for, looked up before a reader sees it.

A reader allocates what footer and page headers ask for, and pyarrow ends the process on some
footers that contradict themselves. So both are read here first: Thrift structs in the compact
protocol, https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift,
with fields by their numbers there.
"""

from dataclasses import dataclass
from typing import Any

from palimpsest.errors import BundleError

_DEPTH = 12
_LONGEST = 2**16
"""Elements of a list, and bytes of a page's header."""
_FOOTER = 2**24
_DICTIONARY = 7
_OWN_HEADERS = (5, 7, 8)
"""Fields of a page header with the header of its kind: data, dictionary, data of version 2."""


@dataclass(frozen=True, slots=True)
class Outline:
    """A parquet file as its footer tells it."""

    columns: tuple[str, ...]
    rows: int
    size: int
    """Bytes of all columns once decompressed."""


def outline(data: bytes, name: str) -> Outline:
    """The outline of a file in which no page asks for more than the footer says, or BundleError."""
    try:
        footer = _footer(data)
        schema, groups = footer[2], footer.get(4, [])
        columns = tuple(str(leaf[4], "utf-8") for leaf in schema[1:])
        if schema[0].get(5, 0) != len(columns) or any(5 in leaf for leaf in schema[1:]):
            raise ValueError("columns within columns")
        size = 0
        for group in groups:
            if len(group[1]) != len(columns) or group[3] < 0:
                raise ValueError("a group of other columns")
            size += sum(_chunk(data, chunk[3], group[3]) for chunk in group[1])
        rows = sum(group[3] for group in groups)
        if rows != footer[3]:
            raise ValueError(f"{footer[3]} rows in groups of {rows}")
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(f"{name}: not a parquet table as a run stores it ({error})") from error
    return Outline(columns, rows, size)


def _footer(data: bytes) -> dict[int, Any]:
    length = int.from_bytes(data[-8:-4], "little")
    if len(data) < 12 or data[:4] != b"PAR1" or data[-4:] != b"PAR1" or length > len(data) - 12:
        raise ValueError("no footer")
    if length > _FOOTER:
        raise ValueError(f"a footer of {length} bytes")
    return _struct(data[len(data) - 8 - length : len(data) - 8], 0, _DEPTH)[0]


def _chunk(data: bytes, about: dict[int, Any], rows: int) -> int:
    """Bytes of a column within a group, once decompressed, as its pages confirm."""
    at = min(start for start in (about[9], about.get(11, 0)) if start > 0)
    end, size = at + about[7], about[6]
    if not 4 <= at <= end <= len(data) or size < 0 or about[5] != rows:
        raise ValueError("a column outside the file")
    left = size
    while at < end:
        header, length = _struct(data[at : at + _LONGEST], 0, _DEPTH)
        asked, stored = header[2], header[3]
        values = max(header[field][1] for field in _OWN_HEADERS if field in header)
        left -= asked + length
        # An entry of a dictionary takes four bytes at least, a value is one of a row.
        most = asked // 4 if _DICTIONARY in header else rows
        if min(asked, stored, values) < 0 or left < 0 or values > most:
            raise ValueError(
                f"byte {at}: a page of {values} values in {asked} bytes; its column says {rows} "
                f"rows in {size} bytes"
            )
        at += length + stored
    if at != end:
        raise ValueError("a page that reaches beyond its column")
    return int(size)


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """The fields of a struct by their numbers, and where it ends."""
    if depth == 0:
        raise ValueError("nested too deeply")
    fields: dict[int, Any] = {}
    field = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            field, at = _whole(data, at)
        if field in fields:
            raise ValueError("a field twice")
        kind = head & 15
        if kind in (1, 2):  # a truth value, in the head itself
            fields[field] = kind == 1
        else:
            fields[field], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    match kind:
        case 1 | 2 | 3:
            return data[at], at + 1
        case 4 | 5 | 6:
            return _whole(data, at)
        case 7:
            return data[at : at + 8], at + 8
        case 8:
            size, at = _varint(data, at)
            return data[at : at + size], at + size
        case 9 | 10:
            size, inner = data[at] >> 4, data[at] & 15
            at += 1
            if size == 15:
                size, at = _varint(data, at)
            if size > _LONGEST:
                raise ValueError(f"a list of {size}")
            found = []
            for _ in range(size):
                one, at = _value(data, at, inner, depth - 1)
                found.append(one)
            return found, at
        case 12:
            return _struct(data, at, depth - 1)
    raise ValueError(f"a field of kind {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 70, 7):
        found |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return found, at
    raise ValueError("a number without end")


def _whole(data: bytes, at: int) -> tuple[int, int]:
    found, at = _varint(data, at)
    return (found >> 1) ^ -(found & 1), at
