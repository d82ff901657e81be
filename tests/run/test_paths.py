"""However its path is spelled, a run folder is one folder; where none can be, the error says so."""

import os
import shutil
from pathlib import Path

import pytest
from toy import STEPS, ToyJob, contents, do_steps, toy_run, toy_terms, work

from palimpsest.cell.launch import RunOptions, check_out, run_cells
from palimpsest.errors import FolderLocked, InputError, PlanError
from palimpsest.run.files import folder_path
from palimpsest.run.store import Run


@pytest.fixture
def here(quick, monkeypatch):
    """A working folder with a neighbor ``far`` to which ``link`` leads."""
    (quick / "here").mkdir()
    (quick / "far").mkdir()
    (quick / "here" / "link").symlink_to("../far")
    monkeypatch.chdir(quick / "here")
    return quick


@pytest.mark.parametrize(
    ("spelled", "real"),
    [
        ("./a/../x", "here/x"),
        ("link/x", "far/x"),
        ("link/../x", "x"),
        ("my прогон/ñ-運行", "here/my прогон/ñ-運行"),
    ],
)
def test_a_run_is_made_and_resumed_under_every_spelling_of_its_path(here, spelled, real):
    for times in (2 * len(STEPS), 0):
        # As every command does: the folder is held by the command while its executor works.
        run, outcome = run_cells(ToyJob(here), Path(spelled), toy_terms(), (), RunOptions())
        assert outcome.computed == times and not outcome.failed
        assert run.path == (here / real).resolve() and run.verify() == ()
    with Run.open(here / real).lock("another command"):
        assert Run.open(spelled).locked_here()
        with pytest.raises(FolderLocked), Run.open(spelled).lock():
            pass


def test_a_run_folder_that_was_moved_resumes_with_the_same_bytes(here):
    do_steps(toy_run(Path("before")), "a", "train", "part-0")
    shutil.move("before", "../far/after")
    moved = toy_run(Path("link/after"))
    assert work(moved).computed == 2 * len(STEPS) - 2
    whole = toy_run(here / "whole")
    work(whole)
    assert contents(moved.path) == contents(whole.path)


@pytest.mark.parametrize("spelled", ["x" * 300, "a/b/" + "x" * 300, "loop/x", "file/x", "nul\0"])
def test_where_no_folder_can_be_the_error_names_the_path(here, spelled):
    Path("loop").symlink_to("loop")
    Path("file").touch()
    for refused in (folder_path, Run.open, Run.find, toy_run):
        with pytest.raises(InputError):
            refused(Path(spelled))
    with pytest.raises(PlanError) as refusal:
        check_out(Path(spelled))
    assert refusal.value.key == "out"


def test_a_folder_that_cannot_be_written_to_is_refused_before_any_work(here, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(PlanError) as refusal:
        check_out(Path("../new/run"))
    assert refusal.value.key == "out" and str(here) in str(refusal.value)
