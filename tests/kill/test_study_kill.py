"""A real study, killed, stopped, starved or doubled, ends after a retry with the bytes of a whole.

Real commands, real training, real signals, real file systems. One test has a few of each for every
day; those marked slow have the full counts.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.reliability import FULL, count

import palimpsest
from palimpsest.errors import ModelError
from palimpsest.models.sources import pocket_folder

HERE = Path(__file__).parent


def _baked() -> bool:
    try:
        return pocket_folder("pocket/qwen2-s").is_dir()
    except ModelError:
        return False


pytestmark = [
    pytest.mark.timeout(4 * 3600 if FULL else 1200),
    pytest.mark.skipif(not _baked(), reason="the weights of pocket/qwen2-s are not there"),
]


class Server:
    """The process that has run the study undisturbed and disturbs others on request."""

    def __init__(self, folder: Path) -> None:
        source = f"{Path(palimpsest.__file__).parents[1]}:{HERE}:{HERE.parent / 'run'}"
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "small_study.py"), str(folder)],
            env=os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, mode: str, argument: object = "-") -> list[dict[str, Any]]:
        """Have it done; every attempt must end whole, with no step done twice."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{mode} {argument}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the server ended; its reason is on stderr"
        results: list[dict[str, Any]] = json.loads(line)
        for result in results:
            if "skipped" not in result:
                assert result["exit"] == 0, result
                assert result["different"] == [], result
                assert set(result["repeated"]) <= set(result.get("lost", [])), result
                assert result["certificate"] and not result["locks"], result
        return results


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("studies"))
    yield server
    assert server.process.stdin is not None and server.process.stdout is not None
    server.process.stdin.close()
    server.process.stdout.close()
    server.process.wait(timeout=60)


def check_kills(results: list[dict[str, Any]], wanted: int) -> None:
    # A killed worker does not stop its study; a study that was killed is resumed.
    assert not [r for r in results if r["what"] == "worker" and r["killed"] != 0]
    assert {r["killed"] for r in results if r["what"] == "study"} <= {-9, 0}
    assert sum(r["landed"] for r in results) == wanted
    for target in ("study", "worker"):
        count(f"SIGKILLs of a {target}", sum(r["landed"] for r in results if r["what"] == target))


def check_operations(results: list[dict[str, Any]]) -> None:
    assert all(result["killed"] == -9 for result in results)
    assert results[0]["of"] > 80 and results[-1]["what"] == str(results[-1]["of"])
    count("SIGKILLs at a disk operation of a real cell", len(results))


def check_signals(results: list[dict[str, Any]], wanted: int) -> None:
    # One that was over before its turn came has nothing to say of signals.
    landed = [r for r in results if r["landed"]]
    assert len(landed) == wanted
    for result in landed:
        whole = json.dumps(result)
        assert result["stop"] == (143 if result["what"] == "SIGTERM" else 130), whole
        last = result["message"].splitlines()[-1]
        assert last.startswith("stopped") and "Traceback" not in result["message"], whole
        assert result["held"] == [] and result["failed"] == [], whole
        count(f"{result['what']}s of a study")


def check_late(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["struck"] and result["killed"] == (0 if result["what"] == "worker" else -9)
        count(f"SIGKILLs of a {result['what']} in a late step")
    assert {"finish", "known-label"} <= {result["step"] for result in results}
    assert any(result["step"].startswith("unlearn-") for result in results)


def check_filled(results: list[dict[str, Any]]) -> None:
    for result in results:
        if "skipped" not in result:
            assert result["first"] == 1
            assert "No space left on device" in result["message"].splitlines()[-1]
            assert "Traceback" not in result["message"]
            # What was stored before is whole: cells may be unfinished, no file is damaged.
            assert all("not finished" in problem for problem in result["torn"])
            assert result["rewritten"] == []
            assert result["stored"] and result["what"] not in result["stored"]
            count("disks that became full")


def test_a_few_kills_signals_and_faults_change_no_byte(server):
    check_kills(server("kills", 2), 2)  # of the study, and late, of its worker
    check_operations(server("operations", 3))
    check_signals(server("signals", 2), 2)
    check_late(server("late", 4))
    check_filled(server("filled", "known-label=16000"))


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "full", "some"), [("kills", 200, 20), ("crowds", 30, 4)])
def test_a_kill_at_any_instant_changes_no_byte_and_repeats_no_step(server, mode, full, some):
    wanted = full if FULL else some
    check_kills(server(mode, wanted), wanted)


@pytest.mark.slow
def test_a_kill_in_a_late_step_changes_no_byte_and_repeats_no_step(server):
    check_late(server("late", 100 if FULL else 12))


@pytest.mark.slow
def test_a_disk_full_in_the_middle_of_a_step_loses_nothing(server):
    # The bytes left to each step: half of a model's weights, some of the tables of scores.
    steps = "train-reference-2=400000,measure-controls-01=16000,unlearn-01-task-vector=8000"
    results = server("filled", steps)
    check_filled(results)
    if "skipped" in results[0]:
        pytest.skip(results[0]["skipped"])


@pytest.mark.slow
def test_a_network_file_system_shared_by_two_workers_changes_no_byte(server):
    result = server("far")[0]
    if "skipped" in result:
        pytest.skip(result["skipped"])
    assert result["second"] == 1 and "held by" in result["message"].splitlines()[-1]


@pytest.mark.slow
def test_a_kill_at_disk_operations_of_a_real_cell_changes_no_byte(server):
    check_operations(server("operations", 60 if FULL else 10))


@pytest.mark.slow
def test_a_signal_stops_the_study_with_one_sentence_and_nothing_lost(server):
    wanted = 40 if FULL else 8
    check_signals(server("signals", wanted), wanted)


@pytest.mark.slow
def test_the_number_and_kind_of_workers_change_no_byte(server):
    names = ["local-1", "local-2", "local-4"]
    names += ["ray-2"] if importlib.util.find_spec("ray") else []
    assert [result["what"] for result in server("same", ",".join(names))] == names
