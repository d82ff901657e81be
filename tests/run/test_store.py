import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.reliability import count
from toy_cell import STEPS, work

import palimpsest
from palimpsest.errors import DamagedArtifact, DriftError, FolderLocked, InputError, StoreError
from palimpsest.run import disk
from palimpsest.run import terms as terms_of_a_run
from palimpsest.run.status import status
from palimpsest.run.store import Run, canonical, digest, environment, verify_chain
from palimpsest.run.terms import difference

Terms = tuple[dict[str, Any], ...]


def changed(terms: Terms, position: int, **keys: Any) -> Terms:
    return (*terms[:position], terms[position] | keys, *terms[position + 1 :])


def test_a_run_folder_holds_the_fixed_files_and_their_digests(run: Run, terms: Terms) -> None:
    assert json.loads((run.path / "plan.json").read_bytes()) == terms[0]
    assert json.loads((run.path / "seal.json").read_bytes()) == terms[3]
    rules = json.loads((run.path / "rules.json").read_bytes())
    assert rules == {"hash": digest(canonical(terms[1])), "rules": terms[1]}
    again = Run.open(run.path)
    assert (again.plan, again.rules, again.environment, again.seal) == terms
    assert again.rules_hash == rules["hash"] and again.cells == ("a", "b")
    fixed = disk.read_signed(run.path / "terms.json")
    assert fixed["terms"]["plan"] == disk.file_digest(run.path / "plan.json")
    assert fixed["environment"] == disk.file_digest(run.path / "environment.json")
    assert fixed["terms"]["cells"] == ["a", "b"]


def test_the_same_terms_give_the_same_digest_on_any_machine(tmp_path: Path, terms: Terms) -> None:
    here = Run.create(tmp_path / "here", *terms, cells=("a",))
    elsewhere = changed(terms, 2, machine="another", python="3.13")
    there = Run.create(tmp_path / "there", *elsewhere, cells=("a",))
    assert here.terms_digest == there.terms_digest
    work(here.cell("a"))
    work(there.cell("a"))
    assert here.cell("a").summary() == there.cell("a").summary()
    other = Run.create(tmp_path / "other", *changed(terms, 1, alpha=0.01), cells=("a",))
    assert other.terms_digest != here.terms_digest


def test_a_run_is_resumed_under_the_same_terms(run: Run, terms: Terms) -> None:
    before = (run.path / "terms.json").read_bytes()
    elsewhere = changed(terms, 2, machine="another")
    again = Run.create_or_resume(run.path, *elsewhere, cells=("a", "b"))
    assert again.path == run.path and again.environment == terms[2]
    assert (run.path / "terms.json").read_bytes() == before


def test_of_two_lists_only_what_differs_is_shown() -> None:
    common = [{"name": f"method-{n}", "weight": [3.0, 12.0, 50.0]} for n in range(9)]
    lines = difference("plan.methods", [*common, {"name": "mine"}], [{"name": "yours"}, *common])
    assert lines == [
        'plan.methods: only the run has {"name":"mine"}',
        'plan.methods: only asked for now: {"name":"yours"}',
    ]
    (line,) = difference("plan.seeds", [1, 2], [2, 1])
    assert line == "plan.seeds: the run has [1,2], asked for [2,1]"


@pytest.mark.parametrize(
    ("position", "keys", "line"),
    [
        (0, {"steps": {"inject": 151}}, "plan.steps.inject: the run has 150, asked for 151"),
        (0, {"new": 1}, "plan.new: the run has (nothing), asked for 1"),
        (1, {"alpha": 0.01}, "rules.alpha: the run has 0.05, asked for 0.01"),
        (2, {"code": {"version": "2"}}, 'code.version: the run has "1", asked for "2"'),
        (2, {"inputs": {"base": "sha256:x"}}, 'inputs.base: the run has "sha256:b", asked for'),
        (3, {"commitment": "sha256:d"}, 'seal.commitment: the run has "sha256:c", asked for'),
    ],
)
def test_drift_is_refused_with_the_difference_shown_and_a_fork_says_where_it_came_from(
    run: Run, terms: Terms, position: int, keys: dict[str, Any], line: str
) -> None:
    drifted = changed(terms, position, **keys)
    with pytest.raises(DriftError, match=re.escape(line)) as refusal:
        Run.create_or_resume(run.path, *drifted, cells=("a", "b"))
    assert str(refusal.value).count("the run has") == 1 and "--fork" in str(refusal.value)
    fork = Run.create_or_resume(run.path, *drifted, cells=("a", "b"), fork=True)
    assert fork.path == run.path.with_name("run-fork-1")
    assert fork.fork_of is not None and fork.fork_of["terms"] == run.terms_digest
    assert fork.fork_of["run"] == "run" and line in fork.fork_of["drift"][0]
    again = Run.create_or_resume(run.path, *drifted, cells=("a", "b"), fork=True)
    assert again.path == fork.path
    third = Run.create_or_resume(run.path, *drifted, cells=("a",), fork=True)
    assert third.path == run.path.with_name("run-fork-2")
    assert Run.open(run.path).drift(*terms, cells=("a", "b")) == []


