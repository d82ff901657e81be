"""A real study, killed or stopped at any instant and resumed, ends with the bytes of a whole one.

Real workers, real training, real signals. PALIMPSEST_FULL=1 runs 200 kills instead of a few.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.errors import ModelError
from palimpsest.models.pocket import pocket_folder

FULL = os.environ.get("PALIMPSEST_FULL") == "1"
SMALL = Path(__file__).with_name("small_study.py")


def _baked() -> bool:
    try:
        return pocket_folder("pocket/qwen2-s").is_dir()
    except ModelError:
        return False


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(4 * 3600 if FULL else 600),
    pytest.mark.skipif(not _baked(), reason="the weights of pocket/qwen2-s are not there"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all, so that the undisturbed study is run once."""
    return tmp_path_factory.mktemp("studies")


def small_study(mode: str, folder: Path, rest: object) -> list[dict[str, Any]]:
    source = str(Path(palimpsest.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(SMALL), mode, str(folder), str(rest)],
        env=os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)
    for result in results:
        assert result["exit"] == 0, result
        assert result["different"] == [], result
        assert result["repeated"] == [], result
    return results


def test_a_kill_at_any_instant_changes_no_byte_and_repeats_no_step(folder: Path) -> None:
    results = small_study("kills", folder, 200 if FULL else 3)
    # A study that loses a worker goes on by itself; one that is killed is resumed.
    assert all(r["killed"] == 0 for r in results if r["what"] == "worker")
    assert {r["killed"] for r in results if r["what"] == "study"} <= {-9, 0}
    assert any(r["killed"] == -9 for r in results)


def test_a_signal_stops_the_study_with_one_sentence_and_nothing_lost(folder: Path) -> None:
    results = small_study("signals", folder, 20 if FULL else 2)
    assert {r["what"] for r in results} == {"SIGTERM", "SIGINT"}
    for result in results:
        assert result["stop"] == (15 if result["what"] == "SIGTERM" else 2), result
        assert result["message"].startswith("stopped by "), result
        assert result["message"].count("\n") == 1, result
        assert "run the same command again" in result["message"]
        assert result["leases"] == [], result


def test_the_number_of_workers_changes_no_byte(folder: Path) -> None:
    small_study("same", folder, "local-2,local-4" if FULL else "local-2")


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_ray_gives_the_bytes_of_local_workers(folder: Path) -> None:
    small_study("same", folder, "ray-2")
