"""The names, dtypes and shapes in a safetensors file, without reading a tensor.

``safetensors`` itself refuses a header that does not describe the rest of the file exactly: a
length beyond the file or 100 MB, a gap, an overlap, bytes that do not match a shape, anything
appended.
"""

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from palimpsest.errors import ModelError

FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
DIMENSIONS_LIMIT = 8


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor as a file describes it."""

    dtype: str
    shape: tuple[int, ...]
    file: Path


def read_header(path: Path) -> dict[str, Stored]:
    """Return the tensors of a safetensors file by name; ModelError says what is wrong with it."""
    tensors: dict[str, Stored] = {}
    try:
        with safe_open(str(path), framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - it is not a mapping
                part = file.get_slice(name)
                tensors[name] = Stored(part.get_dtype(), tuple(part.get_shape()), path)
    except (SafetensorError, OSError) as error:
        reason = str(error).removeprefix("Error while deserializing header: ")[:200]
        raise ModelError(
            f"{path}: is not a safetensors file ({reason}); expected a header that describes the "
            "file exactly; it is damaged or forged, get it again"
        ) from error
    for name, stored in tensors.items():
        if len(stored.shape) > DIMENSIONS_LIMIT:
            raise ModelError(
                f"{path}: tensor {name!r} has {len(stored.shape)} dimensions; expected at most "
                f"{DIMENSIONS_LIMIT}; get the file again"
            )
    return tensors