def test_another_list_of_cells_is_drift(run: Run, terms: Terms) -> None:
    with pytest.raises(DriftError, match='cells: only the run has "b"'):
        Run.create_or_resume(run.path, *terms, cells=("a",))


def test_a_folder_with_other_things_in_it_is_not_taken(tmp_path: Path, terms: Terms) -> None:
    (tmp_path / "thesis.doc").write_text("mine")
    with pytest.raises(InputError, match=r"thesis\.doc"):
        Run.create(tmp_path, *terms, cells=("a",))
    assert (tmp_path / "thesis.doc").read_text() == "mine"


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run"):
        Run.open(tmp_path / "nowhere")


def test_a_run_is_created_once(run: Run, terms: Terms) -> None:
    with pytest.raises(StoreError, match="already a run"):
        Run.create(run.path, *terms, cells=("a",))


@pytest.mark.parametrize("cells", [("a", "a"), ("a", "A"), ("../x",), ("",), ("con",)])
def test_cell_ids_that_share_or_leave_a_folder_are_refused(
    tmp_path: Path, terms: Terms, cells: tuple[str, ...]
) -> None:
    with pytest.raises(InputError):
        Run.create(tmp_path / "run", *terms, cells=cells)
    assert not (tmp_path / "run").exists()


def test_a_seal_without_a_commitment_is_refused(tmp_path: Path, terms: Terms) -> None:
    with pytest.raises(InputError, match="commitment"):
        Run.create(tmp_path / "run", *terms[:3], {})


@pytest.mark.parametrize(
    "name", ["plan.json", "rules.json", "seal.json", "environment.json", "terms.json"]
)
def test_every_truncation_and_flipped_byte_of_a_fixed_file_is_found_and_repaired(
    run: Run, terms: Terms, name: str
) -> None:
    work(run.cell("a"))
    path = run.path / name
    data = path.read_bytes()
    versions = [data[:length] for length in range(len(data))]
    for n in range(len(data)):
        versions.append(data[:n] + bytes([data[n] ^ 1 << n % 8]) + data[n + 1 :])
    count("damaged fixed files of a run, all found", len(versions))
    for n, version in enumerate(versions):
        path.write_bytes(version)
        with pytest.raises(DamagedArtifact, match=re.escape(str(path))):
            Run.open(run.path)
        if n % 97 == 0:
            again = Run.create_or_resume(run.path, *terms, cells=("a", "b"))
            assert path.read_bytes() == data and again.cell("a").finished()
    path.unlink()
    Run.create_or_resume(run.path, *terms, cells=("a", "b"))
    assert path.read_bytes() == data


def test_damaged_terms_are_not_repaired_under_other_terms(run: Run, terms: Terms) -> None:
    work(run.cell("a"))
    (run.path / "terms.json").write_bytes(b"")
    with pytest.raises(StoreError, match="made under other terms"):
        Run.create_or_resume(run.path, *changed(terms, 1, alpha=0.01), cells=("a", "b"))


