"""The wheel, installed into an environment of its own, runs the demo."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*line: str | Path, cwd: Path) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(part) for part in line],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=clean,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The bin folder of an environment with the wheel; its dependencies are this one's."""
    pytest.importorskip("hatchling", reason="needs hatchling to build the wheel")
    folder = tmp_path_factory.mktemp("install")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    binaries = folder / "venv" / "bin"
    site = run(
        binaries / "python",
        "-c",
        "import sysconfig; print(sysconfig.get_path('purelib'))",
        cwd=folder,
    ).strip()
    here = {sysconfig.get_path("purelib"), *(p for p in sys.path if p.endswith("site-packages"))}
    (Path(site) / "dependencies.pth").write_text("\n".join(sorted(here)) + "\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python"]
    run(*pip, binaries / "python", "install", "-q", "--no-deps", "--no-index", wheel, cwd=folder)
    return binaries


def test_the_wheel_brings_its_models_texts_and_templates(installed, tmp_path):
    where = run(
        installed / "python", "-c", "import palimpsest; print(palimpsest.__file__)", cwd=tmp_path
    )
    assert where.startswith(str(installed.parent))
    assert run(installed / "palimpsest", "--version", cwd=tmp_path).startswith("palimpsest ")
    assert "1 cell" in run(installed / "palimpsest", "demo", "--dry-run", cwd=tmp_path)
    files = {file.suffix for file in Path(where.strip()).parent.rglob("*.*")}
    assert {".safetensors", ".json", ".j2", ".typed"} <= files


@pytest.mark.slow
def test_the_wheel_runs_the_demo_to_its_verdict(installed, tmp_path):
    out = run(installed / "palimpsest", "demo", "--workers", "1", cwd=tmp_path)
    page = Path("demo-run", "report", "index.html")
    assert (tmp_path / page).is_file() and str(page) in out, out
    summary = json.loads((tmp_path / "demo-run" / "summary.json").read_text())
    (cell,) = summary["cells"].values()
    assert cell["references"] == 20 and cell["status"] in ("certified", "uncertified")
