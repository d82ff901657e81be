"""The quick start of docs/audit-your-model.md does what the page says, command by command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "audit-your-model.md"


def blocks(section: str) -> list[str]:
    """The code blocks of a section."""
    text = PAGE.read_text("utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    return [part.strip("\n") for part in text.split("```")[1::2]]


@pytest.mark.slow
def test_the_quick_start_runs_as_printed(tmp_path: Path) -> None:
    commands, printed = blocks("Quick start")
    activate, rest = commands.split("\n", 1)
    assert activate == ". .venv/bin/activate"  # the test has its environment already
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    place = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-e", "-c", rest],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{place}:{os.environ['PATH']}", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = done.stdout[done.stdout.index("Certified: ") :]
    assert answer.split(". ")[0] == printed.split(". ")[0] == "Certified: retrained"
    document = json.loads((tmp_path / "quick" / "run" / "summary.json").read_text())
    cleared = [name for name, found in document["candidates"].items() if found["clears"]]
    assert cleared == ["retrained"] and document["detection_limit"] <= 0.25
    assert answer.split("\n\n")[-1].strip() == printed.split("\n\n")[-1].strip()
