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
from safetensors.torch import save_file
from tests.checkpoints import WEIGHTS, change_weights, copy_of, edit, saved
from transformers import AutoModelForCausalLM

from palimpsest.cell.frame import find_frame
from palimpsest.config.sections import Prompt
from palimpsest.errors import ModelError
from palimpsest.models import skeleton, stored, tokenizer
from palimpsest.models.checkpoint import checkpoint_digests, checkpoint_state, load, outline
from palimpsest.models.vet import CONFIG_LIMIT, read_header

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tiny_checkpoint, tmp_path):
    """A good checkpoint of one's own to spoil."""
    return copy_of(tiny_checkpoint("smollm2-s"), tmp_path, "model")


@pytest.fixture
def canary(tmp_path):
    """A file that exists only if code of a checkpoint ran."""
    path = tmp_path / "canary"
    yield path
    assert not path.exists(), "code of the checkpoint ran"


@pytest.fixture
def nothing_read(monkeypatch):
    """Weights are neither read nor allocated; their shape may be worked out on paper."""
    for module in (skeleton, stored):
        monkeypatch.setattr(module, "read_tensor", lambda *_: pytest.fail("weights were read"))


@pytest.fixture
def nothing_built(monkeypatch, nothing_read):
    """No model is built, not even on paper."""

    def built(*_, **__):
        pytest.fail("the model was built before it was refused")

    monkeypatch.setattr(AutoModelForCausalLM, "from_config", built)


def refused(place, *names, **options):
    """Load, expecting a refusal: one paragraph that names these files, keys or tensors."""
    with pytest.raises(ModelError) as caught:
        load(str(place), **options)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 1500
    assert all(name in message for name in names), message


class Bomb:
    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return (os.system, (f"touch {self.canary}",))


# ---------------------------------------------------------------- code


def test_the_canary_works(tmp_path):
    """Unpickling the bomb leaves the file that the tests below look for."""
    pickle.loads(pickle.dumps(Bomb(tmp_path / "canary")))
    assert (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    "file", [WEIGHTS, "pytorch_model.bin", "consolidated.00.pth", "model.ckpt", "model.pkl"]
)
def test_pickled_weights_are_refused_unread(folder, canary, nothing_built, file):
    (folder / WEIGHTS).unlink()
    with zipfile.ZipFile(folder / file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb(canary)))
    refused(folder, file)
    (folder / file).write_bytes(pickle.dumps(Bomb(canary)))
    refused(folder, file)


def test_code_beside_good_weights_is_never_opened(folder, canary):
    for file in ("pytorch_model.bin", "training_args.bin", ".metadata", "__0_0.distcp"):
        (folder / file).write_bytes(pickle.dumps(Bomb(canary)))
    code = f"open({str(canary)!r}, 'w').close()\ndef generate(*a, **k): pass\n"
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(code)
    (folder / "__init__.py").write_text(code)
    evil = "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ x.y.z(1) }}"
    edit(folder, "tokenizer_config.json", chat_template=evil)
    assert load(str(folder)).parameters > 0


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"auto_map": {"AutoModelForCausalLM": "evil.Evil"}}),
        ("config.json", {"text_config": {"auto_map": {"AutoModel": "evil.Evil"}}}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}}),
        ("config.json", {"transformers_weights": "pytorch_model.bin"}),
        ("config.json", {"custom_pipelines": {"x": {"impl": "evil.Evil"}}}),
        ("config.json", {"attn_implementation": "somebody/kernel"}),
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
    with pytest.raises(ModelError):
        outline(str(folder))


# ---------------------------------------------------------------- files


def move_out(folder, file):
    shutil.move(folder / file, folder.parent / "elsewhere")
    (folder / file).symlink_to(folder.parent / "elsewhere")


def replace(folder, file, make):
    (folder / file).unlink()
    make(folder / file)


def shard_map(folder, weight_map):
    """Have an index of shards in the place of the whole file, which becomes a.safetensors."""
    (folder / WEIGHTS).rename(folder / "a.safetensors")
    shutil.copy(folder / "a.safetensors", folder / "b.safetensors")
    names = list(read_header(folder / "a.safetensors"))
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map(names)}))


