"""A cell's folder: steps that are wholly done or not at all, damage that is named and repaired."""

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.reliability import FULL, count
from toy import (
    KEPT,
    SEAL,
    STEPS,
    ToyJob,
    contents,
    damage,
    do_steps,
    hooked,
    mutations,
    toy_run,
    work,
)

from palimpsest.errors import DamagedArtifact, DriftError, SealError, StoreError
from palimpsest.run import files
from palimpsest.run.executor import Event
from palimpsest.run.steps import Failure, Step
from palimpsest.run.store import Run

STEP = Step("ga-w3", "unlearn", "sha256:k", "unlearning")
ROWS = {"model": ["ga"] * 3, "fact": ["f1", "f2", "é"], "nll_sum": np.arange(3) / 7}
MODELS = {"injected": "sha256:1", "panel:router": "sha256:2"}


def test_a_step_comes_back_as_it_was_put(run):
    cell = run.cell("a")
    assert not cell.done(STEP)
    cell.put_file(STEP, "weights.safetensors", lambda path: path.write_bytes(b"w"))
    assert not cell.done(STEP)
    cell.put(STEP, {"items": ROWS}, {"loss": 1.5})
    for same in (cell, Run.open(run.path).cell("a")):
        assert same.done(STEP) and same.step_names() == ("ga-w3",)
        tables, values = same.get(STEP)
        assert values == {"loss": 1.5} and tables["items"]["fact"].tolist() == ROWS["fact"]
        np.testing.assert_array_equal(tables["items"]["nll_sum"], ROWS["nll_sum"])
        assert same.file(STEP, "weights.safetensors").read_bytes() == b"w"
    # Under another key it is not what is asked for.
    assert not cell.done(Step("ga-w3", "unlearn", "sha256:other", ""))


def test_a_finished_cell_holds_every_row_in_plan_order_and_no_transient_weights(run):
    assert work(run).computed == 2 * len(STEPS)
    cell = run.cell("a")
    assert cell.finished(ToyJob(run.path).cell("a").steps)
    assert cell.table("items")["model"].tolist() == [s for s in STEPS for _ in range(20)]
    summary = cell.summary()
    assert [step["step"] for step in summary["steps"]] == list(STEPS)
    assert sorted(summary["artifacts"]) == ["items.parquet", f"models/{KEPT}"]
    for file, expected in summary["artifacts"].items():
        assert files.file_digest(cell.folder / file) == expected
    assert not list(cell.folder.glob("steps/train/*.safetensors"))
    with pytest.raises(StoreError):
        cell.table("curves")


def test_the_same_key_with_other_bytes_is_drift_and_replaces_nothing(run):
    cell = run.cell("a")
    cell.put(STEP, {}, {"loss": 1.0})
    before = contents(run.path)
    cell.put(STEP, {}, {"loss": 1.0})
    with pytest.raises(DriftError) as refusal:
        cell.put(STEP, {}, {"loss": 2.0})
    assert refusal.value.keys == ("ga-w3/values.json",)
    assert contents(run.path) == before
    # Another key replaces it.
    cell.put(Step("ga-w3", "unlearn", "sha256:other", ""), {}, {"loss": 2.0})
    assert not cell.done(STEP)


def test_a_value_that_is_not_finite_is_refused_before_anything_is_stored(run):
    with pytest.raises(StoreError):
        run.cell("a").put(STEP, {"items": ROWS}, {"loss": float("nan")})
    assert not run.cell("a").folder.exists()


def test_every_truncation_and_flipped_byte_of_a_finished_cell_is_found(run):
    work(run)
    cell, tried = run.cell("a"), 0
    for name, data in contents(cell.folder).items():
        path = cell.folder / name
        if path.name == "kept.safetensors":
            continue  # one file with models/panel.safetensors
        for changed in mutations(data, 0 if FULL else 25):
            path.write_bytes(changed)
            tried += 1
            assert path in run.cell("a").check(), (name, len(changed))
            assert run.cell("a").finished() == name.startswith("steps/"), (name, len(changed))
        path.write_bytes(data)
        assert run.cell("a").finished() and run.cell("a").check() == {}
    assert tried > 400
    count("damaged files of a finished cell, all found", tried)


