"""The nine pocket models load like any checkpoint, and are what was shipped.

The shipped files are compared with their digests, so what was true of them when they were baked is
not tested again.
"""

import json
import shutil
import subprocess
import sys

import pytest
from dev.bake_pocket import file_digests, tensor_names

from palimpsest.errors import ModelError
from palimpsest.models import sources
from palimpsest.models.sources import (
    PAPER,
    POCKET,
    POCKET_DIGESTS,
    POCKET_NAMES,
    POCKET_ROOT,
    family_of,
    pocket_folder,
    pocket_spec,
)


def test_the_files_are_the_ones_whose_digests_were_shipped():
    assert file_digests(POCKET_ROOT) == json.loads(POCKET_DIGESTS.read_text("utf-8"))
    sizes = [file.stat().st_size for file in POCKET_ROOT.rglob("*") if file.is_file()]
    assert sum(sizes) <= 16 * 10**6


def test_the_names_are_those_of_the_modules():
    assert tensor_names(POCKET_ROOT) == json.loads(POCKET_NAMES.read_text("utf-8"))


def test_a_first_step_imports_no_module_of_transformers():
    program = """
import sys
from palimpsest.config.presets import preset
from palimpsest.cell.study import StudyTask
from palimpsest.cell.estimate import check_memory, suitable_workers
from palimpsest.cell.work import CellWork
spec = StudyTask(preset("demo")).plan("pocket-qwen2-s--seed0")
check_memory(spec), suitable_workers(spec)
assert "transformers" not in sys.modules, "a command that starts workers has no use for it"
work = CellWork(spec)
assert work.nets([work.base]).stack == 1 and work.nets.stacked
assert "transformers.modeling_utils" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_changed_weight_is_noticed(tmp_path, monkeypatch):
    shutil.copytree(POCKET_ROOT / "qwen2-s", tmp_path / "qwen2-s")
    monkeypatch.setattr(sources, "POCKET_ROOT", tmp_path)
    pocket_folder("pocket/qwen2-s")
    weights = tmp_path / "qwen2-s" / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    with pytest.raises(ModelError, match=r"qwen2-s/model\.safetensors"):
        pocket_folder("pocket/qwen2-s")


def test_names_families_and_gates_follow_the_paper():
    for spec, checkpoint in zip(POCKET, PAPER, strict=True):
        assert spec.family in checkpoint.lower().replace("qwen2.5", "qwen2").replace("-2", "2")
    assert [spec.gated for spec in POCKET] == [True] * 4 + [False] * 4 + [True]
    assert pocket_spec("qwen2-m") is pocket_spec("pocket/qwen2-m")
    assert (family_of("llama"), family_of("phi")) == ("smollm2", "phi")
    with pytest.raises(ModelError, match="pocket/qwen3-s"):
        pocket_folder("pocket/qwen3-s")
