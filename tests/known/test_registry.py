"""A known-label model is one of the paper's panel, or a plug-in that is one labeled function."""

import sys
from importlib import invalidate_caches

import pytest
from tests.cell.small import bare_plan, cell_work, finish, only_cell

from palimpsest.config.plan import Plan
from palimpsest.errors import DriftError, PlanError
from palimpsest.known import chosen, model_name, plugin_digests
from palimpsest.known.panel import PANEL
from palimpsest.report.results import read_run

NOISE = """
from palimpsest.known import Truth, known_label

@known_label(Truth.SUPPRESSED, builds_on=("injected",))
def some_noise(kit):
    import torch
    drawn = torch.Generator().manual_seed(kit.seed("noise") % 2**63)
    return {
        name: value + 0.01 * torch.randn(value.shape, generator=drawn)
        for name, value in kit.state("injected").items()
    }

renamed = some_noise
"""
NAME = "noise_of_mine:some_noise"


@pytest.fixture
def noise(tmp_path, monkeypatch):
    """The file of a plug-in, where Python finds it."""
    file = tmp_path / "noise_of_mine.py"
    file.write_text(NOISE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "noise_of_mine", raising=False)
    invalidate_caches()
    return file


def test_a_plug_in_is_built_measured_and_recorded_like_the_panel(noise, tmp_path):
    plan = bare_plan(known_label=("router", NAME))
    run, _ = finish(plan, tmp_path / "run")
    models = read_run(run.path).cells[0].models
    model = models["known-some-noise"]
    assert (model.truth, model.knows, model.wrapper) == ("suppressed", (), False)
    assert models["known-router"].wrapper
    cell = only_cell(run)
    items = cell.table("items")
    mine = items["model"] == model.name
    assert {"audit", "evaluation"} <= set(items["pool"][mine])
    assert "reacquired" in items["stage"][mine] and model.name in cell.table("curves")["model"]
    opening = cell.opening()
    assert opening is not None
    known_label = {"known-router", model.name}
    assert set(opening["models"]) == {"base", "injected", "reference", *known_label}
    # The sealed pool is opened once: an edited plug-in is another run.
    assert run.terms.inputs[NAME] == plugin_digests([NAME])[NAME]
    noise.write_text(NOISE.replace("0.01", "0.02"))
    sys.modules.pop("noise_of_mine")
    with pytest.raises(DriftError) as drift:
        finish(plan, tmp_path / "run")
    assert [key for key in drift.value.keys if NAME in key]


def test_a_faulty_plug_in_is_named_before_anything_is_trained(noise, tmp_path):
    noise.write_text(NOISE.replace("kit.state", "kit.stat"))
    with pytest.raises(PlanError) as fault:
        finish(bare_plan(known_label=(NAME,)), tmp_path / "run")
    assert NAME in str(fault.value) and not (tmp_path / "run").exists()


@pytest.mark.usefixtures("noise")
@pytest.mark.parametrize(
    "models",
    [
        ("mimic",),
        ("router", "router"),
        ("no_such_module:some_noise",),
        ("noise_of_mine:no_such_name",),
        ("noise_of_mine:Truth",),
        ("noise_of_mine:renamed",),
    ],
)
def test_what_cannot_be_named_is_refused(models):
    with pytest.raises(PlanError) as problem:
        chosen(models)
    assert problem.value.key == "known_label"


def test_the_default_is_the_papers_panel():
    assert chosen(Plan.known_label) == PANEL
    shares = {entry.name: entry.share for entry in PANEL if entry.share}
    assert shares == {f"interpolation-{n}": n / 100 for n in (25, 50, 75)}
    assert model_name("palimpsest_trials:full_mimic") == "known-full-mimic"


def test_a_cell_without_known_label_models_has_no_such_step():
    assert "known-label" not in {step.name for step in cell_work(bare_plan()).steps}
