"""The nine pocket models load like any checkpoint, and are what was shipped.

The shipped files are compared with their digests, so what was true of them when they were baked is
not tested again.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from dev.bake_pocket import file_digests, tensor_names
from transformers import AutoModelForCausalLM, AutoTokenizer

from palimpsest.errors import ModelError
from palimpsest.facts.general import general_pieces
from palimpsest.models import sources
from palimpsest.models.checkpoint import load, outline
from palimpsest.models.sources import (
    PAPER,
    POCKET,
    POCKET_DIGESTS,
    POCKET_NAMES,
    POCKET_ROOT,
    PocketSpec,
    family_of,
    pocket_folder,
    pocket_spec,
)


@pytest.mark.parametrize("spec", POCKET, ids=lambda spec: spec.folder)
def test_it_loads_like_any_checkpoint(spec: PocketSpec) -> None:
    folder = pocket_folder(spec.name)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokens = AutoTokenizer.from_pretrained(folder)
    assert (model.config.model_type, model.config.vocab_size) == (spec.model_type, len(tokens))
    loaded = load(spec.name)
    ids = torch.tensor([tokens("The guild of").input_ids])
    assert torch.equal(loaded.model(input_ids=ids).logits, model(input_ids=ids).logits)
    assert loaded.embedding == (next(iter(loaded.weights)), "lm_head.weight")
    # Read without the module, and yet its tensors in its order.
    state = model.state_dict()
    assert list(loaded.weights) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in loaded.weights.items())
    assert loaded.parameters == outline(spec.name).parameters == model.num_parameters()
    assert (loaded.gated, loaded.family) == (spec.gated, spec.family)
    # AutoTokenizer picks another class for some families; the ids must not depend on it.
    for text in (*general_pieces("pocket", 20, "test"), "  Ünï 漢字 🦞\n\tx", " Vekadun"):
        assert loaded.tokenizer(text).input_ids == tokens(text).input_ids


def test_the_files_are_the_ones_whose_digests_were_shipped() -> None:
    assert file_digests(POCKET_ROOT) == json.loads(POCKET_DIGESTS.read_text("utf-8"))
    sizes = [file.stat().st_size for file in POCKET_ROOT.rglob("*") if file.is_file()]
    assert sum(sizes) <= 16 * 10**6


def test_the_names_are_those_of_the_modules() -> None:
    assert tensor_names(POCKET_ROOT) == json.loads(POCKET_NAMES.read_text("utf-8"))


def test_a_first_step_imports_no_module_of_transformers() -> None:
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


def test_a_changed_weight_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(POCKET_ROOT / "qwen2-s", tmp_path / "qwen2-s")
    monkeypatch.setattr(sources, "POCKET_ROOT", tmp_path)
    pocket_folder("pocket/qwen2-s")
    weights = tmp_path / "qwen2-s" / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    with pytest.raises(ModelError, match=r"qwen2-s/model\.safetensors"):
        pocket_folder("pocket/qwen2-s")


def test_names_families_and_gates_follow_the_paper() -> None:
    for spec, checkpoint in zip(POCKET, PAPER, strict=True):
        assert spec.family in checkpoint.lower().replace("qwen2.5", "qwen2").replace("-2", "2")
    assert [spec.gated for spec in POCKET] == [True] * 4 + [False] * 4 + [True]
    assert pocket_spec("qwen2-m") is pocket_spec("pocket/qwen2-m")
    assert (family_of("llama"), family_of("phi")) == ("smollm2", "phi")
    with pytest.raises(ModelError, match="pocket/qwen3-s"):
        pocket_folder("pocket/qwen3-s")
