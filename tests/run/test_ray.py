"""Workers on Ray: the bytes of local ones, and nothing lost with a node or a signal.

Ray's own processes are started from a child process, as a study starts them.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toy_job import artifacts, toy_job, toy_run

import palimpsest
from palimpsest.errors import DriftError, InputError, PalimpsestError
from palimpsest.run import progress
from palimpsest.run.executor import InlineExecutor, executor
from palimpsest.run.ray import RayExecutor, _check_node
from palimpsest.run.store import Run

HERE = Path(__file__).parent
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed"
)


def study(mode: str, folder: Path) -> dict[str, Any]:
    source = f"{Path(palimpsest.__file__).parents[1]}:{HERE}"
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, str(HERE / "ray_study.py"), mode, str(folder)],
            env=os.environ | {"PYTHONPATH": source},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        if done.returncode != os.EX_TEMPFAIL:
            break
    else:
        pytest.skip("Ray itself did not start within its 30 seconds, three times")
    assert done.returncode == 0, done.stderr
    # All of stdout is one document: a Ray that talks there would spoil --json.
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_node_killed_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    result = study("cluster", tmp_path)
    assert result["first"]["done"] == ["a", "b", "dies-1"]
    failed = {"fails-1": ["error", "ValueError: fails-1 was made to fail"]}
    assert result["first"]["failed"] == failed
    # The second call leaves the finished cells alone and survives the loss of a node.
    assert result["killed"] == 1
    assert result["then"]["skipped"] == ["a", "b", "dies-1"]
    assert result["then"]["done"] == ["held-1", "held-2"]
    # One step was under way on the node that was killed, and is begun again elsewhere.
    assert len(result["again"]) == 1
    assert result["again"][0] in ("train", "part-1", "part-2")

    run = Run.open(tmp_path / "ray")
    done = [line for _, line in progress.lines(run.path) if line["event"] == "done"]
    assert len({(line["cell"], line["step"]) for line in done}) == len(done)

    (tmp_path / "inline").mkdir()
    (tmp_path / "inline" / "go").touch()
    (tmp_path / "inline" / "dies-1-died").touch()
    inline = toy_run(tmp_path / "inline" / "run", list(run.cells))
    assert inline.terms_digest == run.terms_digest
    InlineExecutor().execute(toy_job(inline), inline.path, inline.cells)
    assert artifacts(inline.path) == artifacts(run.path)


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_signal_stops_the_workers_and_keeps_what_is_stored(tmp_path: Path) -> None:
    result = study("signal", tmp_path)
    assert re.match(r"stopped by SIGTERM: 0 of 3 cells are finished", result["message"])
    assert result["exit"] == 143
    assert result["at work"] == 0
    assert result["handlers"]
    assert sum(len(steps) for steps in result["steps"].values()) >= 4


def test_without_ray_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    run = toy_run(tmp_path / "run", ["a"])
    with pytest.raises(InputError, match=r"palimpsest-audit\[ray\]"):
        executor("ray").execute(toy_job(run), run.path, ["a"], workers=1)


def test_a_ray_that_cannot_start_in_time_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ray:
        @staticmethod
        def is_initialized() -> bool:
            return False

        @staticmethod
        def init(**given: Any) -> None:
            raise Exception("The current node timed out during startup. This could happen.")

    run = toy_run(tmp_path / "run", ["a"])
    monkeypatch.setattr("palimpsest.run.ray.ray_library", lambda: Ray)
    with pytest.raises(PalimpsestError, match=r"Ray did not start .* or use --executor local"):
        executor("ray").execute(toy_job(run), run.path, ["a"], workers=1)


def test_a_worker_asks_ray_for_the_resources_it_was_given() -> None:
    asked = RayExecutor(num_cpus=2, memory=10).resources({})
    assert asked == {"num_cpus": 2, "num_gpus": 0, "memory": 10}
    gpu = {"engine": {"device": "cuda"}}
    assert RayExecutor().resources(gpu)["num_gpus"] == 1
    assert RayExecutor(num_gpus=0.5).resources(gpu)["num_gpus"] == 0.5


def test_a_node_without_the_folder_or_with_other_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = toy_run(tmp_path / "run", ["a"])
    _check_node(str(run.path), "n1")
    with pytest.raises(InputError, match="every node mounts at the same path"):
        _check_node(str(tmp_path / "elsewhere"), "n1")
    other = run.environment | {"packages": run.environment["packages"] | {"torch": "0.1"}}
    monkeypatch.setattr("palimpsest.run.ray.environment", lambda: other)
    with pytest.raises(DriftError, match=r"packages\.torch"):
        _check_node(str(run.path), "n1")
