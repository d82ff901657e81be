"""The quick start of docs/unlearn-your-model.md does what the page says, command by command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "unlearn-your-model.md"


def blocks(section: str) -> list[str]:
    """The code blocks of a section."""
    text = PAGE.read_text("utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    return [part.strip("\n") for part in text.split("```")[1::2]]


def test_the_quick_start_has_three_commands() -> None:
    commands, _ = blocks("Quick start")
    assert commands.count("\npalimpsest ") == 3


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
    assert answer.split(". ")[0] == printed.split(". ")[0]
    document = json.loads((tmp_path / "mine" / "run" / "summary.json").read_text())
    cleared = [name for name, found in document["candidates"].items() if found["clears"]]
    assert cleared and all(name.startswith("replay-facts_vector") for name in cleared)
    assert document["detection_limit"] <= 0.25


def test_the_files_of_the_quick_start_are_what_their_script_writes(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "examples" / "make_facts.py"), str(tmp_path)]
    subprocess.run(script, check=True)
    kept = ROOT / "examples" / "quick"
    for file in sorted(kept.iterdir()):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()
    assert len(list(tmp_path.iterdir())) == len(list(kept.iterdir()))
