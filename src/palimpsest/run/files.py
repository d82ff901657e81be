"""Files that are either wholly there or not at all.

A file is written to a temporary neighbor, flushed to the device and renamed over the old one, and
the folder is flushed: a crash at any instant leaves the old file or the new one. Every change of
the disk goes through ``DISK``; tests put one in its place that fails, tears a write or ends the
process at a chosen operation.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from palimpsest.errors import DamagedArtifact, InputError, StoreError
from palimpsest.files import read_bytes
from palimpsest.run.signals import check_stop

STORED_LIMIT = 2**40
"""Largest stored file, in bytes, that is read whole: none is as large."""
_LONGEST_NAME = 255
# Files that were being written: ours, and those that safetensors makes beside its target.
_UNFINISHED = re.compile(r"\.tmp(-[0-9a-f]{12}|[A-Za-z0-9]{6})")
_PERMISSION = ("permission to write there", "change the folder's permissions or choose another")
_FOLDER = ("nothing but folders above it", "choose another folder")
_ADVICE = {
    errno.ENOTDIR: _FOLDER,
    errno.EEXIST: _FOLDER,
    errno.ENOSPC: ("space on the device", "free some space"),
    errno.EDQUOT: ("room in the disk quota", "free some space"),
    errno.EFBIG: ("a smaller file or a higher limit", "raise the file size limit"),
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: ("a file system that can be written", "choose another folder"),
    errno.ENOENT: (
        "the folder to exist",
        "make it, and leave run folders alone while they are in use",
    ),
}


class Disk:
    """The operations that change a disk."""

    def write(self, path: Path, data: bytes) -> None:
        with open(path, "xb") as file:
            file.write(data)

    def append(self, path: Path, data: bytes) -> None:
        with open(path, "ab", buffering=0) as file:
            file.write(data)

    def sync(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, path: Path) -> None:
        os.replace(source, path)

    def link(self, source: Path, path: Path) -> None:
        try:
            os.link(source, path)
        except OSError:
            shutil.copyfile(source, path)

    def make_folder(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def remove(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


DISK = Disk()


@contextlib.contextmanager
def disk_errors(path: Path, action: str) -> Iterator[None]:
    """Turn an error of the disk into a StoreError: what was found and expected, and what to do.

    A library written in Rust reports a full disk as it does a fault of its own, with a number.
    """
    try:
        yield
    except Exception as error:
        told = re.search(r"\(os error (\d+)\)", str(error))
        if not isinstance(error, OSError) and told is None:
            raise
        number = error.errno if isinstance(error, OSError) else int(told[1]) if told else 0
        expected, remedy = _ADVICE.get(number or 0, ("a working disk", "check the disk"))
        found = os.strerror(number) if number else str(error)
        raise StoreError(
            f"{path}: cannot {action} ({found}); expected {expected}; what was stored before is "
            f"intact; {remedy}, then run the same command again"
        ) from error


def folder_path(path: Path | str) -> Path:
    """Return the one absolute path of a folder, links and ``..`` resolved, before or after it is
    made; InputError when no folder can be there.

    The path of a run comes through here where it enters, and nowhere else: locks are known by
    their path, and a folder known by two of them would be held against itself.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            os.stat(path)
        # Below a folder that is not there yet, the system does not say it.
        if max((len(os.fsencode(part)) for part in Path(path).parts), default=0) > _LONGEST_NAME:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        return Path(path).resolve()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"{ascii(str(path))[:120]}: no folder can be there ({reason}); expected the path of a "
            f"folder, each name at most {_LONGEST_NAME} bytes long; choose another"
        ) from error


def canonical(value: object) -> bytes:
    """Return the one UTF-8 JSON text of a value: sorted keys, no spaces, no NaN, no line end."""

    def plain(item: Any) -> Any:
        if hasattr(item, "item"):  # a numpy scalar
            return item.item()
        raise TypeError(f"{type(item).__name__} has no JSON form")

    form: Any = {"sort_keys": True, "separators": (",", ":"), "ensure_ascii": False}
    try:
        return json.dumps(value, allow_nan=False, default=plain, **form).encode("utf-8")
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"a value cannot be stored as JSON ({error}); expected text, finite numbers, "
            "true/false/null, lists and string-keyed mappings"
        ) from error


