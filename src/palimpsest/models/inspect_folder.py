"""What a checkpoint folder holds, refused before anything in it is built or run.

Only JSON files of bounded size, safetensors headers and names of files are read here. A folder that
wants code to run (pickles, ``auto_map``), points outside itself or asks for absurd sizes ends in
one ModelError.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from palimpsest.errors import ModelError

MEGABYTE = 2**20
CONFIG_LIMIT, INDEX_LIMIT = 4 * MEGABYTE, 64 * MEGABYTE
VOCABULARY_LIMIT = 2_000_000
ADDED_TOKENS_LIMIT = 50_000  # the largest known tokenizers have a few thousand
VOCABULARIES = ("tokenizer.json", "vocab.json", "tokenizer.model", "tekken.json", "vocab.txt")
# Bytes each tokenizer file may have; the largest known tokenizer.json has 34 MB.
TOKENIZER_FILES: Mapping[str, int] = {
    "tokenizer.json": 128 * MEGABYTE,
    "tokenizer_config.json": 16 * MEGABYTE,
    **dict.fromkeys((*VOCABULARIES[1:], "merges.txt"), 64 * MEGABYTE),
    **dict.fromkeys(("added_tokens.json", "special_tokens_map.json"), 4 * MEGABYTE),
    **dict.fromkeys(("chat_template.json", "chat_template.jinja"), 4 * MEGABYTE),
}
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".distcp", ".joblib", ".npy", ".npz"}
# (word in the key of a config, largest whole number it may hold): beyond any published model, and
# small enough that even an empty skeleton of it is built in seconds.
BOUNDS = (
    ("vocab", 8_000_000), ("expert", 4096), ("layer", 1024), ("head_dim", 2**16), ("head", 2**14),
    ("position", 2**28), ("size", 2**20), ("dim", 2**20), ("embd", 2**20), ("inner", 2**20),
)  # fmt: skip
ANY_BOUND = 2**40
# Keys that make transformers fetch or choose code, or read files the folder was not asked for.
CODE_KEYS = ("auto_map", "custom_pipelines", "transformers_weights", "fusion_config")
CHOICE_KEYS = ("attn_implementation", "experts_implementation")
_PLAIN_NAME = re.compile(r"[\w][\w.-]{0,200}")
_HEX = re.compile(r"[0-9a-f]{40,64}")
FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
DIMENSIONS_LIMIT = 8


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor as a file describes it."""

    dtype: str
    shape: tuple[int, ...]
    file: Path


def file_in(folder: Path, name: str) -> Path | None:
    """Return the real path of a regular file of the folder, None when it has no such file."""
    if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name) or ".." in name:
        raise ModelError(
            f"{folder}: a file called {str(name)[:80]!r} is named; expected a plain file name "
            "inside the folder; do not use this checkpoint"
        )
    path = folder / name
    if not path.is_symlink() and not path.exists():
        return None
    real = _real(path)
    if not os.path.isfile(real):  # False, too, where the system does not let us look
        raise ModelError(
            f"{path}: is not a regular file; expected one with content; get the checkpoint again"
        )
    return real


def _real(path: Path) -> Path:
    try:
        real = path.resolve()
    except (OSError, RuntimeError) as error:  # a loop of links
        raise ModelError(f"{path}: is a link that leads nowhere; get the file again") from error
    if not any(real.is_relative_to(allowed) for allowed in _grounds(path.parent.resolve())):
        raise ModelError(
            f"{path}: is a link to {real}, outside the checkpoint folder; expected every file "
            "inside it; copy the file into the folder if you trust it"
        )
    return real


def _grounds(folder: Path) -> Iterator[Path]:
    """Yield the folder itself and, for a snapshot in a Hugging Face cache, the blobs it links."""
    yield folder
    repository = folder.parent.parent
    if folder.parent.name == "snapshots" and _HEX.fullmatch(folder.name):
        yield repository / "blobs"
        if repository.name.startswith("models--"):
            yield repository.parent / "blobs"  # the store that repositories share


def read_json(folder: Path, name: str, limit: int = CONFIG_LIMIT) -> dict[str, Any] | None:
    """Return a JSON object of the folder, None when there is no such file."""
    path = file_in(folder, name)
    if path is None:
        return None
    check_size(path, limit)
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{folder / name}: is not JSON ({str(error)[:80] or 'too deep'}); expected a JSON "
            "object; get the file again"
        ) from error
    except OSError as error:
        raise ModelError(f"{folder / name}: cannot be read ({error.strerror})") from error
    if not isinstance(value, dict):
        raise ModelError(
            f"{folder / name}: holds a JSON {type(value).__name__}; expected an object; get the "
            "file again"
        )
    return value


