"""Methods given as classes and objects: built-in, of a file, and of a notebook or script."""

import linecache
import pickle
import subprocess
import sys
from types import ModuleType

import pytest
import torch
from toys import transformer_context

from palimpsest.cell.study import StudyTask
from palimpsest.config.plan import Plan
from palimpsest.errors import InputError, MethodError, PlanError
from palimpsest.methods import candidates, plugin_digests, title
from palimpsest.methods.npo import NPO
from palimpsest.methods.running import FailureKind, run_method
from palimpsest.plugins import find_plugin, plugin_name, source_digest
from palimpsest.stats.models import ModelFailure

CELL = """
from dataclasses import dataclass
from typing import ClassVar
import torch.nn.functional as functional
import palimpsest
from palimpsest.methods.context import StepView, Weight

PULL, table = 0.5, functional.one_hot
heavy = functional.relu(__import__("torch").zeros(3))

def shared(value):
    heavy = value.mean()
    return heavy * PULL

@dataclass(frozen=True)
class Base(palimpsest.GradientMethod):
    weight: Weight = 12.0

    def learning_rate(self, budget):
        return budget.learning_rate

@dataclass(frozen=True)
class Tether(Base):
    pull: float = PULL
    name: ClassVar[str] = "tether"

    def loss(self, view: StepView):
        return self.pull * shared(-view.forget) + self.weight * view.retain_nll()

@dataclass(frozen=True)
class Unmovable(Base):
    name = "unmovable"

    def loss(self, view):
        return heavy.sum()
"""


@pytest.fixture
def notebook(monkeypatch):
    """A module as a notebook's: in no file, its cells known to ``linecache`` alone."""
    home = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", home)

    def execute(cell: str = CELL) -> ModuleType:
        file = f"/tmp/ipykernel/{abs(hash(cell))}.py"
        lines = cell.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, file, (len(cell), None, lines, file))
        exec(compile(cell, file, "exec", dont_inherit=True), vars(home))
        return home

    return execute


def names(plan: Plan) -> list[str]:
    return [title(method) for method in candidates(plan.methods)]


def test_a_plan_takes_objects_classes_names_and_values_of_knobs(notebook):
    tether = notebook().Tether
    methods = [NPO(weight=3.0), NPO, "rollback", {"name": "ga", "weight": [3.0, 50.0]}]
    methods += [tether(pull=0.25), {"name": tether, "pull": [1.0, 2.0]}]
    plan = Plan.preset("demo", methods=methods)
    own = [f"tether-w12-pull{pull}" for pull in ("0.25", "1", "2")]
    assert names(plan) == ["npo-w3", "npo-w12", "rollback-base", "ga-w3", "ga-w50", *own]
    assert Plan.read({"preset": "demo", "methods": methods}) == plan
    assert plugin_digests(plan.methods).keys() == {"tether"}


def test_a_class_of_a_notebook_becomes_a_module_with_all_that_it_uses(notebook):
    home = notebook()
    copy = find_plugin(plugin_name(home.Tether))
    assert copy is not home.Tether and copy(pull=2.0).label == "w12-pull2"
    context = transformer_context("llama", steps=3)
    given, copied = (run_method(kind(), context) for kind in (home.Tether, copy))
    assert all(torch.equal(given[name], copied[name]) for name in given)
    for kept in ("shared", "PULL", "Base"):
        assert hasattr(sys.modules[copy.__module__], kept)
    assert not hasattr(sys.modules[copy.__module__], "heavy")  # of that name in it: its own


def test_an_edit_of_what_a_class_uses_counts_and_of_anything_else_does_not(notebook):
    first = source_digest(find_plugin(plugin_name(notebook().Tether)))
    same = notebook(CELL.replace("heavy = functional", "other = 3\nheavy = functional"))
    assert source_digest(find_plugin(plugin_name(same.Tether))) == first
    edited = notebook(CELL.replace("return heavy * PULL", "return heavy * PULL * 2"))
    assert source_digest(find_plugin(plugin_name(edited.Tether))) != first


