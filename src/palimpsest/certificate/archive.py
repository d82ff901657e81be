"""A zip archive that can be written in one way only.

Members are stored uncompressed, in order of their names, with fixed times and flags, so equal
members give equal bytes on every machine, and nothing can unpack to more than its own size. Reading
packs the members again and compares: a change in any byte, of a header too, is a change of the
archive. Any tool that reads zip files opens it.
"""

import re
import struct
import zlib
from collections.abc import Mapping

from palimpsest.errors import BundleError

MAX_BYTES = 256 * 2**20
"""Largest archive that is written or read."""
MAX_MEMBERS = 65_535

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_VERSION, _UNIX = 20, 3
_DATE = (1 << 5) | 1  # 1980-01-01, the first day a zip archive can name
_MODE = 0o100644 << 16
_NAME = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._+=,@-]{0,99}(/[A-Za-z0-9][A-Za-z0-9._+=,@-]{0,99}){0,2}"
)


def pack(members: Mapping[str, bytes]) -> bytes:
    """The archive of some files, by name."""
    whole, directory = [], []
    at = 0
    for name in sorted(members):
        data, label = members[name], _label(name)
        # What both headers share: version, flags, method, time, date, checksum and sizes.
        about = (_VERSION, 0, 0, 0, _DATE, zlib.crc32(data), len(data), len(data), len(label), 0)
        whole += [_LOCAL.pack(b"PK\3\4", *about), label, data]
        made_by = _UNIX << 8 | _VERSION
        directory += [_CENTRAL.pack(b"PK\1\2", made_by, *about, 0, 0, 0, _MODE, at), label]
        at += _LOCAL.size + len(label) + len(data)
    count, listed = len(members), b"".join(directory)
    end = _END.pack(b"PK\5\6", 0, 0, count, count, len(listed), at, 0) if count < 2**16 else b""
    size = at + len(listed) + len(end)
    if not end or size > MAX_BYTES:
        raise BundleError(
            f"a bundle of {count} files and {size} bytes; expected at most {MAX_MEMBERS} files "
            f"and {MAX_BYTES} bytes; certify a smaller run"
        )
    return b"".join([*whole, listed, end])


def unpack(data: bytes) -> dict[str, bytes]:
    """The files in an archive, or BundleError unless ``pack`` gives the same bytes for them."""
    members: dict[str, bytes] = {}
    at, last = 0, ""
    while data[at : at + 4] == b"PK\3\4":
        if len(data) - at < _LOCAL.size or len(members) == MAX_MEMBERS:
            raise BundleError(f"byte {at}: a header that is cut off, or one too many")
        fields = _LOCAL.unpack_from(data, at)
        size, label_size = fields[8], fields[9]
        start = at + _LOCAL.size + label_size
        if start + size > len(data):
            raise BundleError(f"byte {at}: a file of {size} bytes that reaches beyond the end")
        name = _name(data[at + _LOCAL.size : start], at)
        if name <= last:
            raise BundleError(f"{name} comes after {last}; expected every file once, in order")
        members[name] = data[start : start + size]
        at, last = start + size, name
    if not members:
        raise BundleError("not a bundle: expected an archive written by `palimpsest certify`")
    again = pack(members)
    if again != data:
        raise BundleError(
            f"the archive differs at byte {_first_difference(again, data)} from the way its "
            f"{len(members)} files are packed; expected exactly {len(again)} bytes"
        )
    return members


def _label(name: str) -> bytes:
    if _NAME.fullmatch(name) is None or ".." in name:
        raise BundleError(f"{ascii(name)[:120]} cannot name a file of a bundle")
    return name.encode("ascii")


def _name(label: bytes, at: int) -> str:
    name = label.decode("latin-1")
    if _NAME.fullmatch(name) is None or ".." in name:
        raise BundleError(f"byte {at}: {ascii(name)[:120]} cannot name a file of a bundle")
    return name


def _first_difference(one: bytes, other: bytes) -> int:
    # By halving, since a bundle may be large and Python compares slices fast.
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
