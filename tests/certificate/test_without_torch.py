"""A certificate is verified where torch is absent, and a missing package is no fault of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.made_runs import STUDY

import palimpsest

MODELS = ("torch", "transformers", "tokenizers", "safetensors")


def command(
    folder: Path, missing: tuple[str, ...], *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    """Run a command where some packages are missing, in the process it examines in too."""
    # A module that comes first and fails as an absent one does.
    for name in missing:
        error = f"ModuleNotFoundError('No module named {name}', name='{name}')"
        (folder / f"{name}.py").write_text(f"raise {error}\n")
    places = [str(folder), str(Path(palimpsest.__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    line = [sys.executable, "-c", "from palimpsest.cli import main; main()", *map(str, arguments)]
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)


def test_certificates_of_studies_and_audits_are_verified(
    signed_bundle, keys, audit_bundle, tmp_path
):
    done = command(tmp_path, MODELS, "verify", signed_bundle, "--key", keys[1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{STUDY}: Certified: ga-w3" in done.stdout and "Answer: ok" in done.stdout
    done = command(tmp_path, MODELS, "verify", audit_bundle)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Answer: unsigned" in done.stdout


def test_runs_are_certified_and_their_pages_written(run_folder, tmp_path):
    bundle = tmp_path / "bundle.zip"
    done = command(tmp_path, MODELS, "certify", run_folder, "--out", bundle)
    assert done.returncode == 0, done.stderr
    done = command(tmp_path, MODELS, "verify", bundle, "--page", tmp_path / "page")
    assert done.returncode == 0 and (tmp_path / "page/report/index.html").is_file(), done.stderr


@pytest.mark.parametrize("package", ["numpy", "pyarrow", "scipy", "pydantic_core", "cryptography"])
def test_a_missing_package_is_named_and_no_fault_of_the_bundle(package, signed_bundle, tmp_path):
    done = command(tmp_path, (package,), "verify", signed_bundle)
    assert done.returncode == 2 and "FAILED" not in done.stdout, done.stdout
    assert package in done.stderr and "Traceback" not in done.stderr, done.stderr
