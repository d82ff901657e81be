"""A new adversary is one function and one entry; nothing else has to know its name."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.study.test_cell import finished, small_plan

from palimpsest.challenge import ENTRIES, Entry, Workshop, chosen, registry
from palimpsest.errors import PlanError
from palimpsest.plan import Panel
from palimpsest.study.matrix import StudyJob, start


def noisy(workshop: Workshop) -> dict[str, torch.Tensor]:
    noise = torch.Generator().manual_seed(0)
    return {
        name: value + 0.01 * torch.randn(value.shape, generator=noise)
        for name, value in workshop.state("injected").items()
    }


def test_an_entry_that_is_added_is_built_measured_and_given_its_role(  # type: ignore[no-untyped-def]
    tiny_checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Entry("noise", "suppressed", (), "nothing", "the injected model with noise", noisy)
    monkeypatch.setattr(registry, "ENTRIES", (*ENTRIES, entry))
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
    assert role | {"digest": ""} == {
        "role": "challenge",
        "entry": "noise",
        "truth": "suppressed",
        "knows": ["nothing"],
        "knows_of": "nothing",
        "digest": "",
    }
    assert cell.summary()["models"]["panel:router"]["wrapper"] is True
    items = cell.table("items")
    mine = items["model"] == "panel:noise"
    assert {"audit", "evaluation"} <= set(items["pool"][mine])
    assert "reacquired" in items["stage"][mine] and "panel:noise" in cell.table("curves")["model"]
    panels = {name for name in items["model"] if name.startswith("panel:")}
    assert panels == {"panel:router", "panel:noise"}
    assert set(cell.opening()["models"]) == {"base", "injected", "reference", *panels}


def test_the_panel_of_a_plan_is_todays_six_and_waits_for_what_it_needs(tmp_path: Path) -> None:
    assert tuple(entry.name for entry in chosen(Panel().models)) == Panel().models
    assert all(entry.detail and entry.summary for entry in ENTRIES)
    shares = {entry.name: entry.share for entry in chosen(Panel().models) if entry.share}
    assert shares == {f"interpolation-{n}": n / 100 for n in (25, 50, 75)}


def test_an_unknown_entry_is_refused_before_anything_is_trained(  # type: ignore[no-untyped-def]
    tiny_checkpoint, tmp_path: Path
) -> None:
    plan = small_plan(tiny_checkpoint("qwen2-s"))
    with pytest.raises(
        PlanError, match=r"panel\.models: 'mimic' is unknown; there are suppression"
    ):
        start(replace(plan, panel=replace(plan.panel, models=("mimic",))), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_cell_without_a_panel_has_no_such_step(tiny_checkpoint, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    plan = small_plan(tiny_checkpoint("qwen2-s"))
    run = start(replace(plan, panel=replace(plan.panel, enabled=False)), tmp_path / "run")
    steps = StudyJob(run.path).cell(run.cells[0]).steps
    assert "panel" not in {step.name for step in steps}
