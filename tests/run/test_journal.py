import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reliability import FULL, count
from toy_cell import STEPS, rows, work

from palimpsest.errors import DamagedArtifact, InputError, LeaseHeld, SealError, StoreError
from palimpsest.run import disk
from palimpsest.run.status import status
from palimpsest.run.store import Cell, Run


def contents(cell: Cell) -> dict[str, bytes]:
    paths = (path for path in cell.folder.rglob("*") if path.is_file())
    return {str(p.relative_to(cell.folder)): p.read_bytes() for p in sorted(paths)}


# -- steps ---------------------------------------------------------------------------------------


def test_a_step_comes_back_as_it_was_put(run: Run) -> None:
    cell = run.cell("a")
    with cell.claim():
        assert not cell.done("ga-w3")
        cell.put("ga-w3", {"items": rows("ga-w3")}, {"loss": 1.5})
        assert cell.done("ga-w3")
    for same in (cell, Run.open(run.path).cell("a")):
        assert same.done("ga-w3") and same.steps() == ("ga-w3",)
        tables, values = same.get("ga-w3")
        assert values == {"loss": 1.5}
        assert tables["items"]["fact"].tolist() == ["f1", "f2", "é"]
        np.testing.assert_array_equal(tables["items"]["nll_sum"], rows("ga-w3")["nll_sum"])


def test_a_file_belongs_to_its_step_once_the_step_is_put(run: Run) -> None:
    cell = run.cell("a")
    with cell.claim():
        cell.put_file("injected", "weights.safetensors", lambda path: path.write_bytes(b"w"))
        assert not cell.done("injected")
        cell.put("injected")
        assert cell.file("injected", "weights.safetensors").read_bytes() == b"w"
        assert cell.file_digest("injected", "weights.safetensors") == disk.digest(b"w")
        with pytest.raises(StoreError, match="already done"):
            cell.put_file("injected", "weights.safetensors", b"other")


def test_a_finished_cell_holds_every_row_in_the_order_asked_for(run: Run) -> None:
    cell = run.cell("a")
    assert work(cell) == list(STEPS)
    assert cell.finished() and not cell.parts.exists()
    assert cell.table("items")["model"].tolist() == [s for s in STEPS for _ in range(3)]
    summary = cell.summary()
    assert summary["seed"] == 0 and summary["cell"] == "a"
    assert sorted(summary["artifacts"]) == ["items.parquet", "models/injected.safetensors"]
    for file, expected in summary["artifacts"].items():
        assert disk.file_digest(cell.folder / file) == expected
    assert work(cell) == []


def test_the_order_of_work_changes_no_table(run: Run) -> None:
    work(run.cell("a"))
    cell = run.cell("b")
    work(cell, ("ga-w3",), finish=False)
    work(cell)
    for name in ("items.parquet", "models/injected.safetensors"):
        assert (cell.folder / name).read_bytes() == (run.cell("a").folder / name).read_bytes()


def test_a_cell_chain_begins_from_the_runs_rules_and_seal(run: Run) -> None:
    work(run.cell("a"))
    first = json.loads((run.cell("a").folder / "chain.jsonl").read_text().splitlines()[0])
    assert first["previous"] == run.genesis == run.chain().entries[3].digest
    assert run.chain().entries[3].event == "seal"


def test_a_step_with_rows_cannot_be_left_out_or_merged_twice(run: Run) -> None:
    cell = run.cell("a")
    work(cell, finish=False)
    with cell.claim():
        for order in (["injected", "ga-w3"], [*STEPS, "ga-w3"], [*STEPS, "absent"]):
            with pytest.raises(StoreError, match="cannot finish"):
                cell.finish({}, order)
        with pytest.raises(InputError, match="artifacts"):
            cell.finish({"artifacts": {}}, STEPS)


def test_a_done_step_cannot_be_replaced(run: Run) -> None:
    cell = run.cell("a")
    with cell.claim():
        cell.put("ga-w3", {}, {"loss": 1.0})
        cell.put("ga-w3", {}, {"loss": 1.0})
        with pytest.raises(StoreError, match="already done with other contents"):
            cell.put("ga-w3", {}, {"loss": 2.0})
        assert cell.get("ga-w3")[1] == {"loss": 1.0}


def test_writing_needs_the_claim_and_two_cannot_have_it(run: Run) -> None:
    cell = run.cell("a")
    with pytest.raises(StoreError, match=r"with cell\.claim"):
        cell.put("ga-w3")
    with cell.claim("worker 1"):
        assert cell.running()
        with pytest.raises(LeaseHeld, match="worker 1"), run.cell("a").claim():
            pass
        with run.cell("b").claim():
            pass
    assert not cell.running()