def test_every_truncation_and_flipped_byte_of_a_step_is_found_and_costs_only_it(run):
    steps = do_steps(run, "a", *STEPS)
    cell = run.cell("a")
    for path in sorted((cell.folder / "steps").glob("*/*" if FULL else "train/*")):
        step, data = path.parent.name, path.read_bytes()
        for changed in mutations(data, 0 if FULL else 50):
            path.write_bytes(changed)
            count("damaged files of an unfinished cell, all found")
            assert list(run.cell("a").check()) == [path]
            assert not run.cell("a").done(steps[step])
        assert [run.cell("a").done(other) for other in steps.values()] == [s != step for s in steps]
        if path.suffix != ".safetensors":
            with pytest.raises(DamagedArtifact):
                cell.get(steps[step])
        path.write_bytes(data)


@pytest.mark.parametrize("change", ["flip", "truncate", "delete", "folder"])
@pytest.mark.parametrize(
    "name",
    [
        "train/values.json",
        "train/weights.safetensors",
        "train/manifest.json",
        "panel/items.parquet",
    ],
)
def test_a_damaged_step_is_made_again_the_rest_kept_and_no_byte_differs(run, name, change):
    do_steps(run, "a", *STEPS)
    twin = run.path.parent / "twin"
    shutil.copytree(run.path, twin)
    damage(run.cell("a").folder / "steps" / name, change)
    events: list[Event] = []
    work(run, on_event=events.append)
    # Weights that no step needs any more are not made again.
    again = [] if name == "train/weights.safetensors" else [name.split("/")[0]]
    assert [e.step for e in events if (e.kind, e.cell) == ("step", "a")] == [*again, "finish"]
    work(Run.open(twin))
    assert contents(run.path) == contents(twin)


@pytest.mark.parametrize("change", ["flip", "truncate", "delete"])
@pytest.mark.parametrize(
    "name",
    [
        "items.parquet",
        "cell.json",
        f"models/{KEPT}",
        "opening.json",
        "steps/part-1/values.json",
        "steps/part-1/manifest.json",
        "steps/train/manifest.json",
        "steps/panel/kept.safetensors",
    ],
)
def test_a_damaged_finished_cell_is_named_and_made_again_to_the_byte(run, name, change):
    work(run)
    before = contents(run.path)
    damage(run.cell("a").folder / name, change)
    if (name, change) != ("cell.json", "delete"):
        assert any(name in problem or KEPT in problem for problem in run.verify())
    assert run.cell("b").finished()
    outcome = work(run)
    assert outcome.failed == {} and outcome.computed <= 2
    assert contents(run.path) == before and run.verify() == ()


def test_a_step_damaged_in_a_grown_cell_still_names_the_list_it_was_made_under(run):
    few = ToyJob(run.path.parent, ("part-0",))
    work(run, few)
    grown = Run.create_or_resume(run.path, run.terms, [{"name": "one more"}])
    job = ToyJob(run.path.parent, ("part-0", "part-1"))
    work(grown, job)
    before = contents(run.path)
    damage(run.cell("a").folder / "steps" / "part-0" / "manifest.json", "flip")
    assert work(grown, job).computed == 2  # with the training it needs
    assert contents(run.path) == before


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_fails_at_any_operation_loses_nothing_and_a_retry_succeeds(quick, code):
    def attempt(path: Path, first: int, lasting: bool) -> int:
        """Return how many operations started; the disk fails at the `first`, or from there on."""
        started = 0

        def fail(operation: str, _: Path) -> None:
            nonlocal started
            started += 1
            if started == first or (lasting and started > first > 0):
                raise OSError(code, os.strerror(code))

        with hooked(fail):
            outcome = work(toy_run(path, "a"))
            if outcome.failed:
                raise StoreError(outcome.failed["a"].reason)
        return started

    operations = attempt(quick / "whole", 0, False)
    expected = contents(quick / "whole")
    refused = tried = 0
    for first in range(1, operations + 1, 1 if FULL else 11):
        path = quick / f"run-{first}"
        tried += 1
        try:
            attempt(path, first, lasting=first % 2 == 0)
        except StoreError:
            refused += 1
        attempt(path, 0, False)
        assert contents(path) == expected and Run.open(path).verify() == ()
        shutil.rmtree(path)
    assert refused > 0.7 * tried  # progress is written with best effort only
    count("failing disk operations", tried)


