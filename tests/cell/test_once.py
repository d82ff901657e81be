"""Nothing is derived twice: texts of a cell, digests of its base, the record of a finished cell."""

import shutil
from collections import Counter
from typing import Any

import pytest
from tests.cell.small import small_plan

from palimpsest.cell import study
from palimpsest.cell.launch import RunOptions, preview
from palimpsest.cell.study import StudyTask
from palimpsest.models import checkpoint


@pytest.fixture
def counted(monkeypatch):
    """Count the calls of a function of a module, by its name and first argument."""
    calls: Counter[str] = Counter()

    def count(module: Any, name: str) -> Counter[str]:
        real = getattr(module, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            calls[f"{name} {arguments[0] if arguments else ''}"] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(module, name, wrapped)
        return calls

    return count


def test_a_dry_run_builds_texts_and_digests_the_base_once(counted, tiny_checkpoint, tmp_path):
    base = shutil.copytree(tiny_checkpoint("qwen2-s"), tmp_path / "base")
    counted(study, "draw_testbed")
    calls = counted(checkpoint, "_survey")
    preview(StudyTask(small_plan(base), tmp_path / "run"), RunOptions())
    assert {call.split()[0] for call in calls} == {"draw_testbed", "_survey"}
    assert set(calls.values()) == {1}, calls