def test_a_class_that_cannot_be_taken_to_workers_is_refused(notebook):
    home = notebook()
    with pytest.raises(InputError, match="heavy"):
        plugin_name(home.Unmovable)
    fields_alone = (
        CELL[: CELL.index("    def learning_rate")]
        + CELL[CELL.index("@dataclass(frozen=True)\nclass Tether") :]
    )
    with pytest.raises(InputError, match="Base"):
        plugin_name(notebook(fields_alone).Tether)


def test_another_process_gets_the_class_with_the_task(notebook, tmp_path):
    plan = Plan.preset("demo", methods=[notebook().Tether(pull=0.25)])
    (tmp_path / "task").write_bytes(pickle.dumps(StudyTask(plan, tmp_path / "run")))
    code = (
        "import pickle, sys\ntask = pickle.load(open(sys.argv[1], 'rb'))\n"
        "(method,) = task.methods\nprint(method.name, method.pull, task.plugins['tether'])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "task")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["tether", "0.25", plugin_digests(plan.methods)["tether"]]


def test_a_name_from_another_session_is_refused():
    with pytest.raises(MethodError):
        candidates(Plan.preset("demo", methods=["in_memory_000000000000:Tether"]).methods)


def test_a_file_is_read_again_when_it_was_edited(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    text = "from palimpsest.methods.rollback import Rollback\nimport beside_it\n"
    text += "class Own(Rollback):\n    name = 'own'\n    summary = beside_it.SUMMARY\n"
    (tmp_path / "edited_method.py").write_text(text)
    for number, summary in enumerate(("first", "second")):
        (tmp_path / "beside_it.py").write_text(f"SUMMARY = {summary!r} + {'x' * number!r}\n")
        assert find_plugin("edited_method:Own").summary == summary + "x" * number
    for name in ("edited_method", "beside_it"):
        sys.modules.pop(name)


WRONG = {
    "a tensor of many numbers": "view.forget.mean(-1)",
    "text": "'hello'",
    "a number": "3.0",
    "nothing": "None",
    "a number without gradient": "view.forget.mean().detach()",
}


@pytest.mark.parametrize("what", WRONG)
def test_what_a_loss_returns_is_one_number_with_a_gradient(notebook, what):
    cell = CELL.replace("return heavy.sum()", f"return {WRONG[what]}")
    method = find_plugin(plugin_name(notebook(cell).Unmovable))()
    failure = run_method(method, transformer_context("llama", steps=2))
    assert isinstance(failure, ModelFailure) and failure.kind == FailureKind.RAISED
    assert "Unmovable.loss" in failure.reason


def test_an_error_shows_the_line_of_the_method_in_which_it_arose(notebook):
    wrong = "functional.mse_loss(view.forget, view.forget[:, :3])"
    cell = CELL.replace("return heavy.sum()", f"return {wrong}")
    method = find_plugin(plugin_name(notebook(cell).Unmovable))()
    failure = run_method(method, transformer_context("llama", steps=2))
    assert isinstance(failure, ModelFailure) and wrong in failure.reason


def test_names_of_methods_are_their_own(notebook):
    methods = [notebook(CELL.replace('"tether"', f'"{name}"')).Tether for name in ("npo", "base")]
    with pytest.raises(MethodError) as refused:
        candidates(Plan.preset("demo", methods=methods).methods)
    assert len(str(refused.value).splitlines()) == 2  # both are named
    twins = [notebook(CELL.replace("12.0", weight)).Tether for weight in ("3.0", "4.0")]
    with pytest.raises(MethodError):
        candidates(Plan.preset("demo", methods=twins).methods)


def test_a_knob_that_is_no_plain_value_is_named(notebook):
    tether = notebook().Tether(pull=torch.zeros(3))
    with pytest.raises(PlanError) as refused:
        Plan.preset("demo", methods=["npo", tether])
    assert refused.value.key == "methods[1].pull"
