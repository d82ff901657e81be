"""A checkpoint loads as the model it is, from wherever it lies, and says what it is."""

import json
import shutil
import types
from pathlib import Path

import pytest
import torch
from tests.checkpoints import change_weights, copy_of, edit, saved
from transformers import AutoConfig, AutoModelForCausalLM

from palimpsest.errors import ModelError, PlanError
from palimpsest.models.checkpoint import check_compatible, load, outline, state_digest
from palimpsest.models.sources import Kind, find_kind

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


# ---------------------------------------------------------------- what comes back


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_is_the_model_and_the_tokenizer_in_it(tiny_checkpoint, byte_tokenizer, name):
    folder = tiny_checkpoint(name)
    loaded = load(str(folder))
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert torch.equal(logits(loaded.model), logits(plain))
    assert (loaded.family, loaded.gated) == FAMILIES[name]
    assert loaded.parameters == outline(str(folder)).parameters
    assert loaded.parameters == sum(value.numel() for value in plain.parameters())
    assert (loaded.revision, loaded.name) == ("", str(folder))
    # AutoTokenizer gives a Qwen2 folder normalization and splitting its file does not have.
    text = "x12 e\u0301, Añ\n\n  b"
    assert loaded.tokenizer(text)["input_ids"] == byte_tokenizer(text)["input_ids"]
    assert loaded.tokenizer.eos_token == byte_tokenizer.eos_token


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
    for model, tokenizer in ((given, None), (b"x", stored.tokenizer)):
        with pytest.raises(ModelError, match="load"):
            load(model, tokenizer=tokenizer)


def test_loading_is_silent_and_draws_no_random_numbers(tiny_checkpoint, capfd):
    folder = str(tiny_checkpoint("qwen2-s"))
    before = torch.random.get_rng_state()
    load(folder)
    assert torch.equal(before, torch.random.get_rng_state())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_dtype_is_the_one_asked_for_whatever_is_stored(tiny_checkpoint, tmp_path, dtype):
    stored = copy_of(tiny_checkpoint("smollm2-s"), tmp_path)
    AutoModelForCausalLM.from_pretrained(stored, dtype=torch.float16).save_pretrained(stored)
    model = load(str(stored), dtype=dtype).model
    assert {value.dtype for value in model.parameters()} == {getattr(torch, dtype)}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"dtype": "float16"}, ModelError),  # its gradients underflow
        ({"device": "abacus"}, PlanError),
        ({"device": "cuda:7"}, PlanError),
    ],
)
def test_an_option_that_does_not_apply_is_named(tiny_checkpoint, options, error):
    with pytest.raises(error, match=f"^{next(iter(options))}: "):
        load(str(tiny_checkpoint("qwen2-s")), **options)


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
    saved(folder, model, tokenizer)
    return model


@pytest.mark.parametrize("kind", ["mistral", "gemma2", "gemma3_text", "phi3", "qwen3", "mixtral"])
def test_families_beyond_the_papers_load_too(kind, tmp_path, byte_tokenizer):
    model = other_family(kind, tmp_path, byte_tokenizer)
    loaded = load(str(tmp_path))
    assert torch.equal(logits(loaded.model), logits(model))
    assert loaded.family == kind


def test_a_lost_tensor_is_noticed_where_stored_tensors_are_joined(tmp_path, byte_tokenizer):
    """Mixtral's experts are stored one by one and held as one; only loading tells what is lost."""
    other_family("mixtral", tmp_path, byte_tokenizer)
    lost = "model.norm.weight"
    change_weights(tmp_path, lambda state: state.pop(lost))
    with pytest.raises(ModelError, match=lost):
        load(str(tmp_path))


def test_a_state_digest_depends_on_every_part_and_not_on_order():
    state = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(1.5), "c": torch.empty(0)}
    digest = state_digest(state)
    assert digest.startswith("sha256:")
    assert state_digest(dict(reversed(state.items()))) == digest
    moved = state["a"].t().contiguous().t()
    assert not moved.is_contiguous() and state_digest(state | {"a": moved}) == digest
    for kind in (torch.float64, torch.bfloat16):  # which hold these values exactly
        assert state_digest(state | {"a": state["a"].to(kind)}) == digest
    for other in (
        {"a": state["a"], "B": state["b"], "c": state["c"]},
        state | {"a": state["a"].reshape(3, 2)},
        state | {"b": torch.nextafter(state["b"], torch.tensor(2.0))},
        state | {"c": torch.empty(0, 4)},
        {"a": state["a"], "b": state["b"]},
    ):
        assert state_digest(other) != digest


# ---------------------------------------------------------------- names


def test_names_lead_to_their_kind_of_source(tiny_checkpoint):
    kinds = {
        str(tiny_checkpoint("qwen2-s")): Kind.FOLDER,
        "pocket/qwen2-s": Kind.POCKET,
        "EleutherAI/pythia-410m": Kind.HUB,
        "gpt2": Kind.HUB,
    }
    assert {name: find_kind(name) for name in kinds} == kinds


