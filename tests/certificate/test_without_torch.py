"""A certificate is verified where torch is absent, and a missing package is no fault of it."""

import os
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from small_run import STUDY
from tests.test_install import ROOT, run

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
    signed_bundle: Path, keys: tuple[Path, Path], audit_bundle: Path, tmp_path: Path
) -> None:
    done = command(tmp_path, MODELS, "verify", signed_bundle, "--key", keys[1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{STUDY}: Certified: ga-w3" in done.stdout and "Answer: ok" in done.stdout
    done = command(tmp_path, MODELS, "verify", audit_bundle)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Answer: unsigned" in done.stdout


def test_runs_are_certified_and_their_pages_written(run_folder: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.zip"
    done = command(tmp_path, MODELS, "certify", run_folder, "--out", bundle)
    assert done.returncode == 0, done.stderr
    done = command(tmp_path, MODELS, "verify", bundle, "--page", tmp_path / "page")
    assert done.returncode == 0 and (tmp_path / "page/report/index.html").is_file(), done.stderr


@pytest.mark.parametrize("package", ["numpy", "pyarrow", "scipy", "pydantic_core", "cryptography"])
def test_a_missing_package_is_named_and_no_fault_of_the_bundle(
    package: str, signed_bundle: Path, tmp_path: Path
) -> None:
    done = command(tmp_path, (package,), "verify", signed_bundle)
    assert done.returncode == 2 and "FAILED" not in done.stdout, done.stdout
    assert package in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.slow
def test_a_wheel_with_its_dependencies_alone_verifies(
    signed_bundle: Path, keys: tuple[Path, Path], audit_bundle: Path, tmp_path: Path
) -> None:
    """The environment holds links to what the wheel requires, and nothing else."""
    pytest.importorskip("hatchling", reason="needs hatchling to build the wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    paths = sysconfig.get_paths(vars={"base": str(tmp_path / "venv"), "platbase": ""})
    link_requirements("palimpsest-audit", Path(paths["purelib"]))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python"]
    run(*pip, python, "install", "-q", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    found = "import importlib.util as u, sys; print([n for n in sys.argv[1:] if u.find_spec(n)])"
    assert run(python, "-c", found, *MODELS, "pandas", "pytest", cwd=tmp_path).strip() == "[]"
    program = python.with_name("palimpsest")
    done = run(program, "verify", signed_bundle, "--key", keys[1], cwd=tmp_path)
    assert "Answer: ok" in done
    assert "Answer: unsigned" in run(program, "verify", audit_bundle, cwd=tmp_path)


def link_requirements(package: str, site: Path) -> None:
    """Link every distribution that a package requires, without its extras, into a folder."""
    seen, open_ = set(), [package]
    while open_:
        distribution = metadata.distribution(open_.pop())
        for text in distribution.requires or ():
            needed = Requirement(text)
            extra = needed.marker is not None and not needed.marker.evaluate({"extra": ""})
            if not extra and needed.name.lower() not in seen:
                seen.add(needed.name.lower())
                open_.append(needed.name)
                link_files(metadata.distribution(needed.name), site)


def link_files(distribution: metadata.Distribution, site: Path) -> None:
    tops = {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}
    for top in tops - {"__pycache__", "bin"}:
        target = Path(str(distribution.locate_file(top)))
        if target.exists() and not (site / top).exists():
            (site / top).symlink_to(target)
