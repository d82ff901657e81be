"""The run folder: terms that are fixed, and a list of candidates that may grow."""

import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.reliability import FULL, count
from toy import ToyJob, contents, do_steps, hooked, mutations, toy_run, toy_terms, work

from palimpsest.errors import DamagedArtifact, DriftError, FolderLocked, InputError, StoreError
from palimpsest.run import files, store
from palimpsest.run.files import canonical, digest
from palimpsest.run.store import Run


def test_a_run_folder_holds_its_terms_and_their_digest(run):
    stored = json.loads((run.path / "terms.json").read_bytes())
    assert stored["terms"] == json.loads(canonical(asdict(toy_terms())))
    again = Run.open(run.path)
    assert again.terms == toy_terms() and again.cells == ("a", "b")
    assert again.terms.rules_hash == digest(canonical({"alpha": 0.05}))
    assert again.rosters == run.rosters and len(again.rosters) == 1


def test_the_terms_do_not_depend_on_the_machine(run, quick, monkeypatch):
    monkeypatch.setattr(store, "_environment", lambda: {"machine": "another"})
    there = toy_run(quick / "there")
    assert (there.path / "terms.json").read_bytes() != (run.path / "terms.json").read_bytes()
    assert there.terms == run.terms and there.rosters == run.rosters
    work(run)
    work(there)
    assert there.cell("a").summary() == run.cell("a").summary()
    # Resuming elsewhere leaves what is stored as it is.
    before = (run.path / "terms.json").read_bytes()
    assert toy_run(run.path).terms == run.terms
    assert (run.path / "terms.json").read_bytes() == before


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"config": {"seeds": [0, 1], "steps": {"inject": 151}}}, "config.steps.inject"),
        ({"config": {"seeds": [0, 1], "steps": {"inject": 150}, "new": 1}}, "config.new"),
        ({"config": {"seeds": [1, 0], "steps": {"inject": 150}}}, "config.seeds"),
        ({"kind": "audit"}, "kind"),
        ({"rules": {"alpha": 0.01}}, "rules.alpha"),
        ({"seal": {"commitment": "sha256:d", "pool": "built-in"}}, "seal.commitment"),
        ({"inputs": {"base": "sha256:x"}}, "inputs.base"),
        ({"cells": ("a",)}, "cells"),
        ({"code": {"version": "2", "source": "sha256:s"}}, "code.version"),
        ({"packages": {"numpy": "1", "torch": "3"}}, "packages.torch"),
    ],
)
def test_drift_is_refused_by_key_and_changes_nothing(run, changed, key):
    work(run)
    before = contents(run.path)
    with pytest.raises(DriftError) as refusal:
        Run.create_or_resume(run.path, replace(toy_terms(), **changed))
    assert refusal.value.keys == (key,) and key in str(refusal.value)
    assert contents(run.path) == before


def test_a_folder_with_other_things_in_it_is_not_taken(tmp_path):
    (tmp_path / "thesis.doc").write_text("mine")
    with pytest.raises(InputError, match=r"thesis\.doc"):
        toy_run(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.doc"]
    with pytest.raises(InputError):
        Run.open(tmp_path)


@pytest.mark.parametrize("cells", [("../x",), ("",), ("a/b",)])
def test_cell_ids_that_leave_the_folder_are_refused(tmp_path, cells):
    with pytest.raises(InputError):
        toy_run(tmp_path / "run", *cells)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["terms.json", "rosters.json"])
def test_every_truncation_and_flipped_byte_of_a_fixed_file_is_an_error_and_stays(run, name):
    work(run)
    path = run.path / name
    versions = mutations(path.read_bytes(), 0 if FULL else 400)
    count("damaged fixed files of a run, all found", len(versions))
    for n, version in enumerate([*versions, None]):
        path.unlink()
        if version is not None:
            path.write_bytes(version)
        for opened in (Run.open, toy_run) if version is None or n % 97 == 0 else (Run.open,):
            with pytest.raises(DamagedArtifact) as found:
                opened(run.path)
            assert str(path) in str(found.value)
        if version is None:
            assert not path.exists()
            break
        assert path.read_bytes() == version


def test_the_list_of_candidates_may_grow_and_every_result_names_the_list_it_was_made_under(run):
    one, two = {"name": "one"}, {"name": "two"}
    first = Run.create_or_resume(run.path, toy_terms(), [one])
    work(first, ToyJob(run.path.parent, ("part-0",)))
    grown = Run.create_or_resume(run.path, toy_terms(), [one, two])
    assert [entry.models for entry in grown.rosters] == [(), (one,), (one, two)]
    work(grown, ToyJob(run.path.parent, ("part-0", "part-1")))
    lists = {step["step"]: step["roster"] for step in grown.cell("a").summary()["steps"]}
    assert lists.pop("part-1") == grown.rosters[-1].digest
    assert set(lists.values()) == {first.rosters[-1].digest}
    assert grown.verify() == ()


def test_a_held_run_names_its_holder_and_the_order_of_work_changes_no_byte(run, quick):
    work(run)
    with run.lock("palimpsest study"), pytest.raises(FolderLocked, match="palimpsest study"):
        Run.open(run.path).lock().__enter__()
    other = toy_run(quick / "other")
    do_steps(other, "b", "train", "part-2", "reference")
    do_steps(other, "a", "train", "part-1")
    work(other)
    assert contents(other.path) == contents(run.path)


def test_verify_names_what_is_missing_changed_or_added(run):
    assert len(run.verify()) == 2
    work(run)
    (run.path / "cells" / "a" / "items.parquet").write_bytes(b"")
    (run.path / "cells" / "extra").mkdir()
    first, second = run.verify()
    assert "items.parquet" in first and "extra" in second
    shutil.rmtree(run.path / "cells" / "b")
    assert any("cell b" in problem for problem in run.verify())


def test_a_cell_moved_under_another_name_or_run_is_found(run, quick):
    work(run)
    other = toy_run(quick / "other", steps=7)
    shutil.copytree(run.path / "cells", other.path / "cells")
    assert not other.cell("a").finished() and other.cell("a").check()
    shutil.rmtree(run.path / "cells" / "b")
    (run.path / "cells" / "a").rename(run.path / "cells" / "b")
    assert not run.cell("b").finished() and run.cell("b").check()


@pytest.mark.parametrize("name", ["terms.json", "rosters.json"])
def test_an_interrupted_creation_is_completed(tmp_path, name):
    def fail(operation: str, path: Path) -> None:
        if path.name == name:
            raise OSError(28, "No space left on device")

    with hooked(fail), pytest.raises(StoreError):
        toy_run(tmp_path / "run", "a")
    with pytest.raises(InputError):
        Run.open(tmp_path / "run")
    assert Run.find(tmp_path / "run") is None
    assert toy_run(tmp_path / "run", "a", steps=7).terms.config["steps"] == 7


def test_a_folder_named_by_another_edition_is_refused(run):
    value = json.loads((run.path / "terms.json").read_bytes())
    value.pop("digest")
    files.write_digested(run.path / "terms.json", value | {"format": 2})
    with pytest.raises(StoreError, match="format 2"):
        Run.open(run.path)
