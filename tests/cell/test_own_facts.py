"""A plan with files of facts: injection, references and candidates are made on them here."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cell.small import METHODS, bare_plan, finish, only_cell

from palimpsest.cell.study import StudyTask
from palimpsest.config.load import as_dict, load_config
from palimpsest.config.plan import Plan
from palimpsest.config.sections import Facts
from palimpsest.errors import DriftError, FactsError, PlanError
from palimpsest.report.results import read_run
from palimpsest.run.store import Run

QUICK = Path(__file__).parents[2] / "examples" / "quick"


@pytest.fixture
def files(tmp_path):
    """The first facts of the example's files, one file for each set."""
    paths = {}
    for name, count in (("forget", 2), ("retain", 2), ("probes", 3)):
        file = QUICK / f"{name.removesuffix('s')}.jsonl"
        lines = file.read_text().splitlines()[:count]
        paths[name] = str(tmp_path / f"{name}.jsonl")
        Path(paths[name]).write_text("\n".join(lines) + "\n")
    return paths


def own_plan(files: dict[str, str]) -> Plan:
    return bare_plan(methods=METHODS[2:3], facts=Facts(files=tuple(files.items())))  # type: ignore[arg-type]


def test_a_cell_of_own_facts_is_trained_and_judged(files, tmp_path):
    run, _ = finish(own_plan(files), tmp_path / "run")
    items = only_cell(run).table("items")
    for name, path in files.items():
        asked = {json.loads(line)["id"] for line in Path(path).read_text().splitlines()}
        kind = "probe" if name == "probes" else name
        assert {f for s, f in zip(items["set"], items["fact"]) if s == kind} == asked
    assert read_run(run.path).cells[0].verdict is not None
    stored = (run.path / "cells" / run.cells[0] / "cell.json").read_text()
    answers = [
        json.loads(line)["answer"] for line in Path(files["forget"]).read_text().split("\n")[:2]
    ]
    assert not [answer for answer in answers if answer in stored]


def test_changed_facts_are_refused(files, tmp_path):
    plan = own_plan(files)
    Run.create_or_resume(tmp_path / "run", *StudyTask(plan).fixed)
    text = Path(files["probes"]).read_text()
    Path(files["probes"]).write_text(text.replace('"answer": "', '"answer": "X'))
    with pytest.raises(DriftError) as drift:
        Run.create_or_resume(tmp_path / "run", *StudyTask(plan).fixed)
    assert drift.value.keys == ("inputs.probe facts",)


def test_half_of_the_files_and_known_label_models_with_files_are_refused(files):
    plan = as_dict(own_plan(files))
    some = {name: path for name, path in files.items() if name != "retain"}
    with pytest.raises(PlanError) as half:
        load_config(Plan, plan | {"facts": {"files": some}})
    assert half.value.key == "facts.files"
    with pytest.raises(PlanError) as known:
        load_config(Plan, plan | {"known_label": ["router"]})
    assert known.value.key == "known_label"


def test_a_file_that_is_missing_or_lacks_prompts_is_noticed_before_training(files):
    facts = [json.loads(line) for line in Path(files["forget"]).read_text().splitlines()]
    facts[0]["trained"] = []
    Path(files["forget"]).write_text("\n".join(map(json.dumps, facts)) + "\n")
    plan = own_plan(files)
    with pytest.raises(FactsError):
        StudyTask(plan).check()
    gone = replace(plan, facts=Facts(files=(*plan.facts.files[1:], ("forget", "no.jsonl"))))
    with pytest.raises(FactsError):
        StudyTask(gone).check()
