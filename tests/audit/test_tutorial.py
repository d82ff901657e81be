"""The quick start of the audit's page does what it says, as printed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def quick_start(page: str) -> tuple[str, str]:
    """Return the commands of a page's quick start, and what it says that they print."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    section = text.partition("## Quick start\n")[2].partition("\n## ")[0]
    commands, printed = (part.strip("\n") for part in section.split("```")[1::2])
    activate, rest = commands.split("\n", 1)
    assert activate == ". .venv/bin/activate"  # the test has its environment already
    return rest, printed


def labels(text: str) -> list[tuple[str, ...]]:
    """Return name and label of each row of the table of candidates, in order."""
    rows = [re.split(r"  +", line) for line in text.splitlines() if re.match(r"\d+  ", line)]
    return [tuple(row[1:3]) for row in rows]


def test_the_audits_quick_start(tmp_path: Path) -> None:
    commands, printed = quick_start("audit-your-model.md")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    place = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-e", "-c", commands],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{place}:{os.environ['PATH']}", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(labels(printed)) == 5 and labels(printed) == labels(done.stdout)
    assert printed.split("(")[0] == done.stdout[done.stdout.index("Certified") :].split("(")[0]
    document = json.loads((tmp_path / "quick" / "run" / "summary.json").read_text())
    cleared = [name for name, found in document["candidates"].items() if found["clears"]]
    assert cleared == ["retrained"] and document["detection_limit"] <= 0.25
