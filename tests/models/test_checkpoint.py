"""A checkpoint's weights are read from its files as loading would give them, and have a digest."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_load import other_family
from tests.checkpoints import change_weights, copy_of, edit
from transformers import AutoModelForCausalLM

from palimpsest.errors import DriftError, ModelError
from palimpsest.models.checkpoint import (
    StoredState,
    checkpoint_digests,
    checkpoint_state,
    load,
    outline,
    state_digest,
    stored_state,
)
from palimpsest.models.net import Nets


def sharded(folder, tmp_path):
    other = copy_of(folder, tmp_path, "shards")
    (other / "model.safetensors").unlink()
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(other, max_shard_size="200KB")
    assert len(list(other.glob("*.safetensors"))) > 1
    return other


def same(found, place, **options):
    """Tell whether a state is that of the loaded model, bit for bit, in its order."""
    expected = load(str(place), **options).model.state_dict()
    assert list(found) == list(expected)
    return all(
        found[name].dtype == value.dtype and torch.equal(found[name], value)
        for name, value in expected.items()
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["qwen2-s", "smollm2-s", "pythia-s", "gpt2-s", "olmo2-s"])
def test_a_pocket_model_and_a_folder_are_read_as_they_would_be_loaded(tiny_checkpoint, name, dtype):
    for place in (f"pocket/{name}", str(tiny_checkpoint(name))):
        state = checkpoint_state(place, outline(place), dtype=dtype)
        assert isinstance(state, StoredState)
        assert same(state, place, dtype=dtype)


def test_shards_are_read_as_the_whole(tiny_checkpoint, tmp_path):
    folder = tiny_checkpoint("olmo2-s")
    shards = sharded(folder, tmp_path)
    state = checkpoint_state(str(shards), load(str(folder)))
    assert isinstance(state, StoredState) and same(state, folder) and same(state, shards)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kept", ["model.embed_tokens.weight", "lm_head.weight", "both"])
def test_tied_names_share_what_the_file_holds(tiny_checkpoint, tmp_path, tied, kept):
    folder = copy_of(tiny_checkpoint("smollm2-s"), tmp_path)
    edit(folder, "config.json", tie_word_embeddings=tied)
    table, head = "model.embed_tokens.weight", "lm_head.weight"

    def keep(state):
        values = {table: state.pop(table)}
        values[head] = values[table].clone() if tied else values[table] + 1
        state |= {name: values[name] for name in ((table, head) if kept == "both" else (kept,))}

    change_weights(folder, keep)
    if not tied and kept != "both":
        with pytest.raises(ModelError, match=head if kept == table else table):
            checkpoint_state(str(folder), outline(str(folder)))
        return
    found = checkpoint_state(str(folder), outline(str(folder)))
    assert same(found, folder)
    assert torch.equal(found[table], found[head]) == tied


def test_names_of_older_checkpoints_are_understood(tiny_checkpoint, tmp_path):
    """GPT-2 on the hub has no ``transformer.`` before its names, and a mask among its weights."""
    folder = copy_of(tiny_checkpoint("gpt2-s"), tmp_path)
    state = load_file(folder / "model.safetensors")
    old = {name.removeprefix("transformer."): value for name, value in state.items()}
    old["h.0.attn.bias"] = torch.ones(1, 1, 4, 4)  # the causal mask, stored too
    save_file(old, folder / "model.safetensors", metadata={"format": "pt"})
    found = checkpoint_state(str(folder), outline(str(folder)))
    assert isinstance(found, StoredState) and same(found, folder)
    assert same(found, tiny_checkpoint("gpt2-s"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_is_merged(tiny_checkpoint, make_adapter, dtype):
    folder = str(tiny_checkpoint("qwen2-s"))
    adapter, _ = make_adapter(folder, target_modules=["q_proj", "down_proj"])
    found = checkpoint_state(str(adapter), outline(folder), dtype=dtype)
    assert same(found, adapter, dtype=dtype)
    edit(adapter, "adapter_config.json", base_model_name_or_path="gone/away")
    given = checkpoint_state(str(adapter), outline(folder), dtype=dtype, adapter_base=folder)
    assert state_digest(given) == state_digest(found)
    for other in (None, str(tiny_checkpoint("gpt2-s"))):  # gone, or of another architecture
        with pytest.raises(ModelError):
            load(str(adapter), base=other)


def test_tensors_that_transformers_joins_are_loaded(tmp_path, byte_tokenizer):
    other_family("mixtral", tmp_path, byte_tokenizer)
    found = checkpoint_state(str(tmp_path), outline(str(tmp_path)))
    assert not isinstance(found, StoredState) and same(found, tmp_path)


def test_a_tensor_that_was_read_does_not_change_with_its_file(tiny_checkpoint, tmp_path):
    folder = copy_of(tiny_checkpoint("qwen2-s"), tmp_path)
    loaded, path = load(str(folder)), folder / "model.safetensors"
    before = {name: value.clone() for name, value in loaded.weights.items()}
    stored = stored_state(path)
    first = stored["model.norm.weight"]
    with open(path, "r+b") as file:  # in place, as a mapped file would show
        file.seek(path.stat().st_size // 2)
        file.write(bytes(path.stat().st_size // 2))
    assert torch.equal(first, before["model.norm.weight"])
    assert state_digest(loaded.weights) == state_digest(before)
    with pytest.raises(DriftError):  # read when it is asked for, and another one now
        _ = stored["model.norm.weight"]


def test_a_student_takes_stored_weights_and_refuses_other_shapes(tiny_checkpoint, tmp_path):
    loaded = load(str(tiny_checkpoint("olmo2-s")))
    other = {name: value + 0.5 for name, value in loaded.model.state_dict().items()}
    save_file({name: value.clone() for name, value in other.items()}, tmp_path / "a.safetensors")
    net = Nets(loaded, stack=1).whole(stored_state(tmp_path / "a.safetensors"))
    assert all(torch.equal(value, other[name]) for name, value in net.state().items())
    name = next(iter(other))
    for wrong in (other | {name: torch.zeros(3)}, other | {"more": torch.zeros(3)}):
        save_file({k: value.clone() for k, value in wrong.items()}, tmp_path / "b.safetensors")
        with pytest.raises(ModelError):
            Nets(loaded, stack=1).whole(stored_state(tmp_path / "b.safetensors"))


def test_the_digest_of_weights_does_not_depend_on_the_files_they_are_in(tiny_checkpoint, tmp_path):
    folder = tiny_checkpoint("smollm2-s")
    found = checkpoint_digests(str(folder))
    other = copy_of(folder, tmp_path)
    change_weights(other, lambda state: None, note="x" * 100)
    assert checkpoint_digests(str(other)) == found
    assert checkpoint_digests(str(sharded(folder, tmp_path))).weights == found.weights


@pytest.mark.parametrize("change", ["precision", "tied", "unused", "prefix"])
def test_a_copy_stored_otherwise_has_the_same_digest_of_weights(tiny_checkpoint, tmp_path, change):
    folder = tiny_checkpoint("qwen2-s")
    state = load_file(folder / "model.safetensors")
    if change == "precision":
        state = {name: value.double() for name, value in state.items()}
    elif change == "tied":
        state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    elif change == "unused":
        state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    else:
        state = {name.removeprefix("model."): value for name, value in state.items()}
    other = copy_of(folder, tmp_path)
    save_file(state, other / "model.safetensors", metadata={"format": "pt"})
    assert checkpoint_digests(str(other)).weights == checkpoint_digests(str(folder)).weights


def test_digests_cover_values_config_and_tokenizer(tiny_checkpoint, tmp_path):
    folder = copy_of(tiny_checkpoint("qwen2-s"), tmp_path)
    whole = checkpoint_digests(str(folder)).weights
    change_weights(folder, lambda state: state["model.norm.weight"][0].add_(1e-3))
    assert checkpoint_digests(str(folder)).weights != whole
    before = checkpoint_digests(str(folder))
    for file in ("config.json", "tokenizer_config.json"):
        edit(folder, file, note=1)
        after = checkpoint_digests(str(folder))
        assert after.files != before.files and after.weights == before.weights
        before = after


def test_the_digest_of_an_adapter_covers_its_base(tiny_checkpoint, tmp_path, make_adapter):
    first, second = (str(tiny_checkpoint("qwen2-s", seed)) for seed in (0, 1))
    adapter, _ = make_adapter(first, target_modules=["q_proj"])
    own = checkpoint_digests(str(adapter))
    assert own.weights != checkpoint_digests(first).weights
    assert checkpoint_digests(str(adapter), first) == own
    other = checkpoint_digests(str(adapter), second)
    assert other.files != own.files and other.weights != own.weights
    base = Path(shutil.copytree(first, tmp_path / "base"))
    assert checkpoint_digests(str(adapter), str(base)) == own
    (base / "generation_config.json").write_text("{}")
    edited = checkpoint_digests(str(adapter), str(base))
    assert edited.weights == own.weights and edited.files != own.files
    copy = shutil.copytree(adapter, tmp_path / "again")
    (Path(copy) / "notes.txt").write_text("the same adapter")
    assert checkpoint_digests(str(copy)).weights == own.weights
