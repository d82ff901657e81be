"""The files of the quick starts; the commands themselves run in audit/test_tutorial.py."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_files_of_the_quick_start_are_what_their_script_writes(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "examples" / "make_facts.py"), str(tmp_path)]
    subprocess.run(script, check=True)
    kept = ROOT / "examples" / "quick"
    for file in sorted(kept.iterdir()):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()
    assert len(list(tmp_path.iterdir())) == len(list(kept.iterdir()))