@pytest.mark.parametrize("name", ["", "a/b/c", "/nothing/here", "a\0b", "../x", "pocket/llama-xl"])
def test_a_name_that_leads_nowhere_or_to_a_lone_file_is_refused(name, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    for refused in (name, str(tmp_path / "model.gguf")):
        with pytest.raises(ModelError):
            find_kind(refused)


def test_an_outline_needs_no_weights(tiny_checkpoint, tmp_path):
    folder = copy_of(tiny_checkpoint("gpt2-s"), tmp_path)
    (folder / "model.safetensors").unlink()
    found = outline(str(folder))
    assert found.config.model_type == "gpt2" and found.tokenizer.is_fast
    assert found.parameters == load(str(tiny_checkpoint("gpt2-s"))).parameters


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
    outline("somebody/model")
    assert not any("model.safetensors" in patterns for _, patterns in hub.asked)
    hub.asked.clear()
    loaded = load("somebody/model")
    assert loaded.revision == hub.commit
    expected = load(str(tiny_checkpoint("qwen2-s")))
    assert state_digest(loaded.weights) == state_digest(expected.weights)
    # The weights are asked for last, at the commit that was vetted.
    assert [revision for revision, _ in hub.asked] == [None, hub.commit]
    for _, patterns in hub.asked:
        for file in ("modeling.py", "pytorch_model.bin", "model.pt", "training_args.bin"):
            assert not any(Path(file).match(pattern) for pattern in patterns)


def test_a_cached_snapshot_loads_as_a_folder(hub):
    load("somebody/model")
    repository = hub.cache / "models--somebody--model"
    snapshot = repository / "snapshots" / hub.commit
    assert (snapshot / "model.safetensors").is_symlink()
    assert load(str(snapshot)).revision == ""
    # The same with blobs that repositories share.
    blob = (snapshot / "model.safetensors").resolve()
    shared = hub.cache / "blobs" / "ab" / blob.name
    shared.parent.mkdir(parents=True)
    blob.rename(shared)
    blob.symlink_to(Path("../../blobs/ab") / blob.name)
    assert load(str(snapshot)).parameters > 0


def test_a_hub_that_cannot_be_reached_is_one_clear_error():
    with pytest.raises(ModelError, match="somebody/model-that-is-not-cached") as caught:
        load("somebody/model-that-is-not-cached")
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- adapters


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
def test_an_adapter_is_merged_into_its_base(tiny_checkpoint, make_adapter, name, settings):
    folder = tiny_checkpoint(name)
    adapter, shell = make_adapter(folder, **settings)
    expected = logits(shell)
    base = load(str(folder))
    loaded = load(str(adapter))  # its own config names the folder
    assert torch.allclose(logits(loaded.model), expected, atol=1e-5)
    assert not torch.allclose(logits(base.model), expected, atol=1e-2)
    assert set(loaded.weights) == set(base.weights)
    assert all(value.requires_grad for value in loaded.model.parameters())
    check_compatible(base, loaded)


# ---------------------------------------------------------------- fitting together


def resized(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(300)
    model.save_pretrained(folder)


def retokenized(change):
    def apply(folder):
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        change(tokenizer)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))

    return apply


def configured(key, value):
    return lambda folder: edit(folder, "config.json", **{key: value})


def saved_after_use(folder):
    """The tokenizer stores how it was last called; the splitter's offsets change no token."""
    tokenizer = outline(str(folder)).tokenizer
    tokenizer(["a", "bcd"], padding=True, truncation=True, max_length=2)
    tokenizer.save_pretrained(folder)
    stored = json.loads((folder / "tokenizer.json").read_text())
    assert stored["truncation"]
    splitter = stored["pre_tokenizer"] | {"trim_offsets": False}
    edit(folder, "tokenizer.json", pre_tokenizer=splitter)


ROPE = {"rope_theta": 123.0, "rope_type": "default"}
MISFITS = [
    ("vocab_size", resized),
    ("rms_norm_eps", configured("rms_norm_eps", 0.01)),
    ("hidden_act", configured("hidden_act", "gelu")),
    ("rope_parameters", configured("rope_parameters", ROPE)),
    ("at id 64", retokenized(lambda t: t["model"]["vocab"].update({"a": 1, '"': 64}))),
    ("'The guild", retokenized(lambda t: t.update(normalizer={"type": "Lowercase"}))),
    ("256 tokens", retokenized(lambda t: t["model"]["vocab"].pop("~"))),
]


@pytest.mark.parametrize(("difference", "change"), MISFITS, ids=[name for name, _ in MISFITS])
def test_what_computes_or_splits_otherwise_does_not_fit(
    tiny_checkpoint, tmp_path, difference, change
):
    """All weights are scored in the base's module, which computes by the base's config."""
    folder = tiny_checkpoint("qwen2-s")
    copy = copy_of(folder, tmp_path)
    change(copy)
    with pytest.raises(ModelError, match=difference):
        check_compatible(outline(str(folder)), outline(str(copy)))


@pytest.mark.parametrize(("name", "key"), [("olmo2-s", "model_type"), ("qwen2-m", "hidden_size")])
def test_another_architecture_or_size_does_not_fit(tiny_checkpoint, name, key):
    with pytest.raises(ModelError, match=key):
        check_compatible(*(outline(str(tiny_checkpoint(one))) for one in ("qwen2-s", name)))


def test_what_changes_no_token_and_no_logit_fits(tiny_checkpoint, tmp_path):
    folder = tiny_checkpoint("qwen2-s")
    copy = copy_of(folder, tmp_path)
    edit(copy, "config.json", use_cache=False, eos_token_id=3, attention_dropout=0.1, note=1)
    saved_after_use(copy)
    check_compatible(outline(str(folder)), outline(str(copy)))
