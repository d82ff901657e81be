"""One small look at each part of the laboratory; the rest of its tests is slow."""

import importlib
import pkgutil
import tomllib
from pathlib import Path

import palimpsest
import palimpsest_trials

ROOT = Path(__file__).parents[2]


def test_every_module_can_be_imported() -> None:
    for module in pkgutil.walk_packages(palimpsest_trials.__path__, "palimpsest_trials."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def test_the_core_never_names_the_laboratory() -> None:
    for file in Path(palimpsest.__file__).parent.rglob("*.py"):
        code = file.read_text("utf-8")
        assert "import palimpsest_trials" not in code and "from palimpsest_trials" not in code, file


def test_both_distributions_have_one_version() -> None:
    core, trials = (
        tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]["version"]
        for folder in (ROOT, ROOT / "trials")
    )
    assert core == trials
