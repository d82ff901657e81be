"""A run grows by a method, and an edited plug-in is made again: nothing else is done twice."""

import json
import sys
from dataclasses import replace

import pytest
from tests.cell.small import bare_plan, finish, rows
from tests.command import palimpsest

from palimpsest.config.load import as_dict
from palimpsest.config.sections import Engine, MethodGrid
from palimpsest.errors import MethodError
from palimpsest.report.results import read_run

VECTOR = MethodGrid("task_vector", (("coefficient", (0.5, 1.0)),))
PLUGIN = """
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Shrink:
    factor: float = 0.9
    name = "shrink"
    summary = "scales the injected weights"
    needs = ()
    citation = "made for a test"

    @property
    def label(self):
        return f"f{self.factor:g}"

    def run(self, context):
        return {name: value * self.factor for name, value in context.injected.items()}
"""
TASK = "ungrown_method:Shrink"


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """The file of a method beside the user."""
    file = tmp_path / "ungrown_method.py"
    file.write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("ungrown_method", None)
    yield file
    sys.modules.pop("ungrown_method", None)


def test_only_the_added_method_is_made_and_its_rows_are_those_of_a_run_that_had_it_from_the_start(
    tmp_path,
):
    plan = bare_plan(methods=(VECTOR,), engine=Engine(keep=("models",)))
    before = rows(finish(plan, tmp_path / "run")[0])
    # It comes first, so that the step of the other has another name, under which it is found.
    both = replace(plan, methods=(MethodGrid("npo"), VECTOR))
    run, done = finish(both, tmp_path / "run")
    assert [name for name in done if not name.startswith("train-")] == ["unlearn-00-npo"]
    after = rows(run)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"npo-w12"}
    assert after["npo-w12"] == rows(finish(both, tmp_path / "fresh")[0])["npo-w12"]
    assert len(read_run(run.path).lists) == 2


def test_an_edited_plug_in_makes_its_own_rows_again_and_no_others(plugin, tmp_path):
    plan = bare_plan(methods=(VECTOR, MethodGrid(TASK)), engine=Engine(keep=("models",)))
    before = rows(finish(plan, tmp_path / "run")[0])
    plugin.write_text(PLUGIN.replace("value * self.factor", "value * self.factor * 0.9"))
    sys.modules.pop("ungrown_method")  # as another command would start without it
    run, done = finish(plan, tmp_path / "run")
    assert [name for name in done if not name.startswith("train-")] == ["unlearn-01-shrink"]
    after = rows(run)
    assert {name for name in before if before[name] != after[name]} == {"shrink-f0.9"}
    assert finish(plan, tmp_path / "run")[1] == []


@pytest.mark.parametrize(
    "fault",
    [
        ("value * self.factor", "value * self.factr"),
        ("in context.injected.items()", "in list(context.injected.items())[1:]"),
    ],
)
def test_a_broken_plug_in_is_noticed_before_anything_is_trained(plugin, tmp_path, fault):
    plugin.write_text(PLUGIN.replace(*fault))
    with pytest.raises(MethodError, match="shrink"):
        finish(bare_plan(methods=(MethodGrid(TASK),)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_plug_in_that_fails_later_costs_its_candidate_and_the_exit_code(plugin, tmp_path):
    late = "if context.budget.steps > 1: raise ValueError('late')\n        return {"
    plugin.write_text(PLUGIN.replace("return {name", late + "name"))
    plan = tmp_path / "plan.yaml"
    plan.write_text(json.dumps(as_dict(bare_plan(methods=(VECTOR,)))))
    command = ("study", str(plan), "--out", str(tmp_path / "run"), "--executor", "inline")
    done = palimpsest(*command, "--method", TASK)
    assert done.returncode == 1 and "shrink" in done.stderr and "late" in done.stderr
    cell = read_run(tmp_path / "run").cells[0]
    assert "task_vector-c1" in cell.candidates and list(cell.failed) == ["shrink-f0.9"]
