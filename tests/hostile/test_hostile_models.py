"""A checkpoint that is broken or means harm ends in one paragraph, and nothing of it has run."""

import json
import os
import pickle
import shutil
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from palimpsest.errors import ModelError
from palimpsest.models import inspect_folder, skeleton
from palimpsest.models import load as loading
from palimpsest.models.inspect_folder import read_header
from palimpsest.models.load import load, load_config, load_tokenizer, resolve


@pytest.fixture
def folder(tiny_checkpoint, tmp_path):
    """A good checkpoint of one's own to spoil."""
    return Path(shutil.copytree(tiny_checkpoint("smollm2-s"), tmp_path / "model"))


@pytest.fixture
def canary(tmp_path):
    """A file that exists only if code of a checkpoint ran."""
    path = tmp_path / "canary"
    yield path
    assert not path.exists(), "code of the checkpoint ran"


@pytest.fixture
def nothing_built(monkeypatch):
    """Weights are neither read nor allocated, and no model is built, not even on paper."""

    def built(*_, **__):
        pytest.fail("the model was built before it was refused")

    for place in (skeleton, loading):
        monkeypatch.setattr(place, "read_tensors", built)
    monkeypatch.setattr(AutoModelForCausalLM, "from_config", built)


@pytest.fixture
def nothing_read(monkeypatch):
    """Weights are neither read nor allocated; their shape may be worked out on paper."""
    for place in (skeleton, loading):
        monkeypatch.setattr(place, "read_tensors", lambda *_: pytest.fail("weights were read"))


def refused(name, *words, **options):
    """Load, expecting a refusal: one paragraph that holds the words."""
    with pytest.raises(ModelError) as caught:
        load(str(name), **options)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 1500
    for word in words:
        assert word in message
    return message


