"""The files of a cell: what they are called, and whether they are what was recorded."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from palimpsest.errors import DamagedArtifact, InputError, StoreError
from palimpsest.run import disk

VALUES = "values.json"


@dataclass(frozen=True, slots=True)
class Damage:
    """A stored file that is not what was recorded, and the step ("" = the cell) it belongs to."""

    step: str
    path: Path
    why: str


def stem(step: str) -> str:
    """How the names of a step's files begin; InputError when a step cannot be called that."""
    # A colon cannot be in a Windows file name; "~" cannot be in a step's name.
    return disk.safe_name(step, "step", also=":").replace(":", "~")


def part(step: str, name: str) -> str:
    """The name of a step's file."""
    return f"{stem(step)}.{name}"


def table_file(name: str) -> str:
    """The file name of a table; InputError when a table cannot be called that."""
    if re.fullmatch(r"[a-z][a-z0-9_]{0,39}", disk.safe_name(name, "table")) is None:
        raise InputError(f"table name {name!r}; expected one lower-case word such as 'items'")
    return f"{name}.parquet"


def check_file(path: Path, expected: str) -> None:
    """Raise DamagedArtifact when a file has not the digest that was recorded."""
    try:
        found = disk.file_digest(path)
    except StoreError as error:
        raise DamagedArtifact(f"{path}: cannot be read; expected {expected}") from error
    if found != expected:
        raise DamagedArtifact(f"{path}: digest {found}; expected {expected}")


def damages(step: str, folder: Path, artifacts: Mapping[str, str]) -> list[Damage]:
    """Every file of a step that has not the digest that was recorded."""
    found = []
    for file, expected in artifacts.items():
        try:
            check_file(folder / file, expected)
        except DamagedArtifact as error:
            found.append(Damage(step, folder / file, str(error)))
    return found
