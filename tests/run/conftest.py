from pathlib import Path

import pytest
from toy import toy_run

from palimpsest.run.store import Run


@pytest.fixture
def run(quick: Path) -> Run:
    return toy_run(quick / "run")
