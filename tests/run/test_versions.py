"""Code counts by what it does: comments, docstrings and layout move no key, constants do."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from toy import STEPS, toy_terms, work

import palimpsest
from palimpsest.errors import DriftError
from palimpsest.run.store import Run, Terms
from palimpsest.run.versions import code_digest, package_digest

CODE = """
import math

LIMIT: int = 3
'''Most times.'''


def area(radius: float) -> float:
    '''Return the area of a disk.'''
    return math.pi * radius**2  # in square metres
"""


@pytest.fixture
def package(tmp_path):
    """A copy of the package."""
    source = Path(palimpsest.__file__).parent
    kept = shutil.ignore_patterns("__pycache__", "*.safetensors", "*.html", "*.js", "*.css")
    return Path(shutil.copytree(source, tmp_path / "palimpsest", ignore=kept))


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("  # in square metres", "", True),
        ("Return the area of a disk.", "Area.", True),
        ("Most times.", "At most so often.", True),
        ("\n\n\n", "\n", True),
        ("math.pi * radius**2", "(\n        math.pi * radius ** 2\n    )", True),
        ("radius**2", "radius**3", False),
        ("LIMIT: int = 3", "LIMIT: float = 3", False),
        ("math.pi", "math.tau", False),
        ("radius: float", "radius: float = 1.0", False),
    ],
)
def test_only_what_a_change_does_counts(tmp_path, before, after, same):
    (path := tmp_path / "area.py").write_text(CODE)
    first = code_digest(path)
    path.write_text(CODE.replace(before, after))
    assert path.read_text() != CODE and (code_digest(path) == first) is same


def test_a_finished_run_resumes_after_an_edited_comment_and_not_after_an_edited_constant(
    package, quick
):
    def terms() -> Terms:
        return replace(toy_terms(), code={"version": "1", "source": package_digest(package)})

    run = Run.create_or_resume(quick / "run", terms())
    assert work(run).computed == 2 * len(STEPS)
    edited = package / "facts" / "nonce.py"
    text = edited.read_text()
    edited.write_text(f"# Nobody computes with this.\n\n{text}\n")
    assert work(Run.create_or_resume(run.path, terms())).computed == 0
    edited.write_text(text + "\nLIMIT = 3\n")
    with pytest.raises(DriftError) as refusal:
        Run.create_or_resume(run.path, terms())
    assert refusal.value.keys == ("code.source",)
