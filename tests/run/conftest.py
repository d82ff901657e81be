import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.reliability import FULL
from toy_cell import TERMS

from palimpsest.run import disk
from palimpsest.run.store import Run


@pytest.fixture
def terms() -> tuple[dict[str, Any], ...]:
    return TERMS


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a flush to a disk takes milliseconds."""
    memory = Path("/dev/shm")
    if FULL or not os.access(memory, os.W_OK):
        yield tmp_path
    else:
        with tempfile.TemporaryDirectory(dir=memory) as name:
            yield Path(name)


@pytest.fixture
def run(quick: Path) -> Run:
    return Run.create(quick / "run", *TERMS, cells=("a", "b"))


@pytest.fixture
def fault() -> Iterator[Callable[[Callable[[str, Path], None]], None]]:
    """Install a fault hook for the length of a test."""

    def install(hook: Callable[[str, Path], None] | None) -> None:
        disk.FAULT = hook

    yield install
    disk.FAULT = None