FILES = {
    "a link out of the folder": (lambda f: move_out(f, WEIGHTS), "elsewhere"),
    "a tokenizer that is a link": (lambda f: move_out(f, "tokenizer.json"), "elsewhere"),
    "a stray link": (lambda f: (f / "notes.txt").symlink_to("/etc/passwd"), "/etc/passwd"),
    "a circle": (lambda f: replace(f, WEIGHTS, lambda p: p.symlink_to(WEIGHTS)), WEIGHTS),
    "a pipe": (lambda f: replace(f, "config.json", os.mkfifo), "config.json"),
    "a folder": (lambda f: replace(f, "tokenizer.json", Path.mkdir), "tokenizer.json"),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), WEIGHTS),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json"),
    "an adapter too": (lambda f: (f / "adapter_config.json").write_text("{}"), "adapter_config"),
    "a shard above": (
        lambda f: shard_map(f, lambda names: dict.fromkeys(names, "../a.safetensors")), "../a",
    ),
    "a shard anywhere": (
        lambda f: shard_map(f, lambda names: dict.fromkeys(names, "/etc/passwd")), "/etc/passwd",
    ),
    "a shard of another kind": (lambda f: shard_map(f, lambda n: dict.fromkeys(n, "x")), "'x'"),
    "a missing shard": (
        lambda f: shard_map(f, lambda n: dict.fromkeys(n, "c.safetensors")), "c.safetensors",
    ),
    "a tensor in two shards": (
        lambda f: shard_map(
            f, lambda names: {n: "ab"[i % 2] + ".safetensors" for i, n in enumerate(names)}
        ),
        "b.safetensors",
    ),
    "a list for a map": (lambda f: shard_map(f, lambda _: []), "weight_map"),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_not_where_it_should_be_is_refused(folder, nothing_built, case):
    spoil, name = FILES[case]
    spoil(folder)
    refused(folder, name)


def test_folders_without_a_checkpoint_are_refused(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "config.json")
    refused(folder.parent, "1 folders")


def test_a_link_inside_the_folder_is_fine(folder):
    (folder / "weights").mkdir()
    shutil.move(folder / WEIGHTS, folder / "weights" / "x")
    (folder / WEIGHTS).symlink_to("weights/x")
    assert load(str(folder)).parameters > 0


def test_a_forged_cache_cannot_link_beyond_its_blobs(folder, tmp_path, nothing_built):
    repository = tmp_path / "models--a--b"
    snapshot = repository / "snapshots" / ("0" * 40)
    shutil.copytree(folder, snapshot)
    secret = tmp_path / "secret"
    shutil.move(snapshot / WEIGHTS, secret)
    (repository / "blobs").mkdir()
    (repository / "blobs" / "x").symlink_to(secret)  # a blob that is itself a link
    (snapshot / WEIGHTS).symlink_to("../../blobs/x")
    refused(snapshot, "secret")


# ---------------------------------------------------------------- safetensors headers