@pytest.mark.parametrize("name", ["../../x", "/abs", "C:\\x", "a\0", "nul", "a/b", "", "a~b"])
def test_hostile_step_table_and_file_names_are_refused(run: Run, name: str) -> None:
    cell = run.cell("a")
    with cell.claim():
        with pytest.raises(InputError):
            cell.put(name)
        with pytest.raises(InputError):
            cell.put("step", {name: {"x": [1]}})
        with pytest.raises(InputError):
            cell.put_file("step", name, b"")
        with pytest.raises(InputError):
            cell.finish({}, [], keep={name: ("step", "weights.safetensors")})
        cell.put("panel:router")
        with pytest.raises(InputError, match="only in case"):
            cell.put("Panel:router")
    with pytest.raises(InputError):
        run.cell(name)


def test_a_value_that_is_not_finite_is_refused_before_anything_is_stored(run: Run) -> None:
    cell = run.cell("a")
    with cell.claim():
        with pytest.raises(StoreError, match="JSON"):
            cell.put("ga-w3", {"items": rows("ga-w3")}, {"loss": float("nan")})
        assert not cell.done("ga-w3") and os.listdir(cell.parts) == []


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
    cell = run.cell("a")
    work(cell)
    tried = 0
    for name, data in contents(cell).items():
        path = cell.folder / name
        for changed in mutations(data):
            path.write_bytes(changed)
            tried += 1
            assert not cell.finished(), (name, len(changed))
            if name != "chain.jsonl":
                assert [damage.path for damage in cell.check()] == [path]
        path.write_bytes(data)
        assert cell.finished() and cell.check() == ()
    assert tried > 5000
    count("damaged files of a finished cell, all found", tried)


@pytest.mark.slow
def test_every_truncation_and_flipped_byte_of_a_part_is_found_and_costs_only_its_step(
    run: Run,
) -> None:
    cell = run.cell("a")
    work(cell, finish=False)
    for path in sorted(cell.parts.glob("*" if FULL else "injected.*")):
        step = path.name.split(".")[0]
        data = path.read_bytes()
        for changed in mutations(data):
            path.write_bytes(changed)
            count("damaged parts of an unfinished cell, all found")
            assert [(damage.step, damage.path) for damage in cell.check()] == [(step, path)]
        assert [cell.done(other) for other in STEPS] == [other != step for other in STEPS]
        if not path.name.endswith("safetensors"):
            with pytest.raises(DamagedArtifact, match=path.name):
                cell.get(step)
        path.write_bytes(data)


@pytest.mark.parametrize("change", ["flip", "truncate", "delete", "folder"])
@pytest.mark.parametrize(
    "name",
    ["injected.values.json", "injected.weights.safetensors", "panel.items.parquet"],
)
def test_a_damaged_part_is_made_again_the_rest_kept_and_no_byte_differs(
    run: Run, name: str, change: str
) -> None:
    cell, twin = run.cell("a"), run.path.parent / "twin"
    work(cell, finish=False)
    shutil.copytree(run.path, twin)
    path = cell.parts / name
    damage(path, change)
    assert work(cell) == [name.split(".")[0]]
    untouched = Run.open(twin).cell("a")
    assert work(untouched) == []
    assert contents(cell) == contents(untouched)


