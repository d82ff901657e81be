"""A new known-label model is one function with its label; nothing else has to know its name."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cell.small import bare_plan, cell_work, finish, only_cell

from palimpsest.config.sections import KnownLabel
from palimpsest.errors import PlanError
from palimpsest.known import Truth, chosen, entries, known
from palimpsest.report.results import read_run

NOISE = """
from palimpsest.known import Truth, known_label

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
def noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One file more in ``known/``."""
    (tmp_path / "noise_file.py").write_text(NOISE)
    monkeypatch.setattr(known, "__path__", [*known.__path__, str(tmp_path)])
    entries.cache_clear()
    yield
    sys.modules.pop("palimpsest.known.noise_file", None)
    entries.cache_clear()


@pytest.mark.usefixtures("noise")
def test_a_file_that_is_added_is_all_that_a_new_model_takes(tmp_path: Path) -> None:
    plan = bare_plan(known_label=KnownLabel(models=("router", "noise")))
    run, _ = finish(plan, tmp_path / "run")
    models = read_run(run.path).cells[0].models
    model = models["known-noise"]
    assert (model.truth, model.knows, model.wrapper) == ("suppressed", (), False)
    assert models["known-router"].wrapper
    cell = only_cell(run)
    items = cell.table("items")
    mine = items["model"] == "known-noise"
    assert {"audit", "evaluation"} <= set(items["pool"][mine])
    assert "reacquired" in items["stage"][mine] and "known-noise" in cell.table("curves")["model"]
    opening = cell.opening()
    assert opening is not None
    known_label = {"known-router", "known-noise"}
    assert set(opening["models"]) == {"base", "injected", "reference", *known_label}


def test_their_names_are_known_without_torch() -> None:
    code = (
        "import sys; from palimpsest.known import entries; "
        "print(len(entries()), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(entries())), "False"]


def test_names_differ_and_the_default_is_the_papers_six() -> None:
    names = [entry.name for entry in entries()]
    assert len(set(names)) == len(names) >= 24 and chosen("all") == entries()
    default = chosen(KnownLabel().models)
    assert tuple(entry.name for entry in default) == KnownLabel().models == tuple(names[:6])
    shares = {entry.name: entry.share for entry in default if entry.share}
    assert shares == {f"interpolation-{n}": n / 100 for n in (25, 50, 75)}
    by_truth = {truth: {e.name for e in entries() if e.truth == truth} for truth in Truth}
    assert by_truth[Truth.RESTORED] == {"rescaled-retrained"}
    assert by_truth[Truth.GRADED] == {"undo-10", "undo-20", "undo-40"}
    for wrong in (("mimic",), ("router", "router")):
        with pytest.raises(PlanError):
            chosen(wrong)


def test_a_cell_without_known_label_models_has_no_such_step() -> None:
    assert "known-label" not in {step.name for step in cell_work(bare_plan()).steps}
