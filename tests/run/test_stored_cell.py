"""A cell's folder: steps that are wholly done or not at all, damage that is named and repaired."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reliability import FULL, count
from toy_cell import NEEDS, STEPS, rows, work

from palimpsest.errors import DamagedArtifact, InputError, SealError, StoreError
from palimpsest.run import disk
from palimpsest.run.graph import Failure
from palimpsest.run.status import status
from palimpsest.run.store import Cell, Run


def contents(cell: Cell) -> dict[str, bytes]:
    paths = (path for path in cell.folder.rglob("*") if path.is_file())
    return {str(p.relative_to(cell.folder)): p.read_bytes() for p in sorted(paths)}


# -- steps ---------------------------------------------------------------------------------------


def test_a_step_comes_back_as_it_was_put(run: Run) -> None:
    cell = run.cell("a")
    assert not cell.done("ga-w3")
    cell.put("ga-w3", {"items": rows("ga-w3")}, {"loss": 1.5})
    for same in (cell, Run.open(run.path).cell("a")):
        assert same.done("ga-w3") and same.steps() == ("ga-w3",)
        tables, values = same.get("ga-w3")
        assert values == {"loss": 1.5}
        assert tables["items"]["fact"].tolist() == ["f1", "f2", "é"]
        np.testing.assert_array_equal(tables["items"]["nll_sum"], rows("ga-w3")["nll_sum"])


def test_a_file_belongs_to_its_step_once_the_step_is_put(run: Run) -> None:
    cell = run.cell("a")
    cell.put_file("injected", "weights.safetensors", lambda path: path.write_bytes(b"w"))
    assert not cell.done("injected")
    cell.put("injected")
    assert cell.file("injected", "weights.safetensors").read_bytes() == b"w"
    assert cell.manifest("injected")["files"]["weights.safetensors"] == disk.digest(b"w")
    with pytest.raises(StoreError, match="already done"):
        cell.put_file("injected", "weights.safetensors", b"other")
    with pytest.raises(StoreError, match="no file"):
        cell.file("injected", "other.bin")


def test_a_manifest_names_cell_step_terms_files_and_what_it_was_made_from(run: Run) -> None:
    cell = run.cell("a").for_work(NEEDS)
    work(cell, STEPS[:2], finish=False)
    folder = cell.folder / "steps" / "ga-w3"
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert (manifest["cell"], manifest["step"]) == ("a", "ga-w3")
    assert manifest["terms"] == run.terms_digest
    assert manifest["needs"] == {"injected": cell.manifest("injected")["digest"]}
    assert manifest["files"] == {
        name: disk.file_digest(folder / name) for name in ("items.parquet", "values.json")
    }


def test_a_finished_cell_holds_every_row_in_the_order_asked_for(run: Run) -> None:
    cell = run.cell("a")
    assert work(cell) == list(STEPS)
    assert cell.finished() and not (cell.folder / "steps").exists()
    assert cell.table("items")["model"].tolist() == [s for s in STEPS for _ in range(3)]
    summary = cell.summary()
    assert summary["seed"] == 0 and summary["cell"] == "a"
    assert [step["step"] for step in summary["steps"]] == list(STEPS) == list(cell.steps())
    assert sorted(summary["artifacts"]) == ["items.parquet", "models/injected.safetensors"]
    for file, expected in summary["artifacts"].items():
        assert disk.file_digest(cell.folder / file) == expected
    assert work(cell) == [] and cell.done("panel")


def test_the_order_of_work_changes_no_byte(run: Run, quick: Path, terms: Any) -> None:
    work(run.cell("a"))
    other = Run.create(quick / "other", *terms, cells=("a", "b")).cell("a")
    work(other, ("injected", "panel"), finish=False)
    work(other)
    assert contents(other) == contents(run.cell("a"))


def test_a_step_cannot_be_left_out_or_merged_twice(run: Run) -> None:
    cell = run.cell("a")
    work(cell, finish=False)
    for order in (["injected", "ga-w3"], [*STEPS, "ga-w3"], [*STEPS, "absent"]):
        with pytest.raises(StoreError, match="cannot finish"):
            cell.finish({}, order)
    with pytest.raises(InputError, match="artifacts"):
        cell.finish({"artifacts": {}}, STEPS)


def test_a_done_step_cannot_be_replaced_and_a_finished_cell_takes_none(run: Run) -> None:
    cell = run.cell("a")
    cell.put("ga-w3", {}, {"loss": 1.0})
    cell.put("ga-w3", {}, {"loss": 1.0})
    with pytest.raises(StoreError, match="already done with other contents"):
        cell.put("ga-w3", {}, {"loss": 2.0})
    assert cell.get("ga-w3")[1] == {"loss": 1.0}
    cell.finish({}, ["ga-w3"])
    with pytest.raises(StoreError, match="is finished"):
        cell.put("more")


def test_a_step_made_from_something_else_than_is_stored_is_not_done(run: Run) -> None:
    cell = run.cell("a").for_work(NEEDS)
    work(cell, STEPS[:2], finish=False)
    shutil.rmtree(cell.folder / "steps" / "injected")
    assert run.cell("a").done("ga-w3")  # what it needs may come back as it was
    run.cell("a").put("injected", {}, {"loss": 2.5})
    assert not run.cell("a").done("ga-w3")
    assert "made from another" in run.cell("a").check()[0].why


@pytest.mark.parametrize("name", ["../../x", "/abs", "C:\\x", "a\0", "nul", "a/b", "", "a~b", "é"])
def test_hostile_step_table_and_file_names_are_refused(run: Run, name: str) -> None:
    cell = run.cell("a")
    with pytest.raises(InputError):
        cell.put(name)
    with pytest.raises(InputError):
        cell.put("step", {name: {"x": [1]}})
    with pytest.raises(InputError):
        cell.put_file("step", name, b"")
    with pytest.raises(InputError):
        cell.finish({}, [], keep={name: ("step", "weights.safetensors")})
    with pytest.raises(InputError):
        run.cell(name)


def test_a_value_that_is_not_finite_is_refused_before_anything_is_stored(run: Run) -> None:
    cell = run.cell("a")
    with pytest.raises(StoreError, match="JSON"):
        cell.put("ga-w3", {"items": rows("ga-w3")}, {"loss": float("nan")})
    assert not cell.folder.exists()


# -- damage --------------------------------------------------------------------------------------


def mutations(data: bytes) -> list[bytes]:
    """Every truncation, and every byte changed in one bit."""
    changed = [data[:length] for length in range(len(data))]
    for position in range(len(data)):
        byte = bytes([data[position] ^ 1 << position % 8])
        changed.append(data[:position] + byte + data[position + 1 :])
    return changed


@pytest.mark.slow
def test_every_truncation_and_flipped_byte_of_a_finished_cell_is_found(run: Run) -> None:
    work(run.cell("a"))
    tried = 0
    for name, data in contents(run.cell("a")).items():
        path = run.cell("a").folder / name
        for changed in mutations(data):
            path.write_bytes(changed)
            tried += 1
            cell = run.cell("a")
            assert not cell.finished(), (name, len(changed))
            assert [damage.path for damage in cell.check()] == [path]
        path.write_bytes(data)
        assert run.cell("a").finished() and run.cell("a").check() == ()
    assert tried > 5000
    count("damaged files of a finished cell, all found", tried)


@pytest.mark.slow
def test_every_truncation_and_flipped_byte_of_a_step_is_found_and_costs_only_it(run: Run) -> None:
    work(run.cell("a"), finish=False)
    cell = run.cell("a")
    for path in sorted((cell.folder / "steps").glob("*/*" if FULL else "injected/*")):
        step, data = path.parent.name, path.read_bytes()
        for changed in mutations(data):
            path.write_bytes(changed)
            count("damaged files of an unfinished cell, all found")
            assert [(damage.step, damage.path) for damage in cell.check()] == [(step, path)]
        assert [cell.done(other) for other in STEPS] == [other != step for other in STEPS]
        if path.suffix != ".safetensors":
            with pytest.raises(DamagedArtifact, match=path.name):
                cell.get(step)
        path.write_bytes(data)


@pytest.mark.parametrize("change", ["flip", "truncate", "delete", "folder"])
@pytest.mark.parametrize(
    "name",
    [
        "injected/values.json",
        "injected/weights.safetensors",
        "injected/manifest.json",
        "panel/items.parquet",
    ],
)
def test_a_damaged_step_is_made_again_the_rest_kept_and_no_byte_differs(
    run: Run, name: str, change: str
) -> None:
    cell, twin = run.cell("a"), run.path.parent / "twin"
    work(cell, finish=False)
    shutil.copytree(run.path, twin)
    damage(cell.folder / "steps" / name, change)
    assert work(run.cell("a")) == [name.split("/")[0]]
    untouched = Run.open(twin).cell("a")
    assert work(untouched) == []
    assert contents(cell) == contents(untouched)


@pytest.mark.parametrize("change", ["flip", "truncate", "delete"])
@pytest.mark.parametrize("name", ["items.parquet", "cell.json", "models/injected.safetensors"])
def test_a_damaged_finished_cell_is_named_and_made_again_to_the_byte(
    run: Run, name: str, change: str
) -> None:
    cell, other = run.cell("a"), run.cell("b")
    work(cell)
    work(other)
    before, kept = contents(cell), contents(other)
    damage(cell.folder / name, change)
    assert not run.cell("a").finished() and run.cell("b").finished()
    if (name, change) != ("cell.json", "delete"):
        assert name in run.cell("a").check()[0].why
    assert work(run.cell("a")) == list(STEPS)
    assert contents(cell) == before and contents(other) == kept


@pytest.mark.parametrize("change", ["flip", "truncate", "delete"])
@pytest.mark.parametrize("finish", [True, False])
def test_a_damaged_opening_is_restored_from_what_records_it(
    run: Run, change: str, finish: bool
) -> None:
    cell = run.cell("a")
    work(cell, finish=finish)
    before = contents(cell)
    damage(cell.folder / "opening.json", change)
    if finish or change != "delete":
        assert [found.path.name for found in run.cell("a").check()] == ["opening.json"]
    assert work(run.cell("a"), finish=finish) == []
    assert contents(cell) == before


def damage(path: Path, change: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if change == "flip":
        path.write_bytes(bytes([data[0] ^ 4]) + data[1:])
    elif change == "truncate":
        path.write_bytes(data[:-1])
    elif change == "folder":
        path.mkdir()


# -- a failing disk ------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_fails_at_any_operation_loses_nothing_and_a_retry_succeeds(
    quick: Path, terms: tuple[Any, ...], fault: Any, code: int
) -> None:
    def attempt(path: Path, first: int, lasting: bool) -> int:
        """Return how many operations began; the disk fails at the `first`, or from there on."""
        begun = 0

        def fail(operation: str, _: Path) -> None:
            nonlocal begun
            begun += 1
            if begun == first or (lasting and begun > first > 0):
                raise OSError(code, os.strerror(code))

        fault(fail)
        try:
            run = Run.create_or_resume(path, *terms, cells=("a",))
            with run.lock():
                work(run.cell("a"))
                run.record()
        finally:
            fault(None)
        return begun

    operations = attempt(quick / "whole", 0, False)
    expected = contents(Run.open(quick / "whole").cell("a"))
    refusals = []
    for first in range(1, operations + 1):
        path = quick / f"run-{first}"
        try:
            attempt(path, first, lasting=first % 2 == 0)
        except StoreError as error:
            refusals.append(str(error))
        attempt(path, 0, False)
        run = Run.open(path)
        assert contents(run.cell("a")) == expected and run.verify() == ()
        shutil.rmtree(path)
    assert len(refusals) > 0.8 * operations
    assert all("then run the same command again" in refusal for refusal in refusals)


def test_a_cell_folder_deleted_while_running_costs_its_steps_and_a_retry_succeeds(
    run: Run,
) -> None:
    cell = run.cell("a").for_work(NEEDS)
    work(cell, STEPS[:1], finish=False)
    shutil.rmtree(cell.folder)
    with pytest.raises(StoreError, match="'injected' is not done"):
        cell.put("ga-w3")
    shutil.rmtree(run.path / "cells")
    (run.path / "cells").touch()  # where nothing can be written
    cell.fail(Failure("store", "the folder is gone", "ga-w3"))  # hides no reason by its own
    (run.path / "cells").unlink()
    assert work(run.cell("a")) == list(STEPS)


def test_leftovers_are_cleared_by_the_next_owner(run: Run) -> None:
    work(run.cell("a"))
    work(run.cell("b"), STEPS[:1], finish=False)
    a, b = run.cell("a").folder, run.cell("b").folder
    (a / "steps" / "panel").mkdir(parents=True)  # of a worker killed while it removed the steps
    for folder in (run.path, a, a / "models", a / "steps" / "panel", b / "steps" / "injected"):
        (folder / ".tmp-0123456789ab").write_bytes(b"half")
    with run.lock():
        assert list(run.path.rglob(".tmp-*")) == []
    assert run.cell("a").finished() and not (a / "steps").exists()
    assert run.cell("b").done("injected")


# -- the seal ------------------------------------------------------------------------------------

MODELS = {"injected": "sha256:1", "panel:router": "sha256:2"}


def test_the_sealed_pool_is_scored_once(run: Run) -> None:
    cell = run.cell("a")
    cell.open_seal("panel", "sha256:c", MODELS)
    cell.put("panel", {"items": rows("panel")})
    with pytest.raises(SealError, match="already scored"):
        cell.open_seal("panel", "sha256:c", MODELS)
    with pytest.raises(SealError, match="already opened for step 'panel'"):
        cell.open_seal("panel-again", "sha256:c", MODELS)
    run.cell("b").open_seal("panel", "sha256:c", MODELS)


def test_an_opening_whose_scores_were_never_stored_is_resumed_by_the_same_models_only(
    run: Run,
) -> None:
    run.cell("a").open_seal("panel", "sha256:c", MODELS)
    data = (run.cell("a").folder / "opening.json").read_bytes()
    cell = run.cell("a")
    with pytest.raises(SealError, match="already opened"):
        cell.open_seal("panel", "sha256:c", MODELS | {"injected": "sha256:9"})
    cell.open_seal("panel", "sha256:c", MODELS)
    cell.put("panel")
    assert (cell.folder / "opening.json").read_bytes() == data
    assert cell.manifest("panel")["opening"]["models"] == MODELS


def test_another_pool_than_the_sealed_one_is_refused(run: Run) -> None:
    with pytest.raises(SealError, match="expected sha256:c"):
        run.cell("a").open_seal("panel", "sha256:other", MODELS)


@pytest.mark.parametrize("name", ["items.parquet", "cell.json", "opening.json"])
def test_damaging_a_finished_cell_does_not_open_the_seal_for_other_models(
    run: Run, name: str
) -> None:
    work(run.cell("a"))
    damage(run.cell("a").folder / name, "flip")
    cell = run.cell("a")
    cell.prepare()
    assert cell.ended() == (name == "opening.json")
    if not cell.ended():
        with pytest.raises(SealError, match="already opened"):
            cell.open_seal("panel", "sha256:c", {"injected": "sha256:9"})
        cell.open_seal("panel", "sha256:c", {"injected": "sha256:1"})


def test_an_opening_that_is_damaged_before_its_scores_are_stored_is_not_replaced(run: Run) -> None:
    run.cell("a").open_seal("panel", "sha256:c", MODELS)
    damage(run.cell("a").folder / "opening.json", "flip")
    cell = run.cell("a")
    cell.prepare()
    with pytest.raises(SealError, match="restore it from a copy"):
        cell.open_seal("panel", "sha256:c", MODELS)


# -- failures ------------------------------------------------------------------------------------


def test_a_failed_cell_is_shown_and_tried_again(run: Run) -> None:
    failure = Failure("diverged", "training diverged at step 7: loss is NaN", "ga-w3")
    work(run.cell("a"), STEPS[:1], finish=False)
    run.cell("a").fail(failure)
    assert run.cell("a").failure() == failure
    assert status(run).failed == {"a": failure}
    path = run.cell("a").folder / "failed.json"
    for changed in mutations(path.read_bytes()):
        path.write_bytes(changed)
        assert run.cell("a").check()[0].path == path
    assert work(run.cell("a"), STEPS[:2], finish=False) == ["ga-w3"]
    assert status(run).failed == {}


def test_a_halted_cell_says_why_and_damage_to_that_is_found(run: Run) -> None:
    run.cell("a").halt("ga-w3", "not identifiable")
    assert run.cell("a").halted() == "not identifiable"
    assert status(run).halted == {"a": "not identifiable"}
    path = run.cell("a").folder / "halted.json"
    for changed in mutations(path.read_bytes()):
        path.write_bytes(changed)
        assert run.cell("a").halted() is None and run.cell("a").check()[0].path == path
    assert work(run.cell("a")) == list(STEPS)
