"""A name from a stranger can be a file name on any system, and never a path or another model."""

from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.config.commands import candidate_problems
from palimpsest.errors import PlanError
from palimpsest.text import name_problem, shown

HOSTILE = [
    *("", " ", ".", "..", "../../x", "..\\..\\x", "/etc/passwd", "C:\\x", "C:x", "\\\\host\\share"),
    *("a/b", "a\\b", "file:///x", "a:b", "x\x00.txt", "a\nb", "a\tb", "\x1b[31m", "~root", "$HOME"),
    *("Aux.", "x.", "x ", " x"),
    *("-rf", "--out=x", ".hidden", "a\u202eb", "a\u200bb", "a\u2215b", "a\uff0fb", "\ud800"),
    *("e\u0301", "{0.__class__}", "%s%n", "<script>", "a|b", "a*", "a?", '"a"', "a;b", "x" * 101),
    *("界" * 90, "panel:router"),
]
ORDINARY = ["f1", "kl_reversion-w3", "task_vector-c0.5", "mitt Öl", "名前", "a(b)", "x@y", "v1.2+3"]
TAKEN = ["base", "Injected", "reference", "reference-2", "forget_only", "general_only"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_could_be_a_path_or_act_is_refused(name):
    assert name_problem(name)
    (problem,) = candidate_problems(name)
    assert isinstance(problem, PlanError) and problem.key == "candidates"
    assert str(problem).isprintable() and str(problem).isascii()
    assert len(str(problem)) < 600


@pytest.mark.parametrize("name", [*ORDINARY, "references"])
def test_an_ordinary_name_is_accepted(name):
    assert name_problem(name) is None
    assert not list(candidate_problems(name))


@pytest.mark.parametrize("name", [*TAKEN, "retraining-1", "Control-50"])
def test_a_candidate_cannot_take_the_name_of_another_model(name):
    assert name_problem(name) is None
    assert list(candidate_problems(name))


@given(st.text(max_size=12))
def test_a_safe_name_stays_inside_its_folder_on_every_system(name):
    if name_problem(name) is None:
        assert (Path("/run") / name).resolve().parent == Path("/run")
        assert PureWindowsPath(name).name == name


@given(st.text())
def test_a_quoted_text_is_short_printable_ascii(text):
    quoted = shown(text)
    assert quoted.isascii() and quoted.isprintable() and len(quoted) < 700