def forge(path, header, data=b"", length=None):
    """Write a safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    claimed = len(text) if length is None else length
    path.write_bytes(struct.pack("<Q", claimed) + text + data)


def header_of(folder):
    data = (folder / WEIGHTS).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def entry(folder, **changes):
    """Change what the header says of one tensor; None takes a key out."""
    header, data = header_of(folder)
    told = header["model.norm.weight"] | changes
    header["model.norm.weight"] = {key: value for key, value in told.items() if value is not None}
    forge(folder / WEIGHTS, header, data)


def twice(folder):
    """The last entry of a name counts, and with it the tensors no longer fill the file."""
    header, data = header_of(folder)
    begin, _ = header["model.norm.weight"]["data_offsets"]
    told = header["model.norm.weight"] | {"shape": [32], "data_offsets": [begin, begin + 128]}
    again = json.dumps({"model.norm.weight": told})
    forge(folder / WEIGHTS, (json.dumps(header)[:-1] + "," + again[1:]).encode(), data)


def hole(folder):
    """A header of 8 GB in a file that holds it, without a byte of it on the disk."""
    with open(folder / WEIGHTS, "wb") as file:
        file.write(struct.pack("<Q", 2**33))
        file.truncate(2**33 + 8)


def bytes_of(change):
    return lambda f: (f / WEIGHTS).write_bytes(change((f / WEIGHTS).read_bytes()))


TEXTS = [b"", b"not json", b"[1, 2]", b"\xff\xfe", b"[" * 100_000, b'{"a": 1}', b'{"a": {}}']
HEADERS = [
    *(lambda f, n=n: forge(f / WEIGHTS, {}, b"\0" * 64, length=n) for n in (2**63, 2**40, 2**20)),
    *(lambda f, text=text: forge(f / WEIGHTS, text) for text in TEXTS),
    *(bytes_of(lambda data, keep=keep: data[:keep]) for keep in (0, 4, 8, 100, -100, -1)),
    bytes_of(lambda data: data + b"PK\x03\x04 a second file in the first"),
    hole,
    twice,
    lambda f: entry(f, data_offsets=[0, 256]),
    lambda f: entry(f, data_offsets=[0, 2**60]),
    lambda f: entry(f, data_offsets=[-256, 0]),
    lambda f: entry(f, data_offsets=[0]),
    lambda f: entry(f, shape=[2**40, 2**40]),
    lambda f: entry(f, shape=[True] * 3),
    lambda f: entry(f, shape=[64.0]),
    lambda f: entry(f, dtype="F128"),
    lambda f: entry(f, shape=None),
]


@pytest.mark.parametrize("spoil", HEADERS)
def test_a_header_that_lies_is_refused(folder, nothing_built, spoil):
    spoil(folder)
    refused(folder, WEIGHTS)


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


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("model.layers.0.mlp.up_proj.weight", lambda s, n: s.update({n: torch.ones(3, 5)})),
        ("model.layers.1.mlp.up_proj.weight", lambda s, n: s.pop(n)),
        ("model.norm.weight", lambda s, n: s.update({n: torch.ones(64, dtype=torch.int32)})),
        ("model.stranger.weight", lambda s, n: s.update({n: torch.ones(2)})),
        ("layers.0.mlp.up_proj.weight", lambda s, n: s.update({n: s["model." + n].clone()})),
    ],
    ids=["shape", "missing", "integers", "unknown", "under two names"],
)
def test_a_tensor_that_does_not_fit_is_named_before_reading(folder, nothing_read, name, change):
    change_weights(folder, lambda state: change(state, name))
    refused(folder, name)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 128},
        {"num_hidden_layers": 2},
        # Within every single bound, 26 TB in all.
        {"hidden_size": 2**15, "intermediate_size": 2**17, "num_hidden_layers": 400},
    ],
)
def test_a_config_of_another_size_is_refused_before_reading(folder, nothing_read, change):
    edit(folder, "config.json", **change)
    refused(folder, "config.json")


def test_a_head_that_differs_from_the_embedding_it_is_tied_to_is_refused(folder):
    """One module has one tensor for both: the second would silently replace the first."""
    good = load(str(folder))
    table = "model.embed_tokens.weight"
    change_weights(folder, lambda s: s.update({"lm_head.weight": s[table].clone()}))
    assert torch.equal(load(str(folder)).weights[table], good.weights[table])
    change_weights(folder, lambda s: s["lm_head.weight"].mul_(2))
    refused(folder, "lm_head.weight", table)
    with pytest.raises(ModelError):
        checkpoint_state(str(folder), good)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(float("nan"), "float32"), (float("-inf"), "bfloat16"), (3.4e38, "bfloat16")],
)
def test_weights_that_are_not_finite_are_named(folder, value, dtype):
    name = "model.layers.1.self_attn.v_proj.weight"
    expected = outline(str(folder))
    change_weights(folder, lambda state: state[name][3, 5].fill_(value))
    refused(folder, name, dtype=dtype)
    with pytest.raises(ModelError, match=name):
        dict(checkpoint_state(str(folder), expected, dtype=dtype))


# ---------------------------------------------------------------- configs


DEEP = '{"x": ' * 50 + "{}" + "}" * 50
LONG = " " * (CONFIG_LIMIT + 1)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '"x"', "\xff", "[" * 100_000, "1" * 10_000, DEEP, LONG]
)
def test_a_config_that_is_no_json_object_of_sensible_size_is_refused(folder, nothing_built, text):
    (folder / "config.json").write_text(text, encoding="latin-1")
    refused(folder, "config.json")


ABSURD = (
    {"hidden_size": 10**12},
    {"num_hidden_layers": 10**9},
    {"vocab_size": 10**11},
    {"intermediate_size": [2**60, 2**60]},
    {"num_local_experts": 10**8},
    {"num_hidden_layers": 1024, "num_experts": 4096},
    {"text_config": {"num_hidden_layers": 10**9}},
    {"some_new_number": 2**61},
)
NO_LANGUAGE_MODEL = (
    *({"architectures": value} for value in (None, [], "LlamaForCausalLM", [3])),
    {"is_encoder_decoder": True},
    {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
    {"architectures": ["LlamaModel"]},
    {"model_type": "never-heard-of", "architectures": ["NeverHeardOfForCausalLM"]},
    {"model_type": "__class__", "architectures": ["__class__"]},
    *({"quantization_config": {"quant_method": m}} for m in ("evil", None, "gptq", "gguf")),
)
NO_FIT = (
    {"num_attention_heads": "four"},
    {"hidden_act": "os.system"},
    {"rope_parameters": {"rope_type": "__import__"}},
    {"hidden_size": None},
    {"rms_norm_eps": "NaN"},
    {"dtype": "__main__.x"},
    {"layer_types": ["x"]},
)


@pytest.mark.parametrize("change", [*ABSURD, *NO_LANGUAGE_MODEL])
def test_a_config_that_asks_for_the_absurd_or_another_kind_is_refused_unbuilt(
    folder, nothing_built, change
):
    edit(folder, "config.json", **change)
    refused(folder, str(folder))


@pytest.mark.parametrize("change", NO_FIT)
def test_a_config_whose_values_do_not_fit_together_is_refused(folder, change):
    edit(folder, "config.json", **change)
    refused(folder, str(folder))


def test_an_encoder_that_calls_itself_causal_is_found_out(byte_tokenizer, tmp_path):
    """BERT has a causal class too; without ``is_decoder`` it reads the answer it has to predict."""
    from transformers import BertConfig, BertLMHeadModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=257, intermediate_size=64, **sizes, is_decoder=False)
    refused(saved(tmp_path / "bert", BertLMHeadModel(config), byte_tokenizer), "causal")


# ---------------------------------------------------------------- tokenizers


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model": {}}', '{"model": 3}', 2**34])
def test_a_tokenizer_that_is_none_or_oversized_is_refused(folder, text):
    with open(folder / "tokenizer.json", "w") as file:
        file.truncate(text) if isinstance(text, int) else file.write(text)
    refused(folder, "tokenizer")


def test_a_tokenizer_that_reaches_beyond_its_folder_or_its_embedding_is_refused(folder):
    for name in ("../../etc/tokenizer.4.0.0.json", "tokenizer.4.0.0.json"):
        edit(folder, "tokenizer_config.json", fast_tokenizer_files=["tokenizer.json", name])
        refused(folder, name)
    edit(folder, "tokenizer_config.json", fast_tokenizer_files=[])
    whole = json.loads((folder / "tokenizer.json").read_text())
    whole["model"]["vocab"]["~"] = 1_000_000
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    refused(folder, "1000000", "257 rows")


@pytest.mark.parametrize("link", ["file", "folder"])
def test_a_chat_template_is_not_read_from_beyond_the_folder(folder, tmp_path, nothing_built, link):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "other.jinja").write_text("private")
    inside = folder / "additional_chat_templates"
    if link == "folder":
        inside.symlink_to(tmp_path / "secret")
    else:
        inside.mkdir()
        (inside / "other.jinja").symlink_to(tmp_path / "secret" / "other.jinja")
    refused(folder, "additional_chat_templates", "secret")


def test_a_further_chat_template_of_the_folder_itself_is_read_and_digested(folder):
    before = checkpoint_digests(str(folder))
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ messages }}")
    assert "tool_use" in load(str(folder)).tokenizer.chat_template
    after = checkpoint_digests(str(folder))
    assert (before.weights, before.files) == (after.weights, before.files) != after


DOUBLE = {"type": "Replace", "pattern": {"String": "e"}, "content": "ee"}


def test_a_tokenizer_that_takes_any_memory_is_not_built(folder, monkeypatch):
    monkeypatch.setattr(tokenizer, "TRIAL_SECONDS", 3)
    edit(folder, "tokenizer.json", normalizer={"type": "Sequence", "normalizers": [DOUBLE] * 40})
    refused(folder, "tokenizer.json", "3 seconds")


def test_one_tokenizer_is_tried_once_wherever_it_lies(folder, tmp_path, monkeypatch):
    outline(str(folder))
    monkeypatch.setattr(tokenizer.subprocess, "run", lambda *_, **__: pytest.fail("tried again"))
    outline(str(shutil.copytree(folder, tmp_path / "copy")))


REACHING = "{{ messages.__class__.__mro__[1].__subclasses__() }}"


@pytest.mark.parametrize("template", [REACHING, "{% for %}"])
def test_a_chat_template_reaches_nothing(folder, template):
    edit(folder, "tokenizer_config.json", chat_template=template)
    with pytest.raises(ModelError) as caught:
        find_frame(outline(str(folder)).tokenizer, Prompt(chat=True))
    assert len(str(caught.value)) < 1_000


# ---------------------------------------------------------------- adapters


@pytest.fixture
def adapter(folder, make_adapter):
    return make_adapter(folder, target_modules=["q_proj"])[0]


@pytest.mark.parametrize(
    "change",
    [
        {"r": 10**9},
        {"layer_replication": [[0, 1]] * 20_000},
        {"monteclora_config": {"num_samples": 1000, "buffer_size": 5000}},
        {"rank_pattern": {"q_proj": 10**8}},
        {"r": 8},
        {"peft_type": "PROMPT_TUNING"},
        {"auto_mapping": {"base_model_class": "Popen", "parent_library": "subprocess"}},
        {"init_lora_weights": "pissa"},
        {"target_modules": ["v_proj"]},
        {"base_model_name_or_path": None},
        {"base_model_name_or_path": "../nowhere"},
    ],
)
def test_an_adapter_that_lies_is_refused(adapter, change):
    edit(adapter, "adapter_config.json", **change)
    place = "nowhere" if "../nowhere" in change.values() else str(adapter)
    refused(adapter, place)


def test_a_link_out_of_an_adapters_folder_is_not_followed(adapter, tmp_path):
    (tmp_path / "secret").write_text("x")
    (adapter / "notes.txt").symlink_to(tmp_path / "secret")
    for read in (load, checkpoint_digests):
        with pytest.raises(ModelError, match="secret"):
            read(str(adapter))


def test_an_adapter_naming_itself_as_base_is_refused(adapter):
    edit(adapter, "adapter_config.json", base_model_name_or_path=str(adapter))
    refused(adapter, str(adapter))
    with pytest.raises(ModelError):
        outline(str(adapter))


def test_an_adapter_that_lost_a_tensor_or_holds_nan_is_refused(adapter):
    file = "adapter_model.safetensors"
    good = (adapter / file).read_bytes()
    change_weights(adapter, lambda s: s.pop(next(name for name in s if "lora_B" in name)), file)
    refused(adapter, str(adapter))
    (adapter / file).write_bytes(good)
    change_weights(adapter, lambda s: next(iter(s.values()))[0, 0].fill_(float("nan")), file)
    refused(adapter, str(adapter))


def test_pickles_of_an_adapter_and_of_its_base_are_refused_unread(adapter, folder, canary):
    tensors = adapter / "adapter_model.safetensors"
    tensors.rename(adapter / "kept")
    (adapter / "adapter_model.bin").write_bytes(pickle.dumps(Bomb(canary)))
    refused(adapter, "adapter_model.bin")
    (adapter / "kept").rename(tensors)
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(canary)))
    refused(adapter, "pytorch_model.bin")
