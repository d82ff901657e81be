"""The quick starts of the audit's and of the unlearning page do what they say, as printed.

Both begin with the same retrainings, which are made once.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def quick_start(page: str) -> tuple[list[str], str]:
    """Give the commands of a page's quick start, one by one, and what it says they print."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    section = text.partition("## Quick start\n")[2].partition("\n## ")[0]
    commands, printed = (part.strip("\n") for part in section.split("```")[1::2])
    activate, rest = commands.split("\n", 1)
    assert activate == ". .venv/bin/activate"  # the test has its environment already
    return re.split(r"\n(?=palimpsest )", rest), printed


def run(commands: list[str], folder: Path) -> str:
    place = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(commands)],
        cwd=folder,
        env=os.environ | {"PATH": f"{place}:{os.environ['PATH']}", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the retrainings of the audit's page are made."""
    folder = tmp_path_factory.mktemp("tutorial")
    (folder / "examples").symlink_to(ROOT / "examples")
    run(quick_start("audit-your-model.md")[0][:1], folder)
    return folder


def audited(out: Path, answer: str, printed: str) -> dict[str, Any]:
    answer = answer[answer.index("Certified: ") :]
    assert answer.split(". ")[0] == printed.split(". ")[0]
    assert answer.split("\n\n")[-1].strip() == printed.split("\n\n")[-1].strip()
    document: dict[str, Any] = json.loads((out / "summary.json").read_text())
    assert document["detection_limit"] <= 0.25
    return document


def test_the_audits_quick_start(folder: Path) -> None:
    commands, printed = quick_start("audit-your-model.md")
    document = audited(folder / "quick" / "run", run(commands[1:], folder), printed)
    cleared = [name for name, found in document["candidates"].items() if found["clears"]]
    assert cleared == ["retrained"]


def test_the_quick_start_of_unlearning(folder: Path) -> None:
    other = quick_start("audit-your-model.md")[0][0]
    commands, printed = quick_start("unlearn-your-model.md")
    assert len(commands) == 3
    # The same retrainings but for the last: a draw does not depend on how many there are.
    assert commands[0] == other.replace("--draws 20", "--draws 19").replace(
        "--out quick/models", "--out mine/refs"
    )
    left_out = shutil.ignore_patterns("19")
    shutil.copytree(folder / "quick" / "models", folder / "mine" / "refs", ignore=left_out)
    document = audited(folder / "mine" / "run", run(commands[1:], folder), printed)
    cleared = [name for name, found in document["candidates"].items() if found["clears"]]
    assert cleared and all(name.startswith("replay-facts_vector") for name in cleared)
