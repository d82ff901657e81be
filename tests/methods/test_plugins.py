"""What a plug-in makes depends on its source, and the documented examples are the files."""

import sys
from importlib import invalidate_caches
from pathlib import Path

import pytest
from toys import transformer_context

from palimpsest.config.sections import MethodGrid
from palimpsest.errors import MethodError
from palimpsest.methods import candidates, plugin_digest, plugin_digests
from palimpsest.methods.running import run_group
from palimpsest.stats.models import ModelFailure

ROOT = Path(__file__).parents[2]
SOURCE = (ROOT / "examples" / "my_method.py").read_text()
NAME = "of_mine:MyMethod"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "of_mine.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "of_mine", raising=False)
    yield tmp_path
    sys.modules.pop("of_mine", None)


def test_the_example_is_printed_in_the_documentation_as_it_is():
    printed = (ROOT / "docs" / "methods.md").read_text()
    assert f"```python\n{SOURCE[SOURCE.index('@dataclass') :]}```" in printed


def test_the_example_that_is_not_a_loss_repairs_what_the_vector_damaged(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    grid = MethodGrid("repaired_vector:RepairedVector", (("share", (0.0, 1.0)),))
    methods = candidates([grid])
    context = transformer_context("llama", stacked=True, steps=20, learning_rate=1e-2)
    states = run_group(context, methods)
    assert not any(isinstance(state, ModelFailure) for state in states), states
    changed = [name for name in states[0] if not states[0][name].equal(states[1][name])]
    assert changed and all("layers.0." not in name for name in changed)


def test_a_forgotten_decorator_is_noticed(folder):
    (folder / "of_mine.py").write_text(SOURCE.replace("@dataclass(frozen=True)\n", ""))
    with pytest.raises(MethodError, match=r"@dataclass\(frozen=True\)"):
        candidates([MethodGrid(NAME)])


def test_a_file_that_the_plug_in_imports_counts_and_others_do_not(folder):
    (folder / "of_mine.py").write_text(SOURCE + "\nimport beside_mine\n")
    (folder / "beside_mine.py").write_text("x = 1\n")
    invalidate_caches()
    first = plugin_digest(NAME)
    (folder / "unrelated.py").write_text("x = 1\n")
    assert plugin_digest(NAME) == first
    (folder / "beside_mine.py").write_text("x = 2\n")
    assert plugin_digest(NAME) != first


def test_a_package_counts_with_all_its_modules(folder):
    package = folder / "pack_of_mine"
    (package / "deep").mkdir(parents=True)
    for place in (package / "__init__.py", package / "deep" / "__init__.py"):
        place.write_text("")
    (package / "deep" / "method.py").write_text(SOURCE)
    first = plugin_digest("pack_of_mine.deep.method:MyMethod")
    (package / "constants.py").write_text("x = 2\n")
    assert plugin_digest("pack_of_mine.deep.method:MyMethod") != first


def test_beside_an_installed_module_nothing_else_counts(folder, monkeypatch):
    (folder / "of_mine.py").write_text(SOURCE + "\nimport beside_mine\n")
    (folder / "beside_mine.py").write_text("x = 1\n")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(folder))
    first = plugin_digest(NAME)
    (folder / "beside_mine.py").write_text("x = 2\n")
    assert plugin_digest(NAME) == first


def test_built_in_methods_are_the_codes_own_business():
    assert plugin_digests([MethodGrid("npo")]) == {} and plugin_digest("npo") == ""


def test_a_method_without_a_file_is_refused(monkeypatch, folder):
    plugin_digest(NAME)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MethodError, match=NAME):
        plugin_digest(NAME)