def test_a_damaged_fork_still_says_where_it_came_from(run: Run, terms: Terms) -> None:
    drifted = changed(terms, 1, alpha=0.01)
    fork = Run.create_or_resume(run.path, *drifted, cells=("a", "b"), fork=True)
    for name in ("terms.json", "environment.json"):
        data = (fork.path / name).read_bytes()
        (fork.path / name).write_bytes(data[: len(data) // 2])
        again = Run.create_or_resume(fork.path, *drifted, cells=("a", "b"))
        assert again.fork_of == fork.fork_of
        assert (fork.path / name).read_bytes() == data


def test_the_record_is_made_from_what_is_stored_in_the_order_of_the_plan(
    run: Run, quick: Path, terms: Terms
) -> None:
    for cell in ("b", "a"):
        work(run.cell(cell))
    with run.lock("palimpsest study"):
        data = run.record()
        with pytest.raises(FolderLocked, match="palimpsest study"), Run.open(run.path).lock():
            pass
    assert (run.path / "record.jsonl").read_bytes() == data
    entries = verify_chain(data)
    each = ["opened", "step", "step", "step", "cell"]
    assert [entry.event for entry in entries] == ["terms", *each, *each]
    assert [entry.data["cell"] for entry in entries[1:]] == ["a"] * 5 + ["b"] * 5
    assert entries[5].data["digest"] == run.cell("a").summary()["digest"]
    # The other order, and no step of it in the same process, gives the same bytes.
    other = Run.create(quick / "other", *terms, cells=("a", "b"))
    for cell in ("a", "b"):
        work(other.cell(cell), STEPS[:1], finish=False)
        work(other.cell(cell))
    assert other.record() == data


def test_a_record_that_is_lost_or_changed_is_named_and_made_again(run: Run) -> None:
    work(run.cell("a"))
    work(run.cell("b"))
    path = run.path / "record.jsonl"
    assert "No such file" in run.verify()[0]
    with run.lock():
        data = run.record()
    assert run.verify() == ()
    lines = data.splitlines(keepends=True)
    for changed in (data[:-1], b"", b"".join(lines[:-1]), data.replace(b"ga-w3", b"ga-w4")):
        path.write_bytes(changed)
        assert len(run.verify()) == 1 and "record.jsonl" in run.verify()[0]
    with run.lock():
        run.record()
    assert path.read_bytes() == data


def test_verify_names_what_is_missing_changed_or_added(run: Run) -> None:
    work(run.cell("a"))
    assert run.verify() == ("cell b: not finished; expected every planned cell",)
    work(run.cell("b"))
    with run.lock():
        run.record()
    assert run.verify() == ()
    (run.path / "cells" / "a" / "items.parquet").write_bytes(b"")
    (run.path / "cells" / "extra").mkdir()
    first, second = run.verify()
    assert "items.parquet" in first and "extra: not a cell of the plan" in second
    (run.path / "rules.json").write_bytes(b"{}\n")
    assert "rules.json" in run.verify()[0]


def test_a_cell_moved_under_another_name_or_run_is_found(
    run: Run, quick: Path, terms: Terms
) -> None:
    work(run.cell("a"))
    (run.path / "cells" / "a").rename(run.path / "cells" / "b")
    assert not run.cell("b").finished()
    other = Run.create(quick / "other", *changed(terms, 1, alpha=0.01), cells=("a", "b"))
    (other.path / "cells").mkdir()
    (run.path / "cells" / "b").rename(other.path / "cells" / "a")
    assert not other.cell("a").finished()


def test_status_says_where_every_cell_stands(run: Run) -> None:
    assert status(run.path).waiting == ("a", "b")
    work(run.cell("a"))
    run.cell("b").put("injected")
    seen = status(run)
    assert (seen.planned, seen.done, seen.waiting) == (("a", "b"), ("a",), ("b",))
    assert seen.steps == {"b": ("injected",)}


def test_reading_a_run_writes_nothing(run: Run) -> None:
    work(run.cell("a"))
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    again = Run.open(run.path)
    status(again)
    again.verify()
    again.cell("a").table("items")
    again.cell("b").finished()
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_an_interrupted_creation_is_completed(tmp_path: Path, terms: Terms, fault: Any) -> None:
    def fail(operation: str, path: Path) -> None:
        if path.name == "terms.json":
            raise OSError(28, "No space left on device")

    fault(fail)
    with pytest.raises(StoreError):
        Run.create(tmp_path / "run", *terms, cells=("a",))
    fault(None)
    with pytest.raises(InputError, match="not a run"):
        Run.open(tmp_path / "run")
    run = Run.create_or_resume(tmp_path / "run", *changed(terms, 1, alpha=0.01), cells=("a",))
    assert run.rules["alpha"] == 0.01


def test_the_environment_names_code_packages_and_inputs() -> None:
    found = environment({"base": "sha256:b"})
    assert found["inputs"] == {"base": "sha256:b"}
    assert found["code"]["source"].startswith("sha256:")
    assert found["packages"]["numpy"] and environment({"base": "sha256:b"}) == found


def test_the_code_is_all_that_can_change_a_result_and_nothing_that_only_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Path(palimpsest.__file__).parent
    names = [path.relative_to(original) for path in sorted(original.rglob("*.py"))]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(original / name, tmp_path / name)
    before = environment()["code"]["source"]
    monkeypatch.setattr(terms_of_a_run, "__file__", str(tmp_path / "run" / "terms.py"))
    assert environment()["code"]["source"] == before
    shown = set()
    for part in {name.parts[0] for name in names}:
        files = [tmp_path / name for name in names if name.parts[0] == part]
        kept = [path.read_bytes() for path in files]
        for path in files:
            path.write_bytes(b"#")
        if environment()["code"]["source"] == before:
            shown.add(part)
        for path, content in zip(files, kept):
            path.write_bytes(content)
    assert shown <= {"analysis", "cli", "certificate", "report"}
    assert {"cli", "certificate", "report"} <= shown


def test_the_store_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, palimpsest.run.store; print({'torch', 'numpy', 'pyarrow'} & {*sys.modules})"
    source = str(Path(palimpsest.__file__).parents[1])
    out = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout == "set()\n"


def test_a_kill_between_two_operations_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from palimpsest.run import disk
left = int(sys.argv[2])
def fault(operation, path):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
disk.FAULT = fault
disk.write_bytes(Path(sys.argv[1]), b"new")
"""
    (tmp_path / "a").write_bytes(b"old")
    source = str(Path(palimpsest.__file__).parents[1])
    for n, expected in ((4, b"old"), (5, b"new")):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "a"), str(n)],
            env=os.environ | {"PYTHONPATH": source},
            check=False,
        )
        assert done.returncode == -9
        assert (tmp_path / "a").read_bytes() == expected
    assert len(disk.clean(tmp_path)) == 1
