"""The names, dtypes and shapes in a safetensors file, checked against its size before use.

The file is eight bytes of header length, that many bytes of JSON, then the tensors one after the
other.  Here the header has to describe the rest of the file exactly: no gap, no overlap, no tensor
whose bytes do not match its shape.  Nothing but the header is read.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.errors import ModelError

HEADER_LIMIT = 32 * 2**20  # bytes; real headers have about a hundred per tensor
SIZES: Mapping[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}
FLOATS = frozenset({"F16", "BF16", "F32", "F64"})


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor as a file describes it."""

    dtype: str
    shape: tuple[int, ...]
    file: Path


def read_header(path: Path) -> dict[str, Stored]:
    """Give the tensors of a safetensors file by name, or ModelError naming what is wrong."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        room = min(max(size - 8, 0), HEADER_LIMIT)
        if length > room or size < 8:
            raise ModelError(
                f"{path}: its header claims {length} bytes in a file of {size}; expected at most "
                f"{room}; the file is damaged or forged, get it again"
            )
        header = _parsed(path, file.read(length))
    spans: list[tuple[int, int, str]] = []
    tensors: dict[str, Stored] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, begin, end = _entry(path, name, entry)
        spans.append((begin, end, name))
        tensors[name] = Stored(dtype, shape, path)
    _check_spans(path, sorted(spans), size - 8 - length)
    return tensors


def _parsed(path: Path, data: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = dict(pairs)
        if len(names) < len(pairs):
            raise ValueError("a name stands twice")
        return names

    try:
        header = json.loads(data.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{path}: its header is not JSON ({error or 'too deep'}); expected the header of a "
            "safetensors file; the file is damaged, get it again"
        ) from error
    if not isinstance(header, dict):
        raise ModelError(
            f"{path}: its header is a JSON {type(header).__name__}; expected an object by tensor "
            "name; the file is damaged, get it again"
        )
    return header


def _entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [-1]
    if (
        not isinstance(dtype, str)
        or any(type(number) is not int or not 0 <= number < 2**63 for number in numbers)
        or len(numbers) != len(shape) + 2
        or len(shape) > 8
    ):
        raise ModelError(
            f"{path}: tensor {name!r} is described by {str(entry)[:120]}; expected dtype, shape "
            "and two data_offsets; the file is damaged, get it again"
        )
    if dtype not in SIZES:
        raise ModelError(
            f"{path}: tensor {name!r} has dtype {dtype!r}; expected one of {', '.join(SIZES)}; "
            "save the model again as float32, float16 or bfloat16"
        )
    begin, end = offsets
    if end - begin != math.prod(shape) * SIZES[dtype]:
        raise ModelError(
            f"{path}: tensor {name!r} has {end - begin} bytes; expected "
            f"{math.prod(shape) * SIZES[dtype]} for {dtype} of shape {shape}; the file is damaged "
            "or forged, get it again"
        )
    return dtype, tuple(shape), begin, end


def _check_spans(path: Path, spans: list[tuple[int, int, str]], size: int) -> None:
    reached = 0
    for begin, end, name in spans:
        if begin != reached:
            raise ModelError(
                f"{path}: tensor {name!r} begins at byte {begin}; expected {reached}, where the "
                "one before it ends; tensors overlap or leave a gap, get the file again"
            )
        reached = end
    if reached != size:
        raise ModelError(
            f"{path}: its tensors end at byte {reached} of {size}; expected them to fill the file; "
            "it is cut short or has something appended, get it again"
        )
