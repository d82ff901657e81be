"""Workers on Ray: the bytes of local ones, and nothing lost with a node or a signal.

Ray's own processes are started from a child process, as a command starts them.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray_study import real_run
from toy import STEPS, ToyJob, digests, work

import palimpsest
from palimpsest.cli.options import RunFlags
from palimpsest.errors import DriftError, InputError, PlanError
from palimpsest.run.executor import execute
from palimpsest.run.ray import _check_node, resources
from palimpsest.run.status import progress_lines
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


def check_bytes(folder: Path, ray: Run) -> None:
    """Compare a run made on Ray with the same run made in this process."""
    (folder / "inline").mkdir()
    (folder / "inline" / "go").touch()
    (folder / "inline" / "dies-1-died").touch()
    inline = real_run(folder / "inline" / "run", *ray.cells)
    assert inline.terms == ray.terms
    work(inline)
    expected, found = digests(inline.path), digests(ray.path)
    assert found == expected
    done = [line for _, line in progress_lines(ray.path) if line["event"] == "done"]
    assert len({(line["cell"], line["step"]) for line in done}) == len(done)


@needs_ray
@pytest.mark.timeout(1800)
def test_ray_gives_the_bytes_of_this_process_and_survives_a_killed_worker(quick):
    result = study("plain", quick)
    assert result["done"] == ["a", "dies-1"]
    assert result["failed"] == {"fails-1": ["error", "ValueError: fails-1 was made to fail"]}
    check_bytes(quick, Run.open(quick / "ray"))


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_node_killed_in_the_middle_loses_nothing(tmp_path):
    result = study("cluster", tmp_path)
    assert result["killed"] == 1 and result["failed"] == {}
    assert result["done"] == ["held-1", "held-2"]
    # One step was at work on the node that was killed, and is started again elsewhere.
    assert len(result["again"]) == 1 and result["again"][0] in STEPS
    check_bytes(tmp_path, Run.open(tmp_path / "ray"))


class NoRay:
    """A Ray that cannot be reached, and says where it was looked for."""

    @staticmethod
    def is_initialized() -> bool:
        return False

    @staticmethod
    def init(address: str, **options: Any) -> None:
        raise Exception(address)


@pytest.mark.parametrize(
    ("ray", "address", "named"),
    [(None, "", "palimpsest-audit[ray]"), (NoRay, "", "local"), (NoRay, "head:6379", "head:6379")],
    ids=["missing", "own", "of the environment"],
)
def test_a_ray_that_is_missing_or_does_not_answer_is_one_error(
    tmp_path, monkeypatch, ray, address, named
):
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InputError) as refusal:
        execute(ToyJob(tmp_path), real_run(tmp_path / "run", "a"), executor="ray")
    assert named in str(refusal.value)


def test_a_worker_asks_ray_for_the_resources_it_was_given():
    assert resources("cuda")["num_gpus"] == 1
    flags = RunFlags(executor="ray", per_step="gpus=0.5,memory=2")
    wanted = {"num_cpus": 1, "num_gpus": 0.5, "memory": 2_000_000_000}
    for device in ("cuda", "cpu"):
        assert resources(device, **flags.resources()) == wanted
    for executor, text in (("local", "memory=2"), *(("ray", f"{x}=1") for x in ("disk", "gpus=x"))):
        with pytest.raises(PlanError) as refused:
            RunFlags(executor=executor, per_step=text).resources()
        assert refused.value.key == "--per-step"


def test_a_node_without_the_folder_or_with_other_code_is_refused(tmp_path, monkeypatch):
    run = real_run(tmp_path / "run", "a")
    monkeypatch.setattr("palimpsest.run.ray.code_version", lambda: run.terms.code)
    _check_node(str(run.path), "n1")
    with pytest.raises(InputError):
        _check_node(str(tmp_path / "elsewhere"), "n1")
    other = run.terms.packages | {"torch": "0.1"}
    monkeypatch.setattr("palimpsest.run.ray.package_versions", lambda: other)
    with pytest.raises(DriftError) as refusal:
        _check_node(str(run.path), "n1")
    assert refusal.value.keys == ("packages.torch",)
