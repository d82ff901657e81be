"""`repairs.json`: which seal openings a damaged journal knew of, kept when it is begun again.

So the audit pool is scored again only for the very same models, whatever became of the journal.
"""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from palimpsest.errors import StoreError
from palimpsest.run import disk
from palimpsest.run.chain import link

Opening = dict[str, Any]


def read_repairs(path: Path) -> tuple[list[Opening], str | None]:
    """The openings of earlier journals; and why, if the file is not legible."""
    if not path.exists():
        return [], None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, StoreError):
        data = path.read_bytes()
        told = dict(json.loads(data))
        found = told.pop("digest")
        # Byte for byte: the same content spelled another way is a change too.
        spelled = data == disk.canonical(told | {"digest": found}) + b"\n"
        if spelled and found == disk.digest(disk.canonical(told)):
            return list(told["opened"]), None
    return [], f"{path}: not what was written; earlier openings of the audit pool are lost"


def write_repairs(path: Path, opened: Sequence[Opening], why: Sequence[str]) -> None:
    """Record the openings, each once, and why the journal is begun again."""
    unique = [one for place, one in enumerate(opened) if one not in opened[:place]]
    told = {"opened": unique, "why": list(why)}
    disk.write_json(path, told | {"digest": disk.digest(disk.canonical(told))})


def legible_openings(chain: Path) -> list[Opening]:
    """The seal openings that can still be read in a chain, sound or not."""
    found = []
    for line in chain.read_bytes().split(b"\n") if chain.exists() else []:
        with contextlib.suppress(ValueError, KeyError, TypeError, StoreError):
            entry = json.loads(line)
            same = link(entry["n"], entry["event"], entry["data"], entry["previous"])
            if same.event == "seal opened" and same.digest == entry["digest"]:
                found.append(same.data)
    return found
