"""A checkpoint of llama2.c with its tokenizer behind it, as a Llama of transformers.

Layout: seven int32 (width, hidden width, layers, heads, key-value heads, vocabulary, length), then
float32 tensors in the order of ``_shapes``, then two tables of rotary angles, which follow from the
rest. Then the tokenizer: the length of its longest piece, and score, size and bytes of each piece.
"""

import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from palimpsest.errors import ModelError
from palimpsest_trials.models.encoders import SPACE, by_score, check_ids

BOS, EOS, BYTES = 1, 2, 3
"""Ids of the first piece of a text, of its end, and of byte 0."""
OWN = BYTES + 256
"""The first id of a piece that is text."""


def convert(weights: bytes, packages: Path, out: Path) -> None:
    """Write config, weights and tokenizer, the latter checked against llama2.c's own way."""
    config, state, end = read_checkpoint(weights)
    (out / "config.json").write_text(json.dumps(config, indent=1))
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    pieces, scores = read_pieces(weights[end:])
    ids = write_tokenizer(pieces, scores, config["max_position_embeddings"], out)
    check_ids(out, by_score(ids, scores, SPACE, BYTES), [BOS])


def read_checkpoint(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor], int]:
    """Return the config, the weights under transformers' names, and where the tokenizer begins."""
    width, hidden, layers, heads, groups, vocabulary, length = struct.unpack("<7i", data[:28])
    if vocabulary <= 0:
        raise ModelError("llama2.c: an output matrix of its own found; expected a tied one")
    head = width // heads
    at, state = 28, {}
    for name, shape in _shapes(width, hidden, layers, groups * head, vocabulary).items():
        size = math.prod(shape)
        values = torch.from_numpy(np.frombuffer(data, "<f4", size, at).reshape(shape).copy())
        at += 4 * size
        if "{}" not in name:
            state[name] = values
            continue
        for layer, value in enumerate(values):
            turned = name.endswith(("q_proj.weight", "k_proj.weight"))
            state[name.format(layer)] = _halves(value, head) if turned else value.clone()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "max_position_embeddings": length,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "dtype": "float32",
    }
    return config, state, at + 4 * length * head


def _shapes(
    width: int, hidden: int, layers: int, keys: int, vocabulary: int
) -> dict[str, tuple[int, ...]]:
    """Return the shape of every stored tensor in order; those with {} are stacked over layers."""
    at = "model.layers.{}."
    return {
        "model.embed_tokens.weight": (vocabulary, width),
        f"{at}input_layernorm.weight": (layers, width),
        f"{at}self_attn.q_proj.weight": (layers, width, width),
        f"{at}self_attn.k_proj.weight": (layers, keys, width),
        f"{at}self_attn.v_proj.weight": (layers, keys, width),
        f"{at}self_attn.o_proj.weight": (layers, width, width),
        f"{at}post_attention_layernorm.weight": (layers, width),
        f"{at}mlp.gate_proj.weight": (layers, hidden, width),
        f"{at}mlp.down_proj.weight": (layers, width, hidden),
        f"{at}mlp.up_proj.weight": (layers, hidden, width),
        "model.norm.weight": (width,),
    }


def _halves(weight: Tensor, head: int) -> Tensor:
    """Return rows of queries or keys with both parts of a rotary pair half a head apart.

    llama2.c has them side by side, transformers in two halves.
    """
    pairs = weight.unflatten(0, (-1, head // 2, 2))
    return pairs.transpose(1, 2).flatten(0, 2).contiguous()


def read_pieces(data: bytes) -> tuple[list[bytes], list[float]]:
    """Return the pieces of the tokenizer and their scores, by id."""
    pieces, scores, at = [], [], 4
    while at < len(data):
        score, size = struct.unpack_from("<fi", data, at)
        pieces.append(data[at + 8 : at + 8 + size])
        scores.append(score)
        at += 8 + size
    return pieces, scores


def write_tokenizer(
    pieces: Sequence[bytes], scores: Sequence[float], length: int, out: Path
) -> dict[str, int]:
    """Write the fast tokenizer; return the ids of the pieces that are text.

    A merge for every way to cut a piece in two, best score first, joins in the order in which
    llama2.c does. ``<unk>`` is no added token: where a text spells it out, it is text.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    text = [piece.decode().replace(" ", SPACE) for piece in pieces[OWN:]]
    ids = {piece: OWN + n for n, piece in enumerate(text)}  # of equal pieces the later is meant
    named = {"<unk>": 0, "<s>": BOS, "</s>": EOS}
    named |= {f"<0x{byte:02X}>": BYTES + byte for byte in range(256)}
    named |= {piece if ids[piece] == n else f"<unused_{n}>": n for n, piece in enumerate(text, OWN)}
    merges = sorted(
        (-scores[n], ids[piece[:cut]], ids[piece[cut:]], piece[:cut], piece[cut:])
        for piece, n in ids.items()
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    )
    pairs = [(left, right) for *_, left, right in merges]
    fast = Tokenizer(
        models.BPE(vocab=named, merges=pairs, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    fast.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    fast.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    marks = [AddedToken(mark, special=True, normalized=False) for mark in ("<s>", "</s>")]
    fast.add_special_tokens(marks)
    fast.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    fast.save(str(out / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": length,
        "clean_up_tokenization_spaces": False,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(about, indent=1))
    return ids
