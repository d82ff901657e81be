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
    """Return the archive of some files, given by name."""
    files, directory = [], []
    offset = 0
    for name in sorted(members):
        data, label = members[name], _checked(name).encode("ascii")
        # What both headers share: version, flags, method, time, date, checksum and sizes.
        about = (_VERSION, 0, 0, 0, _DATE, zlib.crc32(data), len(data), len(data), len(label), 0)
        files += [_LOCAL.pack(b"PK\3\4", *about), label, data]
        made_by = _UNIX << 8 | _VERSION
        directory += [_CENTRAL.pack(b"PK\1\2", made_by, *about, 0, 0, 0, _MODE, offset), label]
        offset += _LOCAL.size + len(label) + len(data)
    count, listing = len(members), b"".join(directory)
    size = offset + len(listing) + _END.size
    if count > MAX_MEMBERS or size > MAX_BYTES:
        raise BundleError(
            f"the bundle would hold {count} files and {size} bytes; expected at most {MAX_MEMBERS} "
            f"files and {MAX_BYTES} bytes; certify a smaller run"
        )
    end = _END.pack(b"PK\5\6", 0, 0, count, count, len(listing), offset, 0)
    return b"".join([*files, listing, end])


def unpack(data: bytes) -> dict[str, bytes]:
    """Return the files in an archive; BundleError unless ``pack`` gives the same bytes for them."""
    members: dict[str, bytes] = {}
    changed = []
    offset, last = 0, ""
    while data[offset : offset + 4] == b"PK\3\4":
        if len(data) - offset < _LOCAL.size or len(members) == MAX_MEMBERS:
            raise BundleError(f"byte {offset}: the header is cut off, or there are too many files")
        fields = _LOCAL.unpack_from(data, offset)
        checksum, size, label_size = fields[6], fields[8], fields[9]
        start = offset + _LOCAL.size + label_size
        if start + size > len(data):
            raise BundleError(f"byte {offset}: a file of {size} bytes reaches beyond the end")
        label = data[offset + _LOCAL.size : start].decode("latin-1")
        name = _checked(label, f"byte {offset}: ")
        if name <= last:
            raise BundleError(f"{name} comes after {last}; expected every file once, in order")
        members[name] = data[start : start + size]
        offset, last = start + size, name
        if zlib.crc32(members[name]) != checksum:
            changed.append(name)
    if not members:
        raise BundleError("not a valid bundle: expected an archive that `palimpsest certify` wrote")
    expected = pack(members)
    if expected != data:
        place = f"in {', '.join(changed[:3])}" if changed else "outside its files' contents"
        raise BundleError(
            f"the archive was changed after it was written, {place}; expected exactly the bytes "
            "that `palimpsest certify` writes; ask for the bundle as it was made"
        )
    return members


def _checked(name: str, where: str = "") -> str:
    if _NAME.fullmatch(name) is None or ".." in name:
        raise BundleError(f"{where}{ascii(name)[:120]} cannot name a file of a bundle")
    return name