def check_size(path: Path, limit: int) -> None:
    """Refuse a file larger than it has any reason to be."""
    size = path.stat().st_size
    if size > limit:
        raise ModelError(
            f"{path}: has {size} bytes; expected at most {limit} for {path.name}; do not use this "
            "checkpoint, or cut the file down to what the model needs"
        )


def read_config(folder: Path) -> dict[str, Any]:
    """Return the vetted ``config.json`` of a folder, without keys that choose an implementation."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder; expected a checkpoint folder with config.json")
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink():
            _real(entry)
    config = read_json(folder, "config.json")
    if config is None:
        inside = sorted(place.parent.name for place in folder.glob("*/config.json"))
        if inside:
            raise ModelError(
                f"{folder}: holds {len(inside)} checkpoint folders ({', '.join(inside[:3])}"
                f"{', ...' * (len(inside) > 3)}); expected one; name one of them, or give the "
                "folder as --candidates-folder or --references-folder"
            )
        raise ModelError(
            f"{folder}: has no config.json; expected a checkpoint folder in Hugging Face layout "
            "(config.json, model.safetensors, tokenizer.json); save it with save_pretrained"
        )
    return vetted_config(config, str(folder / "config.json"))


def vetted_config(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a config without implementation choices, refusing code, absurd sizes, encoders."""
    for key, value in _walk(config):
        _check_entry(where, key, value)
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not all(isinstance(a, str) for a in architectures):
        architectures = []
    if not architectures or not isinstance(config.get("model_type"), str):
        raise ModelError(
            f"{where}: names no architecture (model_type {config.get('model_type')!r}, "
            f"architectures {config.get('architectures')!r}); expected for example 'llama' and "
            "['LlamaForCausalLM']; save the model again with save_pretrained"
        )
    if config.get("is_encoder_decoder"):
        raise ModelError(
            f"{where}: {architectures[0]} is an encoder-decoder; expected a causal language model; "
            "Palimpsest cannot audit this kind"
        )
    _check_modules(where, config)
    return {key: value for key, value in config.items() if key.lstrip("_") not in CHOICE_KEYS}


