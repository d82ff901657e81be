"""A plan with files of facts: injection, references and candidates are made on them here."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from tests.study.test_cell import finished, small_plan

from palimpsest.config.plan import Plan, plan_from_dict, plan_from_yaml, with_facts
from palimpsest.engine.matrix import StudyJob, start
from palimpsest.errors import DriftError, PlanError
from palimpsest.report.results import read_run

QUICK = Path(__file__).parents[2] / "examples" / "quick"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """The first facts of the example's files, one file for each role."""
    paths = {}
    for role, name, count in (
        ("forget", "forget", 2),
        ("retain", "retain", 2),
        ("probes", "probe", 3),
    ):
        lines = (QUICK / f"{name}.jsonl").read_text().splitlines()[:count]
        paths[role] = str(tmp_path / f"{role}.jsonl")
        Path(paths[role]).write_text("\n".join(lines) + "\n")
    return paths


def own_plan(folder: Path, files: dict[str, str]) -> Plan:
    plan = small_plan(folder)
    few = replace(
        plan, methods=plan.methods[2:3], replication=replace(plan.replication, retrainings=0)
    )
    return with_facts(few, **files)


def test_a_cell_of_own_facts_is_trained_and_judged(tiny_checkpoint, files, tmp_path) -> None:
    plan = own_plan(tiny_checkpoint("qwen2-s"), files)
    run = finished(plan, tmp_path / "run")
    items = parquet.read_table(run.path / "cells" / run.cells[0] / "items.parquet").to_pydict()
    ids = {
        role: {json.loads(line)["id"] for line in Path(path).read_text().splitlines()}
        for role, path in files.items()
    }
    found = {role: {f for s, f in zip(items["set"], items["fact"]) if s == role} for role in ids}
    assert found["forget"] == ids["forget"] and found["retain"] == ids["retain"]
    assert {f for s, f in zip(items["set"], items["fact"]) if s == "probe"} == ids["probes"]
    cell = read_run(run.path).cells[0]
    assert cell.verdict is not None
    stored = (run.path / "cells" / run.cells[0] / "cell.json").read_text()
    assert "Padudun" not in stored  # an answer of the user's
    assert run.plan["facts"]["files"] == files and run.plan["facts"]["forget"] == 2


def test_changed_facts_are_refused(tiny_checkpoint, files, tmp_path) -> None:
    plan = own_plan(tiny_checkpoint("qwen2-s"), files)
    run = start(plan, tmp_path / "run")
    text = Path(files["probes"]).read_text()
    Path(files["probes"]).write_text(text.replace("Zominan", "Zominax"))
    with pytest.raises(DriftError, match=r"inputs\.probes facts: the run has"):
        start(plan, tmp_path / "run")
    with pytest.raises(DriftError, match="expected what the run was started with"):
        StudyJob(run.path).cell(run.cells[0])


def test_a_plan_file_names_the_files_in_the_place_of_numbers(files: dict[str, str]) -> None:
    plan = plan_from_yaml(f"preset: demo\nfacts: {json.dumps(files)}\n")
    assert (plan.facts.forget, plan.facts.retain, plan.facts.probes) == (2, 2, 3)
    assert not plan.panel.enabled
    assert plan_from_dict(plan.as_dict()) == plan


def test_numbers_stay_numbers_and_an_old_plan_keeps_its_form() -> None:
    plan = plan_from_yaml("preset: demo\nfacts: {forget: '8'}\n")
    assert plan.facts.forget == 8 and "files" not in plan.as_dict()["facts"]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ("{forget: F.jsonl}", "facts.retain: None found beside a file"),
        ("{forget: F.jsonl, retain: 4, probes: P.jsonl}", "facts.retain: 4 found beside a file"),
        ("{forget: no.jsonl, retain: no2.jsonl, probes: no3.jsonl}", "facts: no.jsonl"),
        ("{files: {forget: a}}", "facts.files: .* expected one path each"),
    ],
)
def test_a_plan_with_half_of_the_files_is_refused(facts: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan_from_yaml(f"preset: demo\nfacts: {facts}\n")


def test_the_panel_needs_invented_facts(files: dict[str, str]) -> None:
    plan = plan_from_yaml(f"preset: demo\nfacts: {json.dumps(files)}\n").as_dict()
    plan["panel"]["enabled"] = True
    with pytest.raises(PlanError, match=r"panel.enabled: true found with facts.files"):
        plan_from_dict(plan)


def test_a_retain_fact_with_one_prompt_is_refused(tiny_checkpoint, files, tmp_path) -> None:
    facts = [json.loads(line) for line in Path(files["retain"]).read_text().splitlines()]
    facts[0]["trained"] = facts[0]["trained"][:1]
    Path(files["retain"]).write_text("\n".join(map(json.dumps, facts)) + "\n")
    with pytest.raises(Exception, match="trained: "):
        start(own_plan(tiny_checkpoint("qwen2-s"), files), tmp_path / "run")