@pytest.mark.parametrize("change", ["flip", "truncate", "delete"])
@pytest.mark.parametrize("name", ["items.parquet", "cell.json", "models/injected.safetensors"])
def test_a_damaged_finished_cell_is_named_and_made_again_to_the_byte(
    run: Run, name: str, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    cell, other = run.cell("a"), run.cell("b")
    work(cell)
    work(other)
    before, kept = contents(cell), contents(other)
    damage(cell.folder / name, change)
    assert not cell.finished() and other.finished()
    assert work(cell) == list(STEPS)
    assert name in caplog.text
    after = contents(cell)
    after.pop("repairs.json")
    assert after == before and contents(other) == kept


@pytest.mark.parametrize("line", range(6))
def test_a_damaged_journal_is_cut_before_the_damage_and_the_cell_ends_with_the_same_bytes(
    run: Run, line: int
) -> None:
    cell = run.cell("a")
    work(cell)
    finished = contents(cell)
    path = cell.folder / "chain.jsonl"
    shutil.rmtree(cell.folder)
    work(cell, finish=False)
    lines = path.read_bytes().splitlines(keepends=True)
    if line < len(lines):
        lines[line] = lines[line].replace(b"sha256:", b"sha256;", 1)
        path.write_bytes(b"".join(lines))
    kept = cell.steps()
    assert work(cell) == [step for step in STEPS if step not in kept]
    after = contents(cell)
    after.pop("repairs.json", None)
    assert after == finished


def test_every_truncation_and_flipped_byte_of_the_record_of_repairs_is_named(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    cell = run.cell("a")
    work(cell)
    damage(cell.folder / "items.parquet", "truncate")
    work(cell)
    work(run.cell("b"))
    path = cell.folder / "repairs.json"
    data = path.read_bytes()
    assert cell.repairs()[0] and run.verify() == ()
    for changed in mutations(data):
        path.write_bytes(changed)
        count("damaged records of repairs, all found")
        assert cell.repairs()[0] == [] and str(path) in str(cell.repairs()[1])
    assert [str(path) in problem for problem in run.verify()] == [True]
    assert work(cell) == [] and cell.finished()
    assert "repairs.json" in caplog.text and not path.exists()


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
        """How many operations were begun; the disk fails at the `first`, or from there on."""
        count = 0

        def fail(operation: str, _: Path) -> None:
            nonlocal count
            count += 1
            if count == first or (lasting and count > first > 0):
                raise OSError(code, os.strerror(code))

        fault(fail)
        try:
            run = Run.create_or_resume(path, *terms, cells=("a",))
            with run.lease():
                work(run.cell("a"))
        finally:
            fault(None)
        return count

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
        assert contents(Run.open(path).cell("a")) == expected
        shutil.rmtree(path)
    assert len(refusals) > 0.8 * operations
    assert all("then run the same command again" in refusal for refusal in refusals)


def test_a_cell_folder_deleted_while_running_is_an_error_and_a_retry_succeeds(run: Run) -> None:
    cell = run.cell("a")
    with cell.claim():
        cell.put("injected")
        shutil.rmtree(cell.folder)
        with pytest.raises(StoreError, match="expected the folder to exist"):
            cell.put("ga-w3")
        cell.fail("the folder is gone")  # says nothing of its own that would hide the reason
    assert not cell.folder.exists()
    assert work(cell) == list(STEPS)


def test_leases_deleted_while_running_stop_the_writer(run: Run) -> None:
    cell = run.cell("a")
    with cell.claim():
        shutil.rmtree(run.path / ".leases")
        with pytest.raises(StoreError, match="does not hold its lease"):
            cell.put("injected")


def test_leftover_temporary_files_are_cleared_by_the_next_owner(run: Run) -> None:
    cell = run.cell("a")
    work(cell)
    for folder in (run.path, cell.folder, cell.folder / "models"):
        (folder / ".tmp-0123456789ab").write_bytes(b"half")
    with run.lease():
        pass
    assert list(run.path.rglob(".tmp-*")) == []
    assert cell.finished()


# -- the seal ------------------------------------------------------------------------------------

MODELS = {"injected": "sha256:1", "panel:router": "sha256:2"}


def test_the_audit_pool_is_scored_once(run: Run) -> None:
    cell = run.cell("a")
    with cell.claim():
        cell.open_seal("panel", "sha256:c", MODELS)
        cell.put("panel", {"items": rows("panel")})
        with pytest.raises(SealError, match="already scored"):
            cell.open_seal("panel", "sha256:c", MODELS)
        with pytest.raises(SealError, match="already opened for step 'panel'"):
            cell.open_seal("panel-again", "sha256:c", MODELS)
    run.cell("b")
    with run.cell("b").claim() as other:
        other.open_seal("panel", "sha256:c", MODELS)


def test_an_opening_whose_scores_were_never_stored_is_resumed_by_the_same_models_only(
    run: Run,
) -> None:
    cell = run.cell("a")
    with cell.claim():
        cell.open_seal("panel", "sha256:c", MODELS)
    with cell.claim():
        with pytest.raises(SealError, match="already opened"):
            cell.open_seal("panel", "sha256:c", MODELS | {"injected": "sha256:9"})
        cell.open_seal("panel", "sha256:c", MODELS)
        cell.put("panel")
    text = (cell.folder / "chain.jsonl").read_text()
    assert text.count("seal opened") == 1


def test_another_pool_than_the_sealed_one_is_refused(run: Run) -> None:
    with run.cell("a").claim() as cell, pytest.raises(SealError, match="expected sha256:c"):
        cell.open_seal("panel", "sha256:other", MODELS)


@pytest.mark.parametrize("name", ["items.parquet", "cell.json", "chain.jsonl"])
def test_damaging_a_finished_cell_does_not_open_the_seal_for_other_models(
    run: Run, name: str
) -> None:
    cell = run.cell("a")
    work(cell)
    damage(cell.folder / name, "flip")
    with cell.claim():
        assert not cell.done("panel")
        with pytest.raises(SealError, match="already opened"):
            cell.open_seal("panel", "sha256:c", {"injected": "sha256:9"})
        cell.open_seal("panel", "sha256:c", {"injected": "sha256:1"})


# -- failures ------------------------------------------------------------------------------------


def test_a_failed_cell_is_shown_and_tried_again(run: Run) -> None:
    cell = run.cell("a")
    with cell.claim():
        cell.put("injected", {"items": rows("injected")})
        cell.fail("training diverged at step 7: loss is NaN")
        assert status(run).running == ("a",)
    assert status(run).failed == {"a": "training diverged at step 7: loss is NaN"}
    assert work(cell, ("injected", "ga-w3"), finish=False) == ["ga-w3"]
    assert status(run).failed == {}
