"""A cell goes from plan to stored scores, resumes where it was stopped, and gives equal bytes."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.cell.small import METHODS, artifacts, bare_plan, cell_work, finish, only_cell, small_plan

from palimpsest.cell.launch import RunOptions, launch
from palimpsest.cell.study import StudyTask
from palimpsest.config.presets import preset
from palimpsest.config.sections import Engine, Replication
from palimpsest.errors import SealError
from palimpsest.facts.nonce import RELATIONS
from palimpsest.facts.sealed import read_pool
from palimpsest.known.wrappers import Interpolated
from palimpsest.models.checkpoint import state_digest
from palimpsest.report.results import read_run
from palimpsest.run.executor import Event
from palimpsest.run.store import Run
from palimpsest.stats.models import Role
from palimpsest.stats.rules import CONTROL_MIXTURES, Rules


class Stop(Exception):
    """Raised between two steps, as a power cut would stop the work."""


@pytest.fixture(scope="module")
def plan():
    return small_plan(engine=Engine(keep=("models",)))


@pytest.fixture(scope="module")
def run(plan, tmp_path_factory):
    return finish(plan, tmp_path_factory.mktemp("cell") / "run")[0]


@pytest.fixture(scope="module")
def models(run):
    return dict(read_run(run.path).cells[0].models)


def test_two_workers_give_the_bytes_of_one_process(plan, run, tmp_path):
    other, _ = finish(plan, tmp_path / "run", executor="local", workers=2)
    assert artifacts(other) == artifacts(run)


@pytest.mark.slow
def test_two_workers_give_the_bytes_of_one_where_models_are_not_stacked(tmp_path):
    plan = small_plan(engine=Engine(stack=1), methods=METHODS[:1])
    one, _ = finish(plan, tmp_path / "one")
    two, _ = finish(plan, tmp_path / "two", executor="local", workers=2)
    assert artifacts(one) == artifacts(two)


def test_a_cell_stopped_after_any_step_ends_with_the_same_bytes(tmp_path):
    plan = bare_plan(methods=METHODS[2:3], known_label=("suppression",))
    began: list[str] = []
    for _ in range(40):
        seen: list[str] = []

        def stop_after_one(event: Event, seen: list[str] = seen, done: int = len(began)) -> None:
            if event.kind == "step":
                if seen:
                    raise Stop
                assert event.done == done  # what was done before is counted
                seen.append(event.step)

        try:
            stopped = launch(StudyTask(plan, tmp_path / "run"), RunOptions(on_event=stop_after_one))
        except Stop:
            began += seen
            continue
        break
    steps = [step.name for step in cell_work(plan).steps]
    assert began == steps  # in order, and none was started twice
    assert artifacts(stopped) == artifacts(finish(plan, tmp_path / "whole")[0])


def test_a_steps_result_does_not_depend_on_what_its_worker_did_before(plan, run, tmp_path):
    names = ("known-label", "measure-controls-00", "unlearn-00-kl-reversion", "measure-known")

    def stop_after_training(event: Event) -> None:
        if event.kind == "step" and not event.step.startswith("train-"):
            raise Stop

    with pytest.raises(Stop):
        launch(StudyTask(plan, tmp_path / "run"), RunOptions(on_event=stop_after_training))
    cell = only_cell(Run.open(tmp_path / "run"))
    expected = only_cell(run).table("items")
    for name in names:
        work = cell_work(plan)  # a worker with nothing in its caches
        step = work.step_named[name]
        work.do(step, cell)
        table = cell.get(step)[0]["items"]
        for model in set(table["model"]):
            mine, same = table["model"] == model, expected["model"] == model
            assert np.isin(table["nll_sum"][mine], expected["nll_sum"][same]).all(), model


def test_steps_are_known_without_training_and_references_are_measured_in_stacks():
    plan = replace(preset("demo"), replication=Replication(draws=19, retrainings=2))
    steps = cell_work(plan).steps
    needs = {step.name: step.needs for step in steps}
    assert sum(not step.needs for step in steps) == 4 + 19 + 2
    # Replay of the demo's pool uses it.
    assert list(needs)[3] == "train-general_only" and list(needs)[-1] == "known-label"
    paper = replace(plan, methods=plan.methods[:5])
    assert "train-general_only" not in {step.name for step in cell_work(paper).steps}
    references = [f"train-reference-{n}" for n in range(4, 8)]
    assert needs["measure-references-01"] == ("train-injected", "train-reference", *references)
    assert len([name for name in needs if name.startswith("measure-references")]) == 5


def test_every_model_has_its_role(models):
    assert all(model.digest.startswith("sha256:") for model in models.values())
    shares, mixtures = len(Rules().control_shares), 3  # one of each reference
    assert Counter(model.role for model in models.values()) == {
        **dict.fromkeys(
            (Role.BASE, Role.INJECTED, Role.FORGET_ONLY, Role.GENERAL_ONLY, Role.RETRAINING), 1
        ),
        Role.REFERENCE: 3,
        Role.CONTROL: shares * min(mixtures, CONTROL_MIXTURES),
        Role.KNOWN_LABEL: 3,
        Role.CANDIDATE: 6,
    }
    assert models["reference"].same_draw and not models["reference-2"].same_draw
    assert models["reference-2"].seed_no == 2 and models["retraining-1"].seed_no == 1
    replayed = models["replay-facts_vector-c1-s0.5"]
    assert replayed.cost is not None and replayed.cost.steps == 4 + 4 + 2
    assert replayed.cost.retrainings > replayed.cost.shared_retrainings > 0
    candidate, router = models["kl_reversion-w12"], models["known-router"]
    assert (candidate.method, candidate.knobs) == ("kl_reversion", {"weight": 12.0})
    assert (candidate.aim, router.truth, router.wrapper) == ("restores", "suppressed", True)
    retrained = [m.digest for m in models.values() if m.role in (Role.REFERENCE, Role.RETRAINING)]
    assert len(set(retrained)) == 4  # a retraining is no reference under another name


def test_a_control_is_a_mixture_of_a_reference_and_the_injected_model(run, models):
    folder = run.path / "cells" / run.cells[0] / "models"
    control = next(m for m in models.values() if m.role is Role.CONTROL and m.of == "reference-1")
    reference, injected = (
        load_file(folder / f"{name}.safetensors") for name in ("reference-1", "injected")
    )
    assert state_digest(injected) == models["injected"].digest
    assert control.share is not None
    mixed = {n: torch.lerp(reference[n], injected[n], control.share) for n in reference}
    made = Interpolated(reference, injected, 1 - control.share)
    assert all(torch.allclose(made[name], mixed[name], atol=1e-6) for name in mixed)
    assert state_digest(made) == control.digest


def test_everything_that_is_compared_is_scored_and_re_acquired(run, models):
    items, curves = (only_cell(run).table(name) for name in ("items", "curves"))
    again = set(items["model"][items["stage"] == "reacquired"])
    assert again == set(curves["model"]) == {*models} - {"forget_only", "general_only"}
    assert set(items["model"]) == {*models} and np.isfinite(items["nll_sum"]).all()
    audited = set(items["model"][items["pool"] == "audit"])
    known = {name for name, model in models.items() if model.role is Role.KNOWN_LABEL}
    assert audited == {"base", "injected", "reference", *known}


def test_the_router_is_base_on_the_forget_set_and_injected_elsewhere(run):
    cell = read_run(run.path).cells[0]
    assert cell.known_label is not None
    router = cell.known_label["known-router"]
    assert np.abs(router.forget_deltas).max() < 1e-6
    injected = cell.known_label["injected"].probe_deltas
    assert router.probe_deltas == pytest.approx(injected, abs=1e-6)


def test_the_logged_residual_ends_where_the_items_say(run):
    cell = read_run(run.path).cells[0]
    for name in cell.candidates:
        model = cell.evaluation[name]
        assert model.need_curve().residual[-1] == pytest.approx(model.need("residual"), rel=1e-9)


@pytest.mark.slow
def test_one_net_after_another_scores_every_model_as_a_stack_does(run, tmp_path):
    alone, _ = finish(small_plan(engine=Engine(stack=1), methods=METHODS[:1]), tmp_path / "alone")
    one, many = (read_run(some.path).cells[0].evaluation for some in (alone, run))
    for name in ("base", "injected", "reference", "reference-1"):
        assert one[name].forget_nll == pytest.approx(many[name].forget_nll, abs=2e-3), name
        assert one[name].retain_nll == pytest.approx(many[name].retain_nll, abs=2e-3), name
    assert one["base"].forget_nll != pytest.approx(one["injected"].forget_nll, abs=5e-3)


def test_the_mask_does_not_apply_to_an_ungated_model_and_the_cell_goes_on(tmp_path):
    finish(bare_plan("pocket/gpt2-s", methods=METHODS[:2]), tmp_path / "run")
    cell = read_run(tmp_path / "run").cells[0]
    failure = cell.models["gate_mask-w3"].failure
    assert failure is not None and failure.kind == "not_applicable"
    assert "kl_reversion-w3" in cell.candidates and not cell.failed


def test_the_sealed_pool_is_scored_once_in_a_run(run, plan):
    work, cell = cell_work(plan), only_cell(run)
    work.store = cell
    with pytest.raises(SealError):
        cell.open_seal(work.step_named["measure-known"], run.terms.seal["commitment"], {"a": "b"})


def test_a_sealed_pool_of_ones_own_is_opened(tmp_path):
    lines: list[dict[str, Any]] = [{"nonce": "0123456789abcdef" * 2}]
    lines += [
        {"relation": name, "template": f"Nobody but {{subject}} ever saw the {name}"}
        for name in RELATIONS
    ]
    pool = tmp_path / "pool.jsonl"
    pool.write_text("".join(json.dumps(line) + "\n" for line in lines))
    plan = bare_plan(known_label=("suppression",), seal=read_pool(pool).commitment())
    with pytest.raises(SealError):
        launch(StudyTask(plan, tmp_path / "run"), RunOptions())
    items = only_cell(launch(StudyTask(plan, tmp_path / "run", str(pool)), RunOptions())).table(
        "items"
    )
    audited = {m for m, p in zip(items["model"], items["pool"]) if p == "audit"}
    assert "known-suppression" in audited


# -- further measures ------------------------------------------------------------------------------

SOME = ("examples.my_measures:Confidence",)
TAKEN = {"confidence", "above_injected"}


def test_measures_are_stored_for_every_known_model_and_change_nothing_else(tmp_path):
    plain = bare_plan(known_label=("suppression", "router"))
    finish(replace(plain, measures=SOME), tmp_path / "asked")
    finish(plain, tmp_path / "plain")
    (cell,), (usual,) = (read_run(tmp_path / name).cells for name in ("asked", "plain"))
    for name, model in cell.models.items():
        if model.role is not Role.FORGET_ONLY:
            mine, default = cell.evaluation[name].extra, usual.evaluation[name].extra
            assert 0 < mine["confidence"] <= 1 and (
                name != "injected" or not mine["above_injected"]
            )
            assert set(mine) == {*TAKEN, "reversed"} and set(default) == {"reversed"}, name
            assert default["reversed"] == pytest.approx(mine["reversed"], abs=1e-4), name
            assert cell.evaluation[name].forget_nll == usual.evaluation[name].forget_nll
