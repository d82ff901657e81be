"""An 8-bit ONNX file of a Llama, as transformers wrote it, with config and tokenizer beside it.

Of protobuf only what initializers and nodes need is read, so that no further package is needed.
A matrix is W = (X_quantized − X_zero_point) · X_scale; which one it is, the name of the
``MatMulInteger`` node says that multiplies with it. The text of the model begins with the start
token of a message, which the package's tokenizer does not put there.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from palimpsest.errors import ModelError
from palimpsest_trials.models.encoders import by_rank, check_ids

TYPES = {1: "<f4", 2: "u1", 3: "i1", 6: "<i4", 7: "<i8", 9: "?", 10: "<f2"}
"""By ONNX's number of an element type."""
GRAPH, NODE, INITIALIZER = 7, 1, 5
MATRIX = re.compile(r"layers\.(\d+)/(self_attn|mlp)/(\w+_proj)")
LENGTH = 2048
"""Positions that the model is given; its config names more than it was trained on."""


@dataclass
class Node:
    """An operation: its type, its name, its inputs."""

    kind: str = ""
    name: str = ""
    inputs: list[str] = field(default_factory=list)


def convert(weights: bytes, packages: Path, out: Path) -> None:
    """Write config, weights and a tokenizer that starts every text, checked against a plain one."""
    package = packages / "package"
    config = json.loads((package / "config.json").read_text("utf-8"))
    config = {key: value for key, value in config.items() if key != "transformers_version"}
    config |= {"dtype": "float32", "max_position_embeddings": LENGTH}
    (out / "config.json").write_text(json.dumps(config, indent=1))
    save_file(read_state(weights), out / "model.safetensors", metadata={"format": "pt"})
    fast = json.loads((package / "tokenizer.json").read_text("utf-8"))
    about = json.loads((package / "tokenizer_config.json").read_text("utf-8"))
    start = about["bos_token"]
    first = fast["model"]["vocab"][start]
    text, mark = {"Sequence": {"id": "A", "type_id": 0}}, {"id": start, "type_id": 0}
    fast["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": mark}, text],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {start: {"id": start, "ids": [first], "tokens": [start]}},
    }
    (out / "tokenizer.json").write_text(json.dumps(fast, ensure_ascii=False), encoding="utf-8")
    (out / "tokenizer_config.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in fast["model"]["merges"])
    merges = [(left, right) for left, right in pairs]
    check_ids(out, by_rank(fast["model"]["vocab"], merges), [first])


def read_state(data: bytes) -> dict[str, Tensor]:
    """Return the weights under transformers' names."""
    values, nodes = read_graph(memoryview(data))

    def whole(name: str) -> Tensor:
        stored, zero, scale = (
            values[f"{name}_{part}"].astype(np.float32)
            for part in ("quantized", "zero_point", "scale")
        )
        return torch.from_numpy((stored - zero) * scale)

    embedding = "model.embed_tokens.weight"
    state = {
        name: torch.from_numpy(value.copy())
        for name, value in values.items()
        if name.endswith(".weight") and value.dtype == np.float32
    }
    state[embedding] = whole(embedding)
    for node in nodes:
        stems = [name.removesuffix("_quantized") for name in node.inputs if name in values]
        stems = [stem for stem in stems if f"{stem}_scale" in values]
        found = MATRIX.search(node.name)
        if node.kind != "MatMulInteger" or not stems:
            continue
        matrix = whole(stems[0]).T.contiguous()
        if found:
            state[f"model.layers.{found[1]}.{found[2]}.{found[3]}.weight"] = matrix
        elif not torch.allclose(matrix, state[embedding], atol=0.05):
            raise ModelError(f"{node.name}: an output matrix of its own found; expected a tied one")
    return state


def read_graph(data: memoryview) -> tuple[dict[str, NDArray[Any]], list[Node]]:
    """Return the initializers by name and the nodes of an ONNX model."""
    (graph,) = (value for number, value in _fields(data) if number == GRAPH)
    values, nodes = {}, []
    for number, value in _fields(graph):
        if number == INITIALIZER:
            name, array = _tensor(value)
            values[name] = array
        elif number == NODE:
            nodes.append(_node(value))
    return values, nodes


def _node(data: memoryview) -> Node:
    node = Node()
    for number, value in _fields(data):
        if number == 1:
            node.inputs.append(str(value, "utf-8"))
        elif number == 3:
            node.name = str(value, "utf-8")
        elif number == 4:
            node.kind = str(value, "utf-8")
    return node


def _tensor(data: memoryview) -> tuple[str, NDArray[Any]]:
    """Return name and values of an initializer: raw bytes, or a few numbers written out."""
    shape, kind, name = list[int](), 1, ""
    raw, written = memoryview(b""), list[int]()
    for number, value in _fields(data):
        if number == 1:
            shape += _numbers(value)
        elif number == 2:
            kind = value
        elif number == 5:
            written += _numbers(value)
        elif number == 8:
            name = str(value, "utf-8")
        elif number in (4, 9):  # floats written out have the same bytes
            raw = value
    values = np.frombuffer(raw, TYPES.get(kind, "u1")) if len(raw) else np.array(written)
    return name, values.reshape(shape)


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield number and value of every field of a protobuf message: integers, or bytes."""
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        size, value = {1: 8, 5: 4}.get(key & 7, 0), None
        if key & 7 == 0:
            value, at = _number(data, at)
        elif key & 7 == 2:
            size, at = _number(data, at)
        yield key >> 3, data[at : at + size] if value is None else value
        at += size


def _numbers(data: memoryview | int) -> list[int]:
    """Return the integers of a repeated field, packed or one by one."""
    if isinstance(data, int):
        return [data]
    found, at = [], 0
    while at < len(data):
        value, at = _number(data, at)
        found.append(value)
    return found


def _number(data: memoryview, at: int) -> tuple[int, int]:
    """Return the integer at a place, 7 bits a byte from the lowest on, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