def _walk(value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield every (key, value) of a JSON value; what stands in a list has the list's key."""
    if depth > 16:
        raise ModelError("a config is nested more than 16 deep; expected a few; get it again")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name), inner
            yield from _walk(inner, str(name), depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield key, inner
            yield from _walk(inner, key, depth + 1)


def _check_entry(where: str, key: str, value: Any) -> None:
    if key in CODE_KEYS and value:
        raise ModelError(
            f"{where}: {key} asks for code or files of the checkpoint's own "
            f"({str(value)[:80]}); expected an architecture that transformers has built in; "
            "Palimpsest never runs code from a checkpoint"
        )
    if key.lstrip("_") in CHOICE_KEYS and "/" in str(value):
        raise ModelError(
            f"{where}: {key} asks for a kernel from the hub ({str(value)[:80]}); expected none; "
            "Palimpsest never runs code from a checkpoint; remove the key"
        )
    if type(value) is not int:
        return
    bound = next((limit for word, limit in BOUNDS if word in key), ANY_BOUND)
    if abs(value) > bound:
        raise ModelError(
            f"{where}: {key} is {str(value)[:40]}; expected at most {bound}; no machine holds such "
            "a model; get the config again"
        )


def _check_modules(where: str, config: Mapping[str, Any]) -> None:
    """Refuse more layers × experts than could be built in reasonable time."""
    numbers = [(key, value) for key, value in _walk(config) if type(value) is int]
    layers, experts = (
        max((value for key, value in numbers if word in key), default=1)
        for word in ("layer", "expert")
    )
    if max(layers, 1) * max(experts, 1) > 2**16:
        raise ModelError(
            f"{where}: {layers} layers of {experts} experts; expected at most {2**16} in all; get "
            "the config again"
        )


def check_quantiser(config: Mapping[str, Any], where: str) -> None:
    """Refuse a quantised checkpoint: its weights cannot be trained, so it has no round trip."""
    entry = config.get("quantization_config")
    if entry is not None:
        method = entry.get("quant_method") if isinstance(entry, dict) else None
        raise ModelError(
            f"{where}: is a quantised checkpoint ({str(method)[:40]!r}), which can be scored but "
            "not re-acquired; expected float weights; dequantise it with model.dequantize() and "
            "save it as bfloat16, or give the model it was made from"
        )


def check_tokenizer(folder: Path) -> bool:
    """Tell whether the folder has a tokenizer, refusing one that is oversized or wants code."""
    present = {name: file_in(folder, name) for name in TOKENIZER_FILES}
    for name, path in present.items():
        if path is not None:
            check_size(path, TOKENIZER_FILES[name])
    settings = read_json(folder, "tokenizer_config.json", TOKENIZER_FILES["tokenizer_config.json"])
    if settings is not None:
        _check_settings(folder, settings)
    extra = read_json(folder, "added_tokens.json") or {}
    _check_count(folder / "added_tokens.json", "added tokens", extra, ADDED_TOKENS_LIMIT)
    whole = read_json(folder, "tokenizer.json", TOKENIZER_FILES["tokenizer.json"])
    if whole is not None:
        where, model = folder / "tokenizer.json", whole.get("model")
        model = model if isinstance(model, dict) else {}
        _check_count(where, "added tokens", whole.get("added_tokens"), ADDED_TOKENS_LIMIT)
        _check_count(where, "vocabulary entries", model.get("vocab"), VOCABULARY_LIMIT)
        _check_count(where, "merges", model.get("merges"), VOCABULARY_LIMIT)
    return any(present[name] is not None for name in VOCABULARIES)


def _check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    where = folder / "tokenizer_config.json"
    if settings.get("auto_map"):
        _check_entry(str(where), "auto_map", settings["auto_map"])
    for key in ("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"):
        _check_count(where, f"{key} entries", settings.get(key), ADDED_TOKENS_LIMIT)
    files = settings.get("fast_tokenizer_files") or []
    for name in files if isinstance(files, list) else [files]:
        file_in(folder, name)


def _check_count(path: Path, what: str, value: Any, limit: int) -> None:
    if isinstance(value, (list, dict)) and len(value) > limit:
        raise ModelError(
            f"{path}: has {len(value)} {what}; expected at most {limit}; do not use this "
            "tokenizer, or remove what the model does not need"
        )


def read_header(path: Path) -> dict[str, Stored]:
    """Return the tensors of a safetensors file by name, without reading one.

    ``safetensors`` itself refuses a header that does not describe the rest of the file exactly: a
    length beyond the file or 100 MB, a gap, an overlap, bytes that do not match a shape, anything
    appended.
    """
    tensors: dict[str, Stored] = {}
    try:
        with safe_open(str(path), framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - it is not a mapping
                part = file.get_slice(name)
                tensors[name] = Stored(part.get_dtype(), tuple(part.get_shape()), path)
    except (SafetensorError, OSError) as error:
        reason = str(error).removeprefix("Error while deserializing header: ")[:200]
        raise ModelError(
            f"{path}: is not a safetensors file ({reason}); expected a header that describes the "
            "file exactly; it is damaged or forged, get it again"
        ) from error
    for name, stored in tensors.items():
        if len(stored.shape) > DIMENSIONS_LIMIT:
            raise ModelError(
                f"{path}: tensor {name!r} has {len(stored.shape)} dimensions; expected at most "
                f"{DIMENSIONS_LIMIT}; get the file again"
            )
    return tensors


def read_weights(folder: Path, single: str = "model.safetensors") -> dict[str, Stored]:
    """Return every tensor of the folder's safetensors file or shards, by name."""
    whole = file_in(folder, single)
    if whole is not None:
        return read_header(whole)
    index = read_json(folder, f"{single}.index.json", INDEX_LIMIT)
    if index is None:
        raise ModelError(_no_weights(folder, single))
    where = folder / f"{single}.index.json"
    mapped = index.get("weight_map")
    if not isinstance(mapped, dict) or not all(isinstance(file, str) for file in mapped.values()):
        raise ModelError(
            f"{where}: has no weight_map from tensors to files; expected one; get the file again"
        )
    tensors: dict[str, Stored] = {}
    for name in sorted(set(mapped.values())):
        shard = file_in(folder, name) if name.endswith(".safetensors") else None
        if shard is None:
            raise ModelError(
                f"{where}: names the shard {name[:80]!r}, which is not a safetensors file of this "
                "folder; expected all shards beside the index; get the missing ones"
            )
        header = read_header(shard)
        twice = sorted(header.keys() & tensors.keys())
        if twice:
            raise ModelError(
                f"{folder / name}: tensor {twice[0]!r} is in another shard too; expected each "
                "tensor once; get the checkpoint again"
            )
        tensors |= header
    missing = sorted(mapped.keys() - tensors.keys())
    if missing:
        raise ModelError(
            f"{where}: tensor {missing[0]!r} and {len(missing) - 1} others are in no shard; "
            "expected every tensor of the weight_map; get the checkpoint again"
        )
    return tensors


def _no_weights(folder: Path, single: str) -> str:
    files = sorted(path.name for path in folder.iterdir())
    pickled = [name for name in files if Path(name).suffix in PICKLES]
    if pickled:
        return (
            f"{folder}: its weights are pickled ({', '.join(pickled[:3])}), which can run any code "
            f"when read; expected {single}; if you trust the file, load it with its own library "
            "and save it again with save_pretrained"
        )
    others = [name for name in files if name.endswith((".safetensors", ".gguf"))]
    return (
        f"{folder}: has no {single} and no index of shards (found {', '.join(others[:3]) or 'none'}"
        "); expected one of them; save the model with save_pretrained, or name a .gguf file itself"
    )