def edit(folder, file, **changes):
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def forge(path, header, data=b"", length=None):
    """Write a safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    claimed = len(text) if length is None else length
    path.write_bytes(struct.pack("<Q", claimed) + text + data)


class Bomb:
    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return (os.system, (f"touch {self.canary}",))


# ---------------------------------------------------------------- code


def test_the_canary_would_sing(tmp_path):
    """The bomb works: whoever unpickles it leaves the file that the tests below look for."""
    pickle.loads(pickle.dumps(Bomb(tmp_path / "canary")))
    assert (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    "file", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "model.ckpt", "model.pkl"]
)
def test_pickled_weights_are_refused_unread(folder, canary, nothing_built, file):
    (folder / "model.safetensors").unlink()
    (folder / file).write_bytes(pickle.dumps(Bomb(canary)))
    refused(folder, "pickled", file, "save_pretrained", "if you trust the file")


def test_a_zipped_pickle_is_refused_unread(folder, canary, nothing_built):
    (folder / "model.safetensors").unlink()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb(canary)))
    refused(folder, "pickled")


def test_a_pickle_called_safetensors_is_refused_unread(folder, canary, nothing_built):
    (folder / "model.safetensors").write_bytes(pickle.dumps(Bomb(canary)))
    refused(folder, "model.safetensors")


def test_pickles_beside_safetensors_are_never_opened(folder, canary):
    for file in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", ".metadata"):
        (folder / file).write_bytes(pickle.dumps(Bomb(canary)))
    (folder / "__0_0.distcp").write_bytes(pickle.dumps(Bomb(canary)))
    assert load(str(folder)).parameters > 0


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"auto_map": {"AutoModelForCausalLM": "evil.Evil"}}),
        ("config.json", {"auto_map": {"AutoConfig": "somebody/repo--evil.Evil"}}),
        ("config.json", {"text_config": {"auto_map": {"AutoModel": "evil.Evil"}}}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}}),
        ("tokenizer_config.json", {"auto_map": ["evil.Evil", "evil.Evil"]}),
        ("config.json", {"transformers_weights": "pytorch_model.bin"}),
        ("config.json", {"custom_pipelines": {"x": {"impl": "evil.Evil"}}}),
        ("config.json", {"attn_implementation": "somebody/kernel"}),
        ("config.json", {"_attn_implementation": "somebody/kernel@main"}),
        ("config.json", {"experts_implementation": "somebody/kernel"}),
    ],
)
def test_code_asked_for_by_a_config_is_refused_unrun(folder, canary, nothing_built, file, change):
    (folder / "evil.py").write_text(
        f"open({str(canary)!r}, 'w').close()\n"
        "from transformers import LlamaConfig\n"
        "class Evil(LlamaConfig): pass\n"
    )
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(canary)))
    edit(folder, file, **change)
    refused(folder, file, next(iter(change)).replace("text_config", "auto_map"))
    reader = load_tokenizer if file == "tokenizer_config.json" else load_config
    with pytest.raises(ModelError):
        reader(str(folder))


def test_generation_code_in_the_folder_does_not_run(folder, canary):
    (folder / "custom_generate").mkdir()
    code = f"open({str(canary)!r}, 'w').close()\ndef generate(*a, **k): pass\n"
    (folder / "custom_generate" / "generate.py").write_text(code)
    (folder / "__init__.py").write_text(code)
    assert load(str(folder)).parameters > 0


def test_a_chat_template_is_never_rendered(folder, canary):
    evil = "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ x.y.z(1) }}"
    edit(folder, "tokenizer_config.json", chat_template=evil)
    assert load(str(folder)).parameters > 0


def test_a_pickled_adapter_is_refused_unread(folder, tmp_path, canary):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "r": 4, "base_model_name_or_path": str(folder)}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    (adapter / "adapter_model.bin").write_bytes(pickle.dumps(Bomb(canary)))
    refused(adapter, "pickled", "adapter_model.bin")


def test_the_base_an_adapter_names_is_checked_like_any_other(folder, tmp_path, canary):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "r": 4, "base_model_name_or_path": str(folder)}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    save_file({"x.lora_A.weight": torch.ones(4, 4)}, adapter / "adapter_model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(canary)))
    refused(adapter, "pickled")


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_link_out_of_the_folder_is_refused(folder, tmp_path, nothing_built, file):
    shutil.move(folder / file, tmp_path / "elsewhere")
    (folder / file).symlink_to(tmp_path / "elsewhere")
    refused(folder, file, "outside the checkpoint folder")


def test_a_stray_link_out_of_the_folder_is_refused_too(folder, nothing_built):
    (folder / "notes.txt").symlink_to("/etc/passwd")
    refused(folder, "/etc/passwd", "outside the checkpoint folder")


def test_a_link_inside_the_folder_is_fine(folder):
    (folder / "weights").mkdir()
    shutil.move(folder / "model.safetensors", folder / "weights" / "x")
    (folder / "model.safetensors").symlink_to("weights/x")
    assert load(str(folder)).parameters > 0


def test_a_forged_cache_cannot_link_beyond_its_blobs(folder, tmp_path, nothing_built):
    repository = tmp_path / "models--a--b"
    snapshot = repository / "snapshots" / ("0" * 40)
    shutil.copytree(folder, snapshot)
    secret = tmp_path / "secret"
    shutil.move(snapshot / "model.safetensors", secret)
    (repository / "blobs").mkdir()
    (repository / "blobs" / "x").symlink_to(secret)  # a blob that is itself a link
    (snapshot / "model.safetensors").symlink_to("../../blobs/x")
    refused(snapshot, "outside the checkpoint folder")


def test_links_in_a_circle_are_refused(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("model.safetensors")
    refused(folder, "model.safetensors")


def test_a_pipe_in_place_of_a_file_is_refused_without_waiting(folder):
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    refused(folder, "config.json", "not a regular file")


def test_a_folder_in_place_of_a_file_is_refused(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").mkdir()
    refused(folder, "tokenizer.json", "not a regular file")


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "x"])
def test_shards_named_outside_the_folder_are_refused(folder, tmp_path, nothing_built, shard):
    shutil.move(folder / "model.safetensors", tmp_path / "secret.safetensors")
    index = {"metadata": {}, "weight_map": {"model.norm.weight": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, shard)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"a": 3}}])
def test_an_index_without_a_map_is_refused(folder, index):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "weight_map")


def test_a_missing_shard_is_named(folder, nothing_read):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    names = read_header(folder / "model-00001-of-00002.safetensors")
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00002.safetensors")}
    index["weight_map"]["lm_head.weight"] = "model-00002-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "model-00002-of-00002.safetensors", "get the missing ones")


def test_a_tensor_in_two_shards_is_refused(folder, nothing_read):
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    shutil.copy(folder / "a.safetensors", folder / "b.safetensors")
    names = list(read_header(folder / "a.safetensors"))
    index = {"weight_map": {name: "ab"[n % 2] + ".safetensors" for n, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "another shard")


@pytest.mark.parametrize(
    ("file", "word"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "has no model.safetensors"),
        ("tokenizer.json", "has no tokenizer"),
    ],
)
def test_a_missing_file_is_named(folder, file, word):
    (folder / file).unlink()
    refused(folder, word)


def test_an_empty_folder_is_refused(tmp_path):
    refused(tmp_path, "has no")


def test_a_folder_with_both_adapter_and_model_is_refused(folder):
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="both an adapter"):
        resolve(str(folder))


# ---------------------------------------------------------------- safetensors headers


def header_of(folder):
    data = (folder / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


@pytest.mark.parametrize("length", [2**63, 2**40, 2**20])
def test_a_header_longer_than_its_file_is_refused(folder, nothing_built, length):
    forge(folder / "model.safetensors", {}, b"\0" * 64, length=length)
    refused(folder, "header", "damaged or forged")


def test_an_oversized_header_is_refused_even_in_a_file_that_holds_it(folder, nothing_built):
    with open(folder / "model.safetensors", "wb") as file:  # a hole, no bytes on the disk
        file.write(struct.pack("<Q", 2**33))
        file.truncate(2**33 + 8)
    refused(folder, "header too large")


@pytest.mark.parametrize(
    "text", [b"", b"not json", b"[1, 2]", b"\xff\xfe", b"[" * 100_000, b'{"a": 1}', b'{"a": {}}']
)
def test_a_header_that_is_no_header_is_refused(folder, nothing_built, text):
    forge(folder / "model.safetensors", text)
    refused(folder, "model.safetensors")


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -100, -1])
def test_a_truncated_file_is_refused(folder, nothing_built, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(folder, "model.safetensors")


def test_something_appended_is_refused(folder, nothing_built):
    with open(folder / "model.safetensors", "ab") as file:
        file.write(b"PK\x03\x04 a second file in the first")
    refused(folder, "file not fully covered")


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.update(data_offsets=[0, 256]),
        lambda e: e.update(data_offsets=[e["data_offsets"][0], 2**60]),
        lambda e: e.update(data_offsets=[-256, 0]),
        lambda e: e.update(data_offsets=[0]),
        lambda e: e.update(data_offsets="0:256"),
        lambda e: e.update(shape=[2**40, 2**40]),
        lambda e: e.update(shape=[-1, -64]),
        lambda e: e.update(shape=[True] * 3),
        lambda e: e.update(shape=[1] * 40),
        lambda e: e.update(shape=[64.0]),
        lambda e: e.update(dtype="F128"),
        lambda e: e.update(dtype=None),
        lambda e: e.pop("shape"),
    ],
)
def test_an_entry_that_lies_is_refused(folder, nothing_built, change):
    header, data = header_of(folder)
    change(header["model.norm.weight"])
    forge(folder / "model.safetensors", header, data)
    refused(folder, "model.safetensors", "is not a safetensors file")


def test_a_name_that_stands_twice_hides_nothing(folder, nothing_built):
    """The last entry counts, and with it the tensors no longer fill the file."""
    header, data = header_of(folder)
    text = json.dumps(header)
    begin, _ = header["model.norm.weight"]["data_offsets"]
    entry = header["model.norm.weight"] | {"shape": [32], "data_offsets": [begin, begin + 128]}
    again = json.dumps({"model.norm.weight": entry})
    forge(folder / "model.safetensors", (text[:-1] + "," + again[1:]).encode(), data)
    refused(folder, "is not a safetensors file")


def test_more_dimensions_than_any_model_has_are_refused(folder, nothing_built):
    header, data = header_of(folder)
    header["model.norm.weight"]["shape"] += [1] * 40
    forge(folder / "model.safetensors", header, data)
    refused(folder, "model.norm.weight", "41 dimensions; expected at most 8")


def test_every_cut_and_every_flipped_header_byte_is_refused_or_harmless(tmp_path):
    """What passes the checks describes the same tensors or others that fill the file exactly."""
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}, path)
    whole = path.read_bytes()
    for keep in range(len(whole)):
        path.write_bytes(whole[:keep])
        with pytest.raises(ModelError):
            read_header(path)
    for place in range(len(whole) - 32):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            found = read_header(path)
        except ModelError:
            continue
        assert len(found) == 2


# ---------------------------------------------------------------- weights against the config


def respoil(folder, change):
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_wrong_shape_is_named_before_reading(folder, nothing_read):
    name = "model.layers.0.mlp.up_proj.weight"
    respoil(folder, lambda s: s.update({name: torch.ones(3, 5)}))
    refused(folder, name, "[3, 5]", "[168, 64]")


def test_a_config_of_another_size_is_refused_before_reading(folder, nothing_read):
    edit(folder, "config.json", hidden_size=128)
    refused(folder, "different models")


def test_missing_tensors_are_named_before_reading(folder, nothing_read):
    respoil(folder, lambda s: s.pop("model.layers.1.mlp.up_proj.weight"))
    refused(folder, "missing tensors: model.layers.1.mlp.up_proj.weight")


def test_a_config_with_more_layers_than_the_file_is_refused(folder, nothing_read):
    edit(folder, "config.json", num_hidden_layers=9)
    refused(folder, "missing tensors", "model.layers.3.")


def test_a_config_with_fewer_layers_than_the_file_is_refused(folder, nothing_read):
    edit(folder, "config.json", num_hidden_layers=2)
    refused(folder, "unknown tensors", "model.layers.2.")


def test_weights_stored_as_whole_numbers_are_refused(folder, nothing_read):
    respoil(folder, lambda s: s.update({"model.norm.weight": torch.ones(64, dtype=torch.int32)}))
    refused(folder, "model.norm.weight", "I32", "F32")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_that_are_not_finite_are_named(folder, value, dtype):
    def spoil(state):
        state["model.layers.1.self_attn.v_proj.weight"][3, 5] = value

    respoil(folder, spoil)
    refused(folder, "model.layers.1.self_attn.v_proj.weight", "NaN or infinite", dtype=dtype)


def test_weights_too_large_for_the_dtype_asked_for_are_refused(folder):
    respoil(folder, lambda s: s["model.norm.weight"].mul_(1e6))
    assert load(str(folder)).parameters > 0
    refused(folder, "model.norm.weight", dtype="float16")


def test_finite_weights_with_predictions_that_are_not_are_refused(folder):
    respoil(folder, lambda s: s["model.norm.weight"].fill_(3e38))
    refused(folder, "predictions are not finite")


# ---------------------------------------------------------------- configs


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"x"', "\xff", "[" * 100_000, "1" * 10_000])
def test_a_config_that_is_not_a_json_object_is_refused(folder, nothing_built, text):
    (folder / "config.json").write_text(text, encoding="latin-1")
    refused(folder, "config.json")


def test_an_oversized_config_is_refused(folder, nothing_built):
    (folder / "config.json").write_bytes(b" " * (inspect_folder.CONFIG_LIMIT + 1))
    refused(folder, "config.json", "bytes; expected at most")


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 10**12},
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": 10**30},
        {"num_hidden_layers": -(10**9)},
        {"vocab_size": 10**11},
        {"intermediate_size": 2**60},
        {"intermediate_size": [2**60, 2**60]},
        {"num_attention_heads": 10**7},
        {"max_position_embeddings": 2**62},
        {"num_local_experts": 10**8},
        {"num_hidden_layers": 1024, "num_experts": 4096},
        {"text_config": {"num_hidden_layers": 10**9}},
        {"some_new_number": 2**61},
    ],
)
def test_absurd_numbers_are_refused_before_anything_is_built(folder, nothing_built, change):
    edit(folder, "config.json", **change)
    refused(folder, "expected at most")


def test_a_config_that_asks_for_terabytes_is_refused_before_allocation(folder, nothing_read):
    """Within every single bound, 26 TB in all."""
    edit(folder, "config.json", hidden_size=2**15, intermediate_size=2**17, num_hidden_layers=400)
    refused(folder, "parameters", "GiB")


def test_a_config_nested_too_deep_is_refused(folder, nothing_built):
    deep = {}
    for _ in range(50):
        deep = {"x": deep}
    edit(folder, "config.json", extra=deep)
    refused(folder, "nested")


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": None},
        {"architectures": []},
        {"architectures": "LlamaForCausalLM"},
        {"architectures": [3]},
        {"model_type": None},
        {"model_type": 7},
    ],
)
def test_a_config_without_an_architecture_is_refused(folder, nothing_built, change):
    edit(folder, "config.json", **change)
    refused(folder, "names no architecture")


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("bert", "BertForMaskedLM"),
        ("bert", "BertModel"),
        ("llama", "LlamaForSequenceClassification"),
        ("llama", "LlamaModel"),
        ("clip", "CLIPModel"),
        ("never-heard-of", "NeverHeardOfForCausalLM"),
        ("__class__", "__class__"),
    ],
)
def test_what_is_no_causal_language_model_is_refused(folder, nothing_built, kind, architecture):
    edit(folder, "config.json", model_type=kind, architectures=[architecture])
    refused(folder, architecture, "expected a causal language model")


def test_an_encoder_decoder_is_refused(folder, nothing_built):
    edit(folder, "config.json", is_encoder_decoder=True)
    refused(folder, "encoder-decoder")


def test_an_encoder_that_calls_itself_causal_is_found_out(folder, byte_tokenizer, tmp_path):
    """BERT has a causal class too; without ``is_decoder`` it reads the answer it has to predict."""
    from transformers import BertConfig, BertLMHeadModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=257, intermediate_size=64, **sizes, is_decoder=False)
    BertLMHeadModel(config).save_pretrained(tmp_path / "bert")
    byte_tokenizer.save_pretrained(tmp_path / "bert")
    refused(tmp_path / "bert", "predictions change with the token that comes after")


@pytest.mark.parametrize(
    "change",
    [
        {"num_attention_heads": 0},
        {"num_attention_heads": "four"},
        {"hidden_act": "os.system"},
        {"rope_parameters": {"rope_type": "__import__"}},
        {"rope_parameters": "x"},
        {"hidden_size": -64},
        {"hidden_size": None},
        {"vocab_size": 0},
        {"rms_norm_eps": "NaN"},
        {"id2label": 3},
        {"dtype": "__main__.x"},
        {"layer_types": ["x"]},
    ],
)
def test_numbers_that_do_not_fit_together_are_one_paragraph(folder, change):
    edit(folder, "config.json", **change)
    refused(folder, "expected")


@pytest.mark.parametrize("method", ["evil", None, 3, "torchao", "gguf"])
def test_an_unknown_quantisation_is_refused(folder, nothing_built, method):
    edit(folder, "config.json", quantization_config={"quant_method": method})
    refused(folder, "quantised", "dequantise")


def test_a_quantised_model_this_machine_cannot_read_is_refused(folder):
    edit(folder, "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    refused(folder, "quantised checkpoint")


# ---------------------------------------------------------------- tokenizers


def test_a_million_added_tokens_are_refused(folder, nothing_built):
    tokens = ",".join(f'{{"id":{n},"content":"{n}"}}' for n in range(1_000_000))
    (folder / "tokenizer.json").write_text(f'{{"added_tokens":[{tokens}]}}')
    refused(folder, "1000000 added tokens", "expected at most")


@pytest.mark.parametrize("key", ["added_tokens_decoder", "extra_special_tokens"])
def test_too_many_tokens_in_the_settings_are_refused(folder, nothing_built, key):
    edit(folder, "tokenizer_config.json", **{key: {str(n): "x" for n in range(60_000)}})
    refused(folder, "tokenizer_config.json", "60000", "expected at most")


def test_too_many_tokens_in_a_file_of_their_own_are_refused(folder, nothing_built):
    (folder / "added_tokens.json").write_text(json.dumps({str(n): n for n in range(60_000)}))
    refused(folder, "added_tokens.json", "60000", "expected at most")


def test_an_oversized_tokenizer_is_refused_unread(folder, nothing_built):
    with open(folder / "tokenizer.json", "wb") as file:
        file.truncate(2**34)
    refused(folder, "tokenizer.json", str(2**34))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model": {}}', '{"model": 3}'])
def test_a_tokenizer_that_is_none_is_refused(folder, text):
    (folder / "tokenizer.json").write_text(text)
    refused(folder, "tokenizer")


def test_a_tokenizer_file_named_outside_the_folder_is_refused(folder, nothing_built):
    names = ["../../etc/tokenizer.4.0.0.json"]
    edit(folder, "tokenizer_config.json", fast_tokenizer_files=names)
    refused(folder, "tokenizer.4.0.0.json", "plain file name")


def test_a_tokenizer_larger_than_the_embedding_is_refused(folder):
    tokenizer = load_tokenizer(str(folder))
    tokenizer.add_tokens(["<one more>"])
    tokenizer.save_pretrained(folder)
    refused(folder, "ids up to 257", "257 rows")


def test_a_token_with_an_id_far_outside_the_embedding_is_refused(folder):
    whole = json.loads((folder / "tokenizer.json").read_text())
    whole["model"]["vocab"]["~"] = 1_000_000
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    refused(folder, "ids up to 1000000")


# ---------------------------------------------------------------- adapters


@pytest.fixture
def adapter(folder, tmp_path):
    peft = pytest.importorskip("peft")
    path = tmp_path / "adapter"
    model = AutoModelForCausalLM.from_pretrained(folder)
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    peft.get_peft_model(model, config).save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"r": 10**9}, "rank"),
        ({"r": 0}, "rank"),
        ({"r": "4"}, "rank"),
        ({"rank_pattern": {"q_proj": 10**8}}, "rank"),
        ({"rank_pattern": 3}, "rank"),
        ({"r": 8}, "adapter"),
        ({"peft_type": "EVIL"}, "EVIL"),
        ({"peft_type": "PROMPT_TUNING"}, "PROMPT_TUNING"),
        ({"auto_mapping": {"base_model_class": "Popen", "parent_library": "subprocess"}}, "class"),
        ({"init_lora_weights": "pissa"}, "changes the base itself"),
        ({"target_modules": ["nothing_like_it"]}, "adapter"),
        ({"target_modules": ["v_proj"]}, "adapter"),
        ({"base_model_name_or_path": None}, "names no base"),
        ({"base_model_name_or_path": "../nowhere"}, "no such folder"),
    ],
)
def test_an_adapter_that_lies_is_refused(adapter, change, word):
    edit(adapter, "adapter_config.json", **change)
    refused(adapter, word)


def test_an_adapter_naming_itself_as_base_is_refused(adapter):
    edit(adapter, "adapter_config.json", base_model_name_or_path=str(adapter))
    refused(adapter, "is an adapter too")
    for reader in (load_config, load_tokenizer):
        with pytest.raises(ModelError, match="is an adapter too"):
            reader(str(adapter))


def test_an_adapter_that_lost_a_tensor_is_refused(adapter):
    state = load_file(adapter / "adapter_model.safetensors")
    state.pop(next(name for name in state if "lora_B" in name))
    save_file(state, adapter / "adapter_model.safetensors")
    refused(adapter, "missing")


def test_an_adapter_with_nan_is_refused(adapter):
    state = load_file(adapter / "adapter_model.safetensors")
    next(iter(state.values()))[0, 0] = float("nan")
    save_file(state, adapter / "adapter_model.safetensors")
    refused(adapter, "N")


# ---------------------------------------------------------------- GGUF


def gguf_bytes(tensors=0, entries=(), body=b"", version=3, magic=b"GGUF", count=None):
    packed = b"".join(
        struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value
        for key, kind, value in entries
    )
    head = struct.pack("<IQQ", version, tensors, len(entries) if count is None else count)
    return magic + head + packed + body


U32, TEXT, ARRAY = 4, 8, 9


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGUF",
        b"PK\x03\x04" + b"\0" * 100,
        gguf_bytes(version=99),
        gguf_bytes(tensors=2**60),
        gguf_bytes(count=2**60),
        gguf_bytes(count=5),
        gguf_bytes(entries=[(b"llama.block_count", U32, struct.pack("<I", 10**9))]),
        gguf_bytes(entries=[(b"llama.embedding_length", U32, struct.pack("<I", 2**31))]),
        gguf_bytes(entries=[(b"a", TEXT, struct.pack("<Q", 2**62))]),
        gguf_bytes(entries=[(b"a", ARRAY, struct.pack("<IQ", U32, 2**61))]),
        gguf_bytes(entries=[(b"a", ARRAY, struct.pack("<IQ", U32, 10**6))]),
        gguf_bytes(entries=[(b"a", ARRAY, struct.pack("<IQ", ARRAY, 10**6))]),
        gguf_bytes(entries=[(b"a", 77, b"")]),
        gguf_bytes(tensors=1, body=struct.pack("<Q1sI", 1, b"x", 2**31)),
        gguf_bytes(tensors=1, body=struct.pack("<Q1sIQIQ", 1, b"x", 1, 4, 0, 2**50)),
        gguf_bytes(entries=[(b"general.architecture", TEXT, struct.pack("<Q", 4) + b"evil")]),
    ],
)
def test_a_gguf_file_that_lies_is_refused(tmp_path, nothing_built, data):
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    refused(path, "x.gguf")


@pytest.mark.parametrize(
    ("key", "number"),
    [("block_count", 10**9), ("embedding_length", 2**31), ("feed_forward_length", 2**31)],
)
def test_absurd_numbers_of_a_gguf_file_are_refused(tmp_path, nothing_built, key, number):
    pytest.importorskip("gguf")
    path = tmp_path / "x.gguf"
    architecture = (b"general.architecture", TEXT, struct.pack("<Q", 5) + b"llama")
    entry = (f"llama.{key}".encode(), U32, struct.pack("<I", number))
    path.write_bytes(gguf_bytes(entries=[architecture, entry]))
    with pytest.raises(ModelError, match=f"{number}; expected at most"):
        load_config(str(path))
