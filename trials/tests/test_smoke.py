"""One small look at each part of the laboratory; the rest of its tests is slow."""

import importlib
import pkgutil
import tomllib
from pathlib import Path

import pytest
import torch
import yaml

import palimpsest
import palimpsest_trials
from palimpsest.config.plan import Plan
from palimpsest.config.presets import HELD_POOL, PAPER_POOL
from palimpsest.facts.questions import draw_testbed
from palimpsest.known import chosen
from palimpsest.methods import candidates
from palimpsest.models.checkpoint import load
from palimpsest.models.net import Nets
from palimpsest.scoring.measures import MeasuredCell, build, find_measures
from palimpsest_trials import ADVERSARIES
from palimpsest_trials.adversaries.rescaling import rescale
from palimpsest_trials.criteria import CRITERIA, MEASURES
from palimpsest_trials.criteria.__main__ import list_criteria

ROOT = Path(__file__).parents[2]


def test_every_module_can_be_imported():
    for module in pkgutil.walk_packages(palimpsest_trials.__path__, "palimpsest_trials."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def test_the_core_never_names_the_laboratory():
    for file in Path(palimpsest.__file__).parent.rglob("*.py"):
        code = file.read_text("utf-8")
        assert "import palimpsest_trials" not in code and "from palimpsest_trials" not in code, file


def test_both_distributions_have_one_version():
    core, trials = (
        tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]["version"]
        for folder in (ROOT, ROOT / "trials")
    )
    assert core == trials


def test_the_plan_of_the_trial_names_every_adversary_and_the_measures():
    written = yaml.safe_load((ROOT / "trials" / "plans" / "criteria.yaml").read_text("utf-8"))
    plan = palimpsest.Plan.read(written)
    own = {f"palimpsest_trials:{name}" for names in ADVERSARIES.values() for name in names}
    assert own <= set(plan.known_label)
    assert len(chosen(plan.known_label)) == len(plan.known_label)
    assert all(find_measures(name) for name in plan.measures)


def test_the_plans_of_the_papers_figures_have_its_pool_and_one_fixed_schedule():
    for name in ("paper-pocket", "paper-unseen"):
        plan = Plan.read(ROOT / "trials" / "plans" / f"{name}.yaml", seeds=[0])
        assert not plan.beacon and len(plan.models) == 9
        assert candidates(plan.methods) == candidates((*PAPER_POOL, *HELD_POOL))


def test_every_criterion_is_listed():
    listed = list_criteria()
    assert all(criterion.name in listed for criterion in CRITERIA)


def test_the_measures_are_a_plug_in_and_rescaled_weights_have_the_same_ones():
    loaded = load("pocket/gpt2-s")
    nets = Nets(loaded, stack=2)
    base = {name: value.detach().clone() for name, value in loaded.model.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    moved = {
        name: value + 0.01 * torch.randn(value.shape, generator=generator)
        for name, value in base.items()
    }
    states = {"base": base, "injected": moved, "reference": base}
    cell = MeasuredCell(
        tokenizer=loaded.tokenizer,
        facts=draw_testbed("smoke", 2, 2, 4, 1),
        general=("The old town has a market.",),
        piece_tokens=12,
        learning_rate=1e-4,
        reference="reference",
        seed_key="smoke",
        net=nets,
        read=lambda name: states[name],
    )
    kit = type("Kit", (), {"nets": nets})
    take = build("palimpsest_trials:Criteria", cell)
    injected, same = take(nets([moved, rescale(kit, moved, 0.3)]))
    assert set(injected) == set(same) == set(MEASURES)
    for name in ("probability", "mia_min_k", "worst_question"):
        assert injected[name] == pytest.approx(same[name], abs=1e-4)
    assert injected["distance_injected"] == 0.0 > same["distance_injected"]
