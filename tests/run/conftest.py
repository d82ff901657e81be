import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.reliability import FULL
from toy import toy_run

from palimpsest.run.store import Run


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
    return toy_run(quick / "run")
