"""Stored files that are not what was recorded."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from palimpsest.errors import DamagedArtifact


@dataclass(frozen=True, slots=True)
class Damage:
    """A stored file that is not what was recorded, and the step ("" = the cell) it belongs to."""

    step: str
    path: Path
    why: str


@contextlib.contextmanager
def collected(damages: list[Damage], step: str, path: Path) -> Iterator[None]:
    """Add the damage that is found meanwhile to the list instead of raising it."""
    try:
        yield
    except DamagedArtifact as error:
        damages.append(Damage(step, path, str(error)))
    except (KeyError, TypeError, AttributeError) as error:
        damages.append(Damage(step, path, f"{path}: not what the store writes ({error!r})"))