def test_a_cell_folder_deleted_while_running_costs_its_steps_and_a_retry_succeeds(run):
    steps = do_steps(run, "a", "train")
    cell = run.cell("a")
    shutil.rmtree(cell.folder)
    with pytest.raises(StoreError):
        cell.put(steps["part-0"])
    shutil.rmtree(run.path / "cells")
    (run.path / "cells").touch()  # where nothing can be written
    cell.fail(Failure("store", "the folder is gone", "part-0"))  # hides no reason by its own
    (run.path / "cells").unlink()
    assert work(run).computed == 2 * len(STEPS)


def test_leftovers_are_cleared_by_the_next_command(run):
    work(run)
    before = contents(run.path)
    folder = run.cell("a").folder
    for place in (run.path, folder, folder / "models", folder / "steps" / "panel"):
        (place / ".tmp-0123456789ab").write_bytes(b"half")
        (place / ".tmpwDnDn3").write_bytes(b"half of safetensors' own")
    # Of a command killed after it wrote cell.json and before it removed the weights.
    (folder / "steps" / "train" / "weights.safetensors").write_bytes(b"left")
    assert work(run).skipped == ("a", "b")
    assert contents(run.path) == before


def test_the_sealed_pool_is_scored_once(run):
    cell = run.cell("a")
    cell.open_seal(STEP, SEAL, MODELS)
    cell.put(STEP, {"items": ROWS})
    with pytest.raises(SealError):
        cell.open_seal(STEP, SEAL, MODELS)
    with pytest.raises(SealError):
        cell.open_seal(Step("again", "panel", "sha256:k", ""), SEAL, MODELS)
    run.cell("b").open_seal(STEP, SEAL, MODELS)


def test_an_opening_whose_scores_were_never_stored_is_resumed_by_the_same_models_only(run):
    run.cell("a").open_seal(STEP, SEAL, MODELS)
    data = (run.cell("a").folder / "opening.json").read_bytes()
    cell = run.cell("a")
    with pytest.raises(SealError):
        cell.open_seal(STEP, SEAL, MODELS | {"injected": "sha256:9"})
    cell.open_seal(STEP, SEAL, MODELS)
    cell.put(STEP)
    assert (cell.folder / "opening.json").read_bytes() == data
    assert cell.manifest(STEP.name)["opening"]["models"] == MODELS


def test_another_pool_than_the_sealed_one_is_refused(run):
    with pytest.raises(SealError):
        run.cell("a").open_seal(STEP, "sha256:other", MODELS)


@pytest.mark.parametrize("name", ["items.parquet", "cell.json", "opening.json"])
def test_damaging_a_finished_cell_does_not_open_the_seal_for_other_models(run, name):
    work(run)
    damage(run.cell("a").folder / name, "flip")
    damage(run.cell("a").folder / "steps" / "panel" / "values.json", "flip")
    cell, panel = run.cell("a"), ToyJob(run.path).cell("a").steps[-1]
    cell.prepare()
    with pytest.raises(SealError):
        cell.open_seal(panel, SEAL, {"injected": "sha256:9"})
    cell.open_seal(panel, SEAL, {"injected": "sha256:1"})


def test_an_opening_that_is_damaged_before_its_scores_are_stored_is_not_replaced(run):
    run.cell("a").open_seal(STEP, SEAL, MODELS)
    damage(run.cell("a").folder / "opening.json", "flip")
    cell = run.cell("a")
    cell.prepare()
    with pytest.raises(SealError):
        cell.open_seal(STEP, SEAL, MODELS)


def test_a_failure_comes_back_and_damage_to_it_is_found(run):
    failure = Failure("diverged", "training diverged at step 7: loss is NaN", "part-1")
    cell = run.cell("a")
    cell.fail(failure)
    assert cell.failure() == failure
    path = cell.folder / "failed.json"
    for changed in mutations(path.read_bytes()):
        path.write_bytes(changed)
        assert list(cell.check()) == [path]
        assert cell.failure() not in (None, failure)
    cell.prepare()
    assert cell.failure() is None
