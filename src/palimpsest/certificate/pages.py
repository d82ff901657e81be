"""The sizes that the pages of a parquet file ask for, read before any of them is decompressed.

A file's footer says how large its columns are, but a reader allocates what each page's own header
asks for, so a footer that lies hides a bomb. Page headers are Thrift structs in the compact
protocol: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift.
"""

from typing import Any

from palimpsest.errors import BundleError

_DEPTH = 8
_DICTIONARY = 7
"""The field of a page header that holds a dictionary page's own header; the others hold data's."""
_OWN_HEADERS = (5, 7, 8)


def require_honest_pages(data: bytes, name: str, about: Any) -> None:
    """Nothing, when no page asks for more than the footer says; BundleError otherwise.

    ``about`` is the file's metadata, as pyarrow reads it.
    """
    for group in (about.row_group(n) for n in range(about.num_row_groups)):
        for column in (group.column(n) for n in range(group.num_columns)):
            starts = [column.data_page_offset, column.dictionary_page_offset or 0]
            at = min(start for start in starts if start > 0)
            end, left = at + column.total_compressed_size, column.total_uncompressed_size
            if not 4 <= at <= end <= len(data):
                raise BundleError(f"{name}: a column outside the file")
            while at < end:
                try:
                    header, body = _struct(data, at, _DEPTH)
                    size, stored = header[2], header[3]
                    values = max(header[field][1] for field in _OWN_HEADERS if field in header)
                except (IndexError, KeyError, TypeError, ValueError) as error:
                    raise BundleError(f"{name}: byte {at}: not a page") from error
                left -= size + (body - at)
                # An entry of a dictionary takes four bytes at least, a value is one of a row.
                most = size // 4 if _DICTIONARY in header else group.num_rows
                if min(size, stored, values) < 0 or left < 0 or values > most:
                    raise BundleError(
                        f"{name}: byte {at}: a page of {values} values in {size} bytes; its column "
                        f"says {group.num_rows} rows in {column.total_uncompressed_size} bytes"
                    )
                at = body + stored
            if at != end:
                raise BundleError(f"{name}: a page that reaches beyond its column")


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
            return None, at + 8
        case 8:
            size, at = _varint(data, at)
            return None, at + size
        case 9 | 10:
            size, inner = data[at] >> 4, data[at] & 15
            at += 1
            if size == 15:
                size, at = _varint(data, at)
            for _ in range(size):
                _, at = _value(data, at, inner, depth - 1)
            return None, at
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
