"""What a checkpoint folder claims, refused before anything in it is built or run.

Only JSON files of bounded size, safetensors headers and names of files are read here. A folder that
wants code to run (pickles, ``auto_map``), points outside itself or asks for absurd sizes ends in
one ModelError.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from palimpsest.errors import ModelError
from palimpsest.files import read_object

SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
    "BOOL": 1,
}  # fmt: skip
"""Types of stored tensors, and the bytes of a value."""
CONFIG_LIMIT = 4 * 2**20  # bytes
TOKENIZER_LIMIT = INDEX_LIMIT = 128 * 2**20  # the largest known tokenizer.json has 34 MB
VOCABULARIES = ("tokenizer.json", "vocab.json", "tokenizer.model", "tekken.json", "vocab.txt")
TOKENIZER_FILES = (
    *VOCABULARIES, "tokenizer_config.json", "merges.txt", "added_tokens.json",
    "special_tokens_map.json", "chat_template.json", "chat_template.jinja",
)  # fmt: skip
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".distcp", ".joblib", ".npy", ".npz"}
# (word in the key of a config, largest whole number it may hold): beyond any published model, and
# small enough that even an empty skeleton of it is built in seconds.
BOUNDS = (
    ("vocab", 8_000_000), ("expert", 4096), ("layer", 1024), ("head_dim", 2**16), ("head", 2**14),
    ("position", 2**28), ("size", 2**20), ("dim", 2**20), ("embd", 2**20), ("inner", 2**20),
    ("", 2**40),
)  # fmt: skip
MODULES_LIMIT = 2**16
# Keys that make transformers fetch or choose code, or read files the folder was not asked for.
CODE_KEYS = ("auto_map", "custom_pipelines", "transformers_weights", "fusion_config")
CHOICE_KEYS = ("attn_implementation", "experts_implementation")
FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
TEMPLATES = "additional_chat_templates"  # a folder that transformers reads beside chat_template
SEVERAL_LIMIT = 1000  # files that a checkpoint may have in one place
_PLAIN_NAME = re.compile(r"[\w][\w.-]{0,200}")
_HEX = re.compile(r"[0-9a-f]{40,64}")


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor as a file describes it; offset: of its first byte in the file."""

    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int


def read_header(path: Path) -> dict[str, Stored]:
    """Return the tensors of a safetensors file by name, without reading one.

    ``safetensors`` itself refuses a header that does not describe the rest of the file exactly: a
    length beyond the file or 100 MB, a gap, an overlap, bytes that do not match a shape, anything
    appended.
    """
    tensors: dict[str, Stored] = {}
    try:
        with safe_open(str(path), framework="numpy") as file:
            sized = []
            for name in file.offset_keys():
                part = file.get_slice(name)
                sized.append((name, part.get_dtype(), tuple(part.get_shape())))
        offset = path.stat().st_size
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{path}: is not a safetensors file ({str(error)[:200]}); it is damaged or forged, get "
            "it again"
        ) from error
    for name, dtype, shape in reversed(sized):  # without gaps to the end of the file
        if dtype not in SIZES:
            raise ModelError(
                f"{path}: tensor {name[:80]!r} is {dtype}; expected one of {', '.join(SIZES)}; "
                "save the model as float32, float16 or bfloat16"
            )
        offset -= math.prod(shape) * SIZES[dtype]
        tensors[name] = Stored(dtype, shape, path, offset)
    return tensors


def file_in(folder: Path, name: str) -> Path | None:
    """Return the real path of a regular file of the folder, None when it has no such file."""
    if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name) or ".." in name:
        raise ModelError(f"{folder}: names a file {str(name)[:80]!r}; expected a plain file name")
    path = folder / name
    if not path.is_symlink() and not path.exists():
        return None
    real = _real(path, folder)
    if not os.path.isfile(real):  # False, too, where the system does not let us look
        raise ModelError(f"{path}: is not a regular file; get the checkpoint again")
    return real


def holds_adapter(folder: Path) -> bool:
    """Tell an adapter folder from a whole model; a folder with both is refused."""
    if file_in(folder, "adapter_config.json") is None:
        return False
    if file_in(folder, "model.safetensors") or file_in(folder, "model.safetensors.index.json"):
        raise ModelError(
            f"{folder}: holds both an adapter (adapter_config.json) and a whole model; expected "
            "one of them; move the adapter into a folder of its own"
        )
    _check_links(folder)
    return True


def _check_links(folder: Path) -> None:
    """Refuse a link out of the folder, even one to a file that no model needs: it is digested."""
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink():
            _real(entry, folder)


def _real(path: Path, folder: Path) -> Path:
    """Return where a path leads; a link out of the checkpoint's folder is refused.

    A snapshot in a Hugging Face cache links to the blobs of its repository, or to those that
    repositories share.
    """
    try:
        real, folder = path.resolve(), folder.resolve()
    except (OSError, RuntimeError) as error:  # a loop of links
        raise ModelError(f"{path}: is a link that leads nowhere; get the file again") from error
    allowed, repository = [folder], folder.parent.parent
    if folder.parent.name == "snapshots" and _HEX.fullmatch(folder.name):
        shared = repository.name.startswith("models--")
        allowed += [repository / "blobs", *([repository.parent / "blobs"] if shared else [])]
    if not any(real.is_relative_to(parent) for parent in allowed):
        raise ModelError(
            f"{path}: is a link to {real}, outside the checkpoint folder; copy the file there if "
            "you trust it"
        )
    return real


