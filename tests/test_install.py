"""The wheel, installed into an environment of its own, runs a pocket cell."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TINY = """\
preset: demo
facts: {forget: 2, retain: 2, probes: 6, phrasings: 2}
injection: {steps: 2, fact_items: 2, general_items: 2}
unlearning: {steps: 2}
round_trip: {steps: 2, chunks: 2, items: 2}
general: {train_pieces: 8, scored_pieces: 2, piece_tokens: 12}
methods: [{name: task_vector, coefficient: [1]}]
replication: {draws: 1}
panel: {enabled: false}
"""


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
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_the_wheel_runs_a_pocket_cell_to_its_report(installed: Path, tmp_path: Path) -> None:
    where = run(
        installed / "python", "-c", "import palimpsest; print(palimpsest.__file__)", cwd=tmp_path
    )
    assert where.startswith(str(installed.parent))
    assert run(installed / "palimpsest", "--version", cwd=tmp_path).startswith("palimpsest ")
    (tmp_path / "plan.yaml").write_text(TINY)
    out = run(
        installed / "palimpsest",
        "study",
        "plan.yaml",
        "--out",
        "run",
        "--workers",
        "1",
        cwd=tmp_path,
    )
    assert "report:" in out and (tmp_path / "run" / "report" / "index.html").is_file()
    assert (tmp_path / "run" / "summary.json").is_file()
