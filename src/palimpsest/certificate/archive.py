"""A zip archive that can be written in one way only.

Members are stored uncompressed, in order of their names, with fixed times and flags, so equal
members give equal bytes on every machine. Reading packs the members again and compares: a change in
any byte, of a header too, is a change of the archive. Any tool that reads zip files opens it.
"""

import io
import re
import zipfile
from collections.abc import Mapping

from palimpsest.errors import BundleError

MAX_BYTES = 256 * 2**20
"""Largest archive that is written or read."""
MAX_MEMBERS = 65_535

_UNIX, _MODE = 3, 0o100644 << 16
_NAME = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._+=,@-]{0,99}(/[A-Za-z0-9][A-Za-z0-9._+=,@-]{0,99}){0,2}"
)


def pack(members: Mapping[str, bytes]) -> bytes:
    """Return the archive of some files, given by name."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(members):
            if _NAME.fullmatch(name) is None or ".." in name:
                raise BundleError(f"{ascii(name)[:120]} cannot name a file of a bundle")
            # By default of 1980-01-01, the first day a zip archive can name, and uncompressed.
            entry = zipfile.ZipInfo(name)
            entry.create_system, entry.external_attr = _UNIX, _MODE
            archive.writestr(entry, members[name])
    size = len(packed.getbuffer())
    if len(members) > MAX_MEMBERS or size > MAX_BYTES:
        raise BundleError(
            f"the bundle would hold {len(members)} files and {size} bytes; expected at most "
            f"{MAX_MEMBERS} files and {MAX_BYTES} bytes; certify a smaller run"
        )
    return packed.getvalue()


def unpack(data: bytes) -> dict[str, bytes]:
    """Return the files in an archive; BundleError unless ``pack`` gives the same bytes for them."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            # Before anything is read: no entry may unpack to more, nor two share, what is there.
            if sum(entry.file_size for entry in entries) > len(data):
                raise BundleError("its files are larger than the archive")
            members = {entry.filename: archive.read(entry) for entry in entries}
    except Exception as error:  # bytes from anyone make the library raise what it likes
        raise BundleError(
            f"not a valid bundle ({error}); expected an archive that `palimpsest certify` wrote"
        ) from error
    if not members or pack(members) != data:
        raise BundleError(
            "the archive was changed after it was written, or packed by another program; expected "
            "exactly the bytes that `palimpsest certify` writes; ask for the bundle as it was made"
        )
    return members