def read_json(folder: Path, name: str, limit: int = CONFIG_LIMIT) -> dict[str, Any] | None:
    """Return a JSON object of the folder, None when there is no such file."""
    path = file_in(folder, name)
    return None if path is None else read_object(path, limit, ModelError)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the vetted ``config.json`` of a folder, without keys that choose an implementation."""
    _check_links(folder)
    where, config = folder / "config.json", read_json(folder, "config.json")
    if config is None:
        inside = len(list(folder.glob("*/config.json")))
        raise ModelError(
            f"{folder}: has no config.json, and {inside} folders with one; expected a checkpoint "
            "in Hugging Face layout; name one of them, or save the model with save_pretrained"
        )
    numbers = []
    for key, value in _walk(where, config):
        _check_entry(where, key, value)
        if type(value) is int:
            numbers.append((key, value))
    layers, experts = (
        max((value for key, value in numbers if word in key), default=1)
        for word in ("layer", "expert")
    )
    _check_count(where, "layers times experts", max(layers, 1) * max(experts, 1), MODULES_LIMIT)
    kind, architectures = config.get("model_type"), config.get("architectures")
    named = isinstance(architectures, list) and all(isinstance(a, str) for a in architectures)
    if not architectures or not named or not isinstance(kind, str):
        raise ModelError(
            f"{where}: has model_type {kind!r} and architectures {architectures!r}; expected for "
            "example 'llama' and ['LlamaForCausalLM']; save the model again with save_pretrained"
        )
    if config.get("is_encoder_decoder"):
        raise ModelError(f"{where}: is an encoder-decoder; expected a causal language model")
    return {key: value for key, value in config.items() if key.lstrip("_") not in CHOICE_KEYS}


def _walk(where: Path, value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield every (key, value) of a JSON value; what stands in a list has the list's key."""
    if depth > 16:
        raise ModelError(f"{where}: is nested more than 16 deep; get it again")
    inside: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        inside = list(value.items())
    elif isinstance(value, list):
        inside = [(key, inner) for inner in value]
    for name, inner in inside:
        yield name, inner
        yield from _walk(where, inner, name, depth + 1)


def _check_entry(where: Path, key: str, value: Any) -> None:
    kernel = key.lstrip("_") in CHOICE_KEYS and "/" in str(value)
    if (key in CODE_KEYS and value) or kernel:
        raise ModelError(
            f"{where}: {key} asks for code or files of the checkpoint's own ({str(value)[:80]}); "
            "expected what transformers has built in; no code of a checkpoint is ever run"
        )
    if type(value) is int:
        _check_count(where, key, abs(value), next(bound for word, bound in BOUNDS if word in key))


def _check_count(where: Path, what: str, count: int, limit: int) -> None:
    if count > limit:
        raise ModelError(
            f"{where}: {what}: {str(count)[:40]} found; expected at most {limit}; do not use this "
            "checkpoint, or remove what the model does not need"
        )


def check_tokenizer(folder: Path) -> bool:
    """Tell whether the folder has a tokenizer, refusing one that is oversized or wants code."""
    present = {name: path for name in TOKENIZER_FILES if (path := file_in(folder, name))}
    for path in (*present.values(), *_templates(folder)):
        _check_count(path, "bytes", path.stat().st_size, TOKENIZER_LIMIT)
    settings = read_json(folder, "tokenizer_config.json", TOKENIZER_LIMIT) or {}
    where = folder / "tokenizer_config.json"
    _check_entry(where, "auto_map", settings.get("auto_map"))
    # transformers would read another file in the place of tokenizer.json, by its own version.
    files = settings.get("fast_tokenizer_files")
    if files not in (None, [], ["tokenizer.json"]):
        raise ModelError(
            f"{where}: fast_tokenizer_files names {str(files)[:80]}; expected tokenizer.json "
            "alone; remove that key"
        )
    return any(name in present for name in VOCABULARIES)


def _templates(folder: Path) -> list[Path]:
    """Return the further chat templates of a folder; what leads out of it is refused."""
    inside = folder / TEMPLATES
    if not inside.is_symlink() and not inside.is_dir():
        return []
    paths = [_real(path, folder) for path in (inside, *inside.iterdir())][1:]
    _check_count(inside, "files", len(paths), SEVERAL_LIMIT)
    return [path for path in paths if path.is_file()]


def read_weights(folder: Path, single: str = "model.safetensors") -> dict[str, Stored]:
    """Return every tensor of the folder's safetensors file or shards, by name."""
    whole = file_in(folder, single)
    if whole is not None:
        return read_header(whole)
    where = folder / f"{single}.index.json"
    index = read_json(folder, where.name, INDEX_LIMIT)
    if index is None:
        pickled = [path.name for path in folder.iterdir() if path.suffix in PICKLES]
        raise ModelError(
            f"{folder}: has no {single} and no index of shards, but {len(pickled)} pickled files "
            f"({', '.join(sorted(pickled)[:3])}), which can run any code when read; if you trust "
            "them, load them with their own library and save the model with save_pretrained"
        )
    mapped = index.get("weight_map")
    if not isinstance(mapped, dict) or not all(isinstance(file, str) for file in mapped.values()):
        raise ModelError(f"{where}: has no weight_map from tensors to files; get the file again")
    tensors: dict[str, Stored] = {}
    for name in sorted(set(mapped.values())):
        shard = file_in(folder, name) if name.endswith(".safetensors") else None
        if shard is None:
            raise ModelError(f"{where}: names the shard {name[:80]!r}, which is not there; get it")
        header = read_header(shard)
        if twice := sorted(header.keys() & tensors.keys()):
            raise ModelError(f"{shard}: tensor {twice[0]!r} is in another shard too; get it again")
        tensors |= header
    return tensors
