"""A certificate is verified where torch is absent: here, where importing it is an error."""

import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "tokenizers", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from palimpsest.cli import main
main()
"""


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", BLOCKED, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_certificates_are_verified(bundle: Path, audit_bundle: Path) -> None:
    for path in (bundle, audit_bundle):
        done = command("verify", path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "certified" in done.stdout


def test_runs_are_read_and_certified(run_folder: Path, tmp_path: Path) -> None:
    done = command("certify", run_folder, "--out", tmp_path / "bundle.zip")
    assert done.returncode == 0, done.stderr
    done = command("report", run_folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments", [["design"], ["plan", "--show", "demo"], ["plan", "--schema"], ["--help"]]
)
def test_so_are_designs_and_plans(arguments: list[str]) -> None:
    assert command(*arguments).returncode == 0


def test_a_command_that_needs_models_says_what_to_install(tmp_path: Path) -> None:
    done = command("demo", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "pip install 'palimpsest-audit[models]'" in done.stderr
    assert "Traceback" not in done.stderr
