"""A new known-label model is one function with its label; nothing else has to know its name."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from palimpsest.engine.matrix import StudyJob, start
from tests.study.test_cell import finished, small_plan

from palimpsest.adversaries import Truth, chosen, entries, known, names, registry
from palimpsest.config.plan import Panel, plan_from_dict
from palimpsest.errors import PlanError

NOISE = """
from palimpsest.adversaries import Truth, known_label

@known_label(Truth.SUPPRESSED, builds_on=("injected",))
def noise(workshop):
    import torch
    drawn = torch.Generator().manual_seed(0)
    return {
        name: value + 0.01 * torch.randn(value.shape, generator=drawn)
        for name, value in workshop.state("injected").items()
    }
"""


@pytest.fixture
def noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One file more in ``known/``."""
    (tmp_path / "noise_file.py").write_text(NOISE)
    monkeypatch.setattr(known, "__path__", [*known.__path__, str(tmp_path)])
    registry.entries.cache_clear()
    yield
    sys.modules.pop("palimpsest.adversaries.known.noise_file", None)
    registry.entries.cache_clear()


@pytest.mark.usefixtures("noise")
def test_a_file_that_is_added_is_all_that_a_new_model_takes(
    tiny_checkpoint, tmp_path: Path
) -> None:
    plan = small_plan(tiny_checkpoint("qwen2-s"))
    plan = replace(
        plan,
        panel=replace(plan.panel, models=("router", "noise")),
        methods=(),
        replication=replace(plan.replication, draws=1, retrainings=0),
    )
    run = finished(plan, tmp_path / "run")
    cell = run.cell(run.cells[0])
    role = cell.summary()["models"]["panel:noise"]
    assert (role["entry"], role["truth"], role["knows"]) == ("noise", "suppressed", ["nothing"])
    assert cell.summary()["models"]["panel:router"]["wrapper"] is True
    items = cell.table("items")
    mine = items["model"] == "panel:noise"
    assert {"audit", "evaluation"} <= set(items["pool"][mine])
    assert "reacquired" in items["stage"][mine] and "panel:noise" in cell.table("curves")["model"]
    panels = {name for name in items["model"] if name.startswith("panel:")}
    assert panels == {"panel:router", "panel:noise"}
    assert set(cell.opening()["models"]) == {"base", "injected", "reference", *panels}


def test_a_plan_names_them_without_torch() -> None:
    code = (
        "import sys; from palimpsest.config.plan import plan_from_dict; "
        "plan = plan_from_dict({'models': ['pocket/qwen2-s'], 'panel': {'models': 'all'}}); "
        "print(len(plan.panel.models), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(names())), "False"]


def test_names_differ_and_the_default_is_the_papers_six() -> None:
    assert len(set(names())) == len(entries()) >= 24
    assert tuple(entry.name for entry in chosen(Panel().models)) == Panel().models == names()[:6]
    shares = {entry.name: entry.share for entry in chosen(Panel().models) if entry.share}
    assert shares == {f"interpolation-{n}": n / 100 for n in (25, 50, 75)}
    restored = [entry.name for entry in entries() if entry.truth == Truth.RESTORED]
    assert restored == ["rescaled-retrained"]
    graded = {entry.name for entry in entries() if entry.truth == Truth.GRADED}
    assert graded == {"undo-10", "undo-20", "undo-40"}


def test_an_unknown_name_is_refused_with_the_plan() -> None:
    with pytest.raises(PlanError, match=r"panel\.models: 'mimic'"):
        plan_from_dict({"models": ["pocket/qwen2-s"], "panel": {"models": ["mimic"]}})


def test_a_cell_without_known_label_models_has_no_such_step(tiny_checkpoint, tmp_path) -> None:
    plan = small_plan(tiny_checkpoint("qwen2-s"))
    run = start(replace(plan, panel=replace(plan.panel, enabled=False)), tmp_path / "run")
    steps = StudyJob(run.path).cell(run.cells[0]).steps
    assert "panel" not in {step.name for step in steps}
