import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_run import Made, calibrated, made_plan, write_cell, write_run

from palimpsest.analysis.results import RunResults, read_run
from palimpsest.errors import InputError
from palimpsest.run.graph import Failure
from palimpsest.run.store import Run


def test_a_run_is_read_with_its_plan_and_rules(results: RunResults) -> None:
    assert results.name == "made"
    assert results.rules == made_plan().rules
    assert results.rules_hash == made_plan().rules_hash()
    assert results.families == ("qwen2", "gpt2")
    assert results.methods == ("kl_reversion", "gate_mask", "task_vector", "ga", "npo")
    assert [cell.id for cell in results.cells] == list(results.planned)
    assert results.missing == ()


def test_planted_scores_come_back(results: RunResults) -> None:
    cell = results.cell("qwen2-s--seed0")
    measures = cell.evaluation
    assert np.median(measures["kl_reversion-w3"].forget_deltas) == pytest.approx(-1.5)
    assert measures["injected"].retain_nll == pytest.approx(1.2)
    assert measures.floor == pytest.approx(1.8)  # two parts of 0.9
    assert measures["ga-w3"].oracle_kl == pytest.approx(3.0)
    assert cell.panel is not None
    assert cell.panel["panel:suppression"].median_forget_delta == pytest.approx(0.1)


def test_a_mask_that_does_not_apply_is_not_a_failure(results: RunResults) -> None:
    cell = results.cell("gpt2-s--seed0")
    assert sorted(cell.not_applicable) == ["gate_mask-w12", "gate_mask-w3"]
    assert not cell.failed
    assert len(cell.candidates) == 8


def test_family_tolerances_reach_every_cell_of_the_family(results: RunResults) -> None:
    own, other = results.cell("qwen2-s--seed0"), results.cell("qwen2-m--seed1")
    assert (own.draws, other.draws) == (3, 1)
    assert own.tolerances == other.tolerances == results.tolerances["qwen2"]
    assert other.verdict is not None and other.verdict.reason == "no_reference"


def test_an_unfinished_cell_is_listed_and_not_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "run", skip=["gpt2-s--seed1", "qwen2-s--seed1"])
    cell = Run.open(tmp_path / "run").cell("qwen2-s--seed1")
    cell.folder.mkdir(parents=True)
    cell.fail(Failure("diverged", "training diverged at step 3", "train-injected"))
    results = read_run(tmp_path / "run")
    assert len(results.cells) == 4
    assert [(one.id, one.state) for one in results.missing] == [
        ("qwen2-s--seed1", "failed"),
        ("gpt2-s--seed1", "waiting"),
    ]
    assert "step 3" in results.missing[0].reason


def test_a_damaged_cell_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    file = folder / "cells" / "qwen2-m--seed0" / "items.parquet"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    results = read_run(folder)
    assert [(one.id, one.state) for one in results.missing] == [("qwen2-m--seed0", "damaged")]
    assert len(results.cells) == 5


def test_without_the_replicated_cell_the_family_has_no_tolerances(tmp_path: Path) -> None:
    results = read_run(write_run(tmp_path / "run", skip=["gpt2-s--seed0"]))
    assert list(results.tolerances) == ["qwen2"]
    cell = results.cell("gpt2-s--seed1")
    assert cell.tolerances is None
    assert cell.verdict is not None and not cell.verdict.certified


def test_a_cell_without_candidates_has_no_verdict(tmp_path: Path) -> None:
    plan = made_plan(("qwen2-s",), (0,))
    run = Run.create(
        tmp_path / "run", plan.as_dict(), plan.as_dict()["rules"], {}, {"commitment": "c"},
        cells=["only"],
    )  # fmt: skip
    models = {name: Made(audit=True) for name in ("base", "injected", "reference")}
    write_cell(run, "only", "qwen2-s", 0, models, plan)
    cell = read_run(tmp_path / "run").cell("only")
    assert cell.verdict is None and cell.screen is None and cell.survivors == ()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run"):
        read_run(tmp_path)


def test_reading_results_needs_no_torch(run_folder: Path) -> None:
    code = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "safetensors"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from palimpsest.analysis.results import read_run
import palimpsest.analysis.leaderboard, palimpsest.analysis.second_suite
print(len(read_run({str(run_folder)!r}).cells))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 6


def test_methods_kinds_and_failures_come_from_roles(results: RunResults) -> None:
    cell = results.cell("qwen2-s--seed0")
    assert cell.methods["ga-w3"] == "ga" and cell.kind("ga-w3") == "suppresses"
    made = [name for name in cell.candidates if cell.methods[name] == "task_vector"]
    assert made == ["task_vector-c0.5", "task_vector-c1"]
    assert results.of_kind("suppresses") == ("ga", "npo")
    assert results.of_kind("restores") == ("kl_reversion", "task_vector")
    assert cell.roles["panel:suppression"]["truth"] == "suppressed"


def test_a_calibrated_cell_certifies_the_retraining_and_nothing_else(tmp_path: Path) -> None:
    plan = made_plan(("qwen2-s",), (0,))
    folder = write_run(tmp_path / "run", plan, change=lambda cell, models: calibrated())
    verdict = read_run(folder).cells[0].verdict
    assert verdict is not None and verdict.candidate == "task_vector-c1", verdict.paragraph()
    assert [finding.name for finding in verdict.findings if finding.clears] == ["task_vector-c1"]


def test_a_verdict_does_not_depend_on_other_seeds(tmp_path: Path) -> None:
    def both(cell: str, models: dict[str, Made]) -> dict[str, Made]:
        return calibrated(seed=int(cell[-1]))

    alone = read_run(write_run(tmp_path / "a", made_plan(("qwen2-s",), (0,)), change=both))
    together = read_run(write_run(tmp_path / "b", made_plan(("qwen2-s",), (0, 1)), change=both))
    assert together.cells[0].verdict == alone.cells[0].verdict
