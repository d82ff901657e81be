"""The quick start of docs/audit-your-model.md does what the page says, command by command."""

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


def rows(told: str) -> dict[str, str]:
    """What every candidate fails by, from the table of an audit."""
    names = ("nothing-done", "task-vector-0.5", "task-vector-1", "gradient-ascent")
    lines = [line.split(maxsplit=1) for line in told.split("\n")]
    return {
        line[0]: line[1].lstrip("0123456789.+- ")
        for line in lines
        if len(line) == 2 and line[0] in names
    }


@pytest.mark.slow
def test_the_quick_start_runs_as_printed(tmp_path: Path) -> None:
    commands, told = blocks("Quick start")
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
    assert done.returncode == 3, done.stderr
    answer = done.stdout.partition("wrote quick/gradient-ascent\n")[2]
    assert len(rows(told)) == 4 and rows(answer) == rows(told)
    assert answer.split(". ")[0] == told.split(". ")[0]
    assert answer.split("\n\n")[-1].strip() == told.split("\n\n")[-1].strip()