def digest(data: bytes) -> str:
    """Return the SHA-256 of some bytes, as "sha256:<hex>"."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, as "sha256:<hex>"."""
    with disk_errors(path, "read"), open(path, "rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: Path, expected: str) -> None:
    """Raise DamagedArtifact when a file's bytes are not the recorded ones."""
    try:
        found = file_digest(path)
    except StoreError as error:
        raise DamagedArtifact(f"{path}: cannot be read; expected {expected}") from error
    if found != expected:
        raise DamagedArtifact(f"{path}: digest {found}; expected {expected}")


def read_stored(path: Path) -> bytes:
    """Return a file's bytes, or raise DamagedArtifact when it cannot be read."""
    return read_bytes(path, STORED_LIMIT, DamagedArtifact)


def read_checked(path: Path, expected: str) -> bytes:
    """Return a file's bytes, or raise DamagedArtifact when they are not the recorded ones."""
    data = read_stored(path)
    if digest(data) != expected:
        raise DamagedArtifact(f"{path}: digest {digest(data)}; expected {expected}")
    return data


def write_bytes(path: Path, data: bytes) -> str:
    """Write a file atomically; return its digest."""
    return write_with(path, lambda temporary: DISK.write(temporary, data))


def write_with(path: Path, writer: Callable[[Path], object]) -> str:
    """Write a file atomically through ``writer(temporary path)``; return its digest."""
    path = Path(path)
    check_stop()
    with disk_errors(path, "write"), _temporary(path.parent) as temporary:
        writer(temporary)
        DISK.sync(temporary)
        written = file_digest(temporary)
        DISK.rename(temporary, path)
        DISK.sync(path.parent)
    return written


def write_json(path: Path, value: object) -> str:
    """Write a value as canonical JSON with a line end, atomically; return the digest."""
    return write_bytes(path, canonical(value) + b"\n")


def digested_json(value: Mapping[str, Any]) -> bytes:
    """Return the bytes of a JSON object that carries the digest of its other keys."""
    own = digest(canonical(dict(value)))
    return canonical(dict(value) | {"digest": own}) + b"\n"


def write_digested(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object with its own digest, atomically."""
    write_bytes(path, digested_json(value))


def read_digested(path: Path) -> dict[str, Any]:
    """Return an object written by ``write_digested``, or raise DamagedArtifact naming the file."""
    return parse_digested(read_stored(path), str(path))


def parse_digested(data: bytes, name: str) -> dict[str, Any]:
    """Return the object in the bytes of such a file; ``name`` is the file to name in errors."""
    with contextlib.suppress(Exception):
        value: dict[str, Any] = json.loads(data)
        # Byte for byte: the same content spelled another way is a change too.
        if data == digested_json({key: value[key] for key in value.keys() - {"digest"}}):
            return value
    raise DamagedArtifact(f"{name}: its contents do not match the digest it carries")


def link_or_copy(source: Path, path: Path) -> None:
    """Give a file a second name, atomically; a copy where hard links are not supported."""
    check_stop()
    with disk_errors(path, "write"), _temporary(path.parent) as temporary:
        DISK.link(source, temporary)
        # rename(2) does nothing, and leaves the temporary name, when both already are one file.
        DISK.rename(temporary, path)
        DISK.sync(path.parent)
        temporary.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Make a folder and its parents, each flushed to the device."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with disk_errors(path, "make the folder"):
        DISK.make_folder(path)
        DISK.sync(path.parent)


def remove(path: Path) -> None:
    """Remove a file, or a folder with everything in it, if it is there."""
    with disk_errors(path, "remove"):
        if path.is_dir() and not path.is_symlink():
            for child in sorted(path.iterdir()):
                remove(child)
        if path.is_symlink() or path.exists():
            DISK.remove(path)


def clean(folder: Path) -> None:
    """Remove what interrupted writes left directly in a folder."""
    for path in sorted(folder.glob(".tmp*")):
        if _UNFINISHED.fullmatch(path.name):
            remove(path)


def safe_name(name: str, what: str) -> str:
    """Return the name, or raise InputError when it could not safely name a file on any system."""
    form = r"[A-Za-z0-9](?!.*\.\.)[A-Za-z0-9._+=,@-]{0,99}(?<!\.)"
    if not isinstance(name, str) or not re.fullmatch(form, name):
        raise InputError(
            f"{what} {ascii(name)[:80]} cannot name a file; expected 1 to 100 letters, digits and "
            "'._+=,@-', beginning with a letter or digit, without '..'; rename it"
        )
    return name


@contextlib.contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """Provide a name for an unfinished file, which is removed when its writer fails."""
    temporary = folder / f".tmp-{uuid.uuid4().hex[:12]}"
    try:
        yield temporary
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
