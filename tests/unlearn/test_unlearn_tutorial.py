"""The files of the quick starts are what their script writes; the commands do what is printed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_files_of_the_quick_start_are_what_their_script_writes(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "examples" / "make_facts.py"), str(tmp_path)]
    subprocess.run(script, check=True)
    kept = ROOT / "examples" / "quick"
    for file in sorted(kept.iterdir()):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()
    assert len(list(tmp_path.iterdir())) == len(list(kept.iterdir()))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_quick_start_gives_the_table_it_prints(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "unlearn-your-model.md").read_text("utf-8")
    section = text.partition("## Quick start\n")[2].partition("\n## ")[0]
    commands, printed = (part.strip("\n") for part in section.split("```")[1:4:2])
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", commands.partition("\n")[2]],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for line in re.findall(r"^wrote .*$", printed, re.MULTILINE):
        assert line in done.stdout
    document = json.loads((tmp_path / "mine" / "run" / "summary.json").read_text())
    labels = {name: found["label"] for name, found in document["candidates"].items()}
    for name, label in labels.items():
        assert re.search(rf"{name}\s+{label}\b", printed)
