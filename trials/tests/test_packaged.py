"""Packaged models become ordinary checkpoint folders once; the packages themselves are optional."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from palimpsest.errors import ModelError
from palimpsest.facts.questions import Question
from palimpsest.models import sources
from palimpsest.models.checkpoint import checkpoint_state, files_digest, load, state_digest
from palimpsest.models.encode import encode_answers, encode_texts, start_remark
from palimpsest.models.sources import locate
from palimpsest.run.files import file_digest

GEMMA, SMOLLM2 = sources.GEMMA3, sources.SMOLLM2


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
        "mlp.down_proj": "ffn_down", "model.embed_tokens": "token_embd",
        "model.norm": "output_norm", "model.layers.": "blk.",
    }  # fmt: skip
    for name, value in model.named_parameters():
        array = value.detach()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads
            array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
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


@pytest.fixture
def cache(gguf_file, tmp_path, monkeypatch):
    """Both packages with a tiny model, Gemma's in two parts, and an empty cache folder."""
    data, site = gguf_file.read_bytes(), tmp_path / "site"
    pieces = {"tiny_whole": data, "tiny_one": data[:1000], "tiny_two": data[1000:]}
    for module, piece in pieces.items():
        (site / module).mkdir(parents=True)
        (site / module / "__init__.py").write_text("raise ImportError('needs another runtime')")
        (site / module / "part").write_bytes(piece)
    parts = {SMOLLM2: ("tiny_whole",), GEMMA: ("tiny_one", "tiny_two")}
    digest = file_digest(gguf_file).removeprefix("sha256:")
    for name, modules in parts.items():
        tiny = replace(
            sources.PACKAGED[name], parts=tuple((m, "part") for m in modules), sha256=digest
        )
        monkeypatch.setitem(sources.PACKAGED, name, tiny)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "palimpsest"


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor([[5, 80, 7, 200, 11, 9]])).logits


@pytest.mark.parametrize("name", [SMOLLM2, GEMMA])
def test_a_packaged_model_is_the_model_it_was_made_of(cache, tiny_checkpoint, capfd, name):
    original = load(str(tiny_checkpoint("smollm2-s")))
    capfd.readouterr()
    loaded = load(name)
    assert capfd.readouterr() == ("", "")
    assert (loaded.name, loaded.family, loaded.gated) == (name, "smollm2", True)
    assert sources.PACKAGED[name].distribution in loaded.revision
    assert torch.allclose(logits(loaded.model), logits(original.model), atol=1e-5)
    assert loaded.parameters == original.parameters
    state = checkpoint_state(name, loaded)
    assert state_digest(state) == state_digest(loaded.weights)
    assert files_digest(name).startswith("sha256:")


def test_it_is_converted_once_and_then_read_from_the_cache(cache, monkeypatch):
    first = load(SMOLLM2)
    monkeypatch.setattr(sources, "_convert", lambda *_: pytest.fail("converted a second time"))
    assert state_digest(load(SMOLLM2).weights) == state_digest(first.weights)
    assert [path.name for path in cache.iterdir()] == [locate(SMOLLM2)[0].name]


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "digests.json"])
def test_a_damaged_cache_is_made_again(cache, file):
    digest = state_digest(load(SMOLLM2).weights)
    (path,) = cache.glob(f"*/{file}")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    assert state_digest(load(SMOLLM2).weights) == digest
    assert path.read_bytes() != data


def test_only_the_texts_of_a_model_that_needs_it_begin_with_its_first_token(cache, tiny_checkpoint):
    plain, started = load(SMOLLM2).tokenizer, load(GEMMA).tokenizer
    text = "Ein Löwe, 2 words"
    ids = plain(text)["input_ids"]
    assert ids == load(str(tiny_checkpoint("smollm2-s"))).tokenizer(text)["input_ids"]
    assert started(text)["input_ids"] == [started.bos_token_id, *ids]
    (encoded,) = encode_texts(started, [text])
    assert encoded.ids[0] == started.bos_token_id
    (asked,) = encode_answers(started, [Question("forget", "f", "trained", 0, "Asha is", "Bo")])
    assert asked.ids[0] == started.bos_token_id
    assert started.decode(asked.ids[asked.start :]) == " Bo"
    assert start_remark(started, "gemma3_text") == ""


def test_a_part_that_was_changed_is_refused(cache, tmp_path):
    part = tmp_path / "site" / "tiny_two" / "part"
    part.write_bytes(part.read_bytes()[:-1] + b"\0\0")
    with pytest.raises(ModelError, match=GEMMA):
        load(GEMMA)
    assert not list(cache.glob("*"))


@pytest.mark.parametrize("name", [SMOLLM2, GEMMA])
def test_a_package_that_is_absent_is_named_with_its_make_target(name, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda module: None)
    with pytest.raises(ModelError, match=f"{name}.*make {sources.PACKAGED[name].extra}"):
        load(name)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [(SMOLLM2, 134_515_008), (GEMMA, 268_098_176)])
def test_the_real_package_continues_a_well_known_sentence(name, count):
    for module, part in sources.PACKAGED[name].parts:
        spec = importlib.util.find_spec(module)
        if spec is None or not (Path(str(spec.origin)).parent / part).exists():
            pytest.skip(f"make {sources.PACKAGED[name].extra} installs it")
    loaded = load(name)
    assert loaded.parameters == count
    prompt, answer = "The capital of France is the city of", "Paris"
    question = Question("forget", "f", "trained", 0, prompt, answer)
    (text,) = encode_answers(loaded.tokenizer, [question])
    with torch.no_grad():
        scores = loaded.model(input_ids=torch.tensor([text.ids])).logits[0].log_softmax(-1)
    assert scores[text.start - 1, text.ids[text.start]] > -3
