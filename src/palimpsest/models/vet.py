"""What a checkpoint folder holds, refused before anything in it is built or run.

Only JSON files of bounded size, safetensors headers and names of files are read here. A folder that
wants code to run (pickles, ``auto_map``), points outside itself or asks for absurd sizes ends in
one ModelError. What may be endless by design, a regular expression, a template or a tokenizer, is
computed in a process of its own with bounded time and memory.
"""

import contextlib
import importlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from palimpsest.errors import ModelError

CONFIG_LIMIT = 4 * 2**20  # bytes
TOKENIZER_LIMIT = INDEX_LIMIT = 128 * 2**20  # the largest known tokenizer.json has 34 MB
VOCABULARY_LIMIT = 2_000_000
ADDED_LIMIT = 50_000  # the largest known tokenizers have a few thousand
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
DIMENSIONS_LIMIT = 8
# Keys that make transformers fetch or choose code, or read files the folder was not asked for.
CODE_KEYS = ("auto_map", "custom_pipelines", "transformers_weights", "fusion_config")
CHOICE_KEYS = ("attn_implementation", "experts_implementation")
FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
TEMPLATES = "additional_chat_templates"  # a folder that transformers reads beside chat_template
SEVERAL_LIMIT = 1000  # files or patterns that a checkpoint may name in one place
APART_SECONDS = 20  # of the processor, and six times as many of the clock
APART_BYTES = 4 * 2**30  # of addresses, most of them never used
APART_CHARACTERS = 2**26
PARTS_LIMIT = 500  # objects in a tokenizer's normalizer or splitting; known ones have some dozens
TOKEN_LIMIT = 1000  # characters of a token that settings add
_PLAIN_NAME = re.compile(r"[\w][\w.-]{0,200}")
_HEX = re.compile(r"[0-9a-f]{40,64}")


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor as a file describes it."""

    dtype: str
    shape: tuple[int, ...]
    file: Path


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
    if not any(real.is_relative_to(place) for place in allowed):
        raise ModelError(
            f"{path}: is a link to {real}, outside the checkpoint folder; copy the file there if "
            "you trust it"
        )
    return real


def read_json(folder: Path, name: str, limit: int = CONFIG_LIMIT) -> dict[str, Any] | None:
    """Return a JSON object of the folder, None when there is no such file."""
    path = file_in(folder, name)
    if path is None:
        return None
    _check_count(path, "bytes", path.stat().st_size, limit)
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise ModelError(f"{folder / name}: is not JSON ({str(error)[:80]})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{folder / name}: holds a {type(value).__name__}; expected an object")
    return value


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
    settings, added = (
        read_json(folder, name, TOKENIZER_LIMIT) or {}
        for name in ("tokenizer_config.json", "added_tokens.json")
    )
    _check_entry(folder / "tokenizer_config.json", "auto_map", settings.get("auto_map"))
    _check_length(folder, "tokens of added_tokens.json", added, ADDED_LIMIT)
    for key in ("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"):
        _check_length(folder, key, settings.get(key), ADDED_LIMIT)
    for name in _fast_files(folder, settings):
        whole = read_json(folder, name, TOKENIZER_LIMIT) or {}
        _check_length(folder, f"added_tokens of {name}", whole.get("added_tokens"), ADDED_LIMIT)
        for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
            inside = _walk(folder / name, [whole.get(key)])
            parts = [part for _, part in inside if isinstance(part, dict)]
            _check_count(folder, f"parts of {key} of {name}", len(parts), PARTS_LIMIT)
        if isinstance(model := whole.get("model"), dict):
            for key in ("vocab", "merges"):
                _check_length(folder, key, model.get(key), VOCABULARY_LIMIT)
    return any(name in present for name in VOCABULARIES)


def tokenizer_trials(folder: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """Yield each tokenizer.json with its text and the tokens that other files add to it."""
    settings, added = (
        read_json(folder, name, TOKENIZER_LIMIT) or {}
        for name in ("tokenizer_config.json", "added_tokens.json")
    )
    where = folder / "tokenizer_config.json"
    texts = [*added, *(value for _, value in _walk(where, settings) if isinstance(value, str))]
    tokens = sorted({text for text in texts if len(text) <= TOKEN_LIMIT and _is_text(text)})
    for name in _fast_files(folder, settings):
        if path := file_in(folder, name):
            yield path, path.read_text("utf-8", "replace"), tokens


def _fast_files(folder: Path, settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the files that a tokenizer may be read from, one of them in the end."""
    # transformers reads one of these in the place of tokenizer.json, by its own version.
    files = settings.get("fast_tokenizer_files") or []
    files = files if isinstance(files, list) else [files]
    _check_length(folder, "fast_tokenizer_files", files, SEVERAL_LIMIT)
    return ["tokenizer.json", *files]


def _is_text(text: str) -> bool:
    """Tell whether a text can be written: JSON may hold halves of characters."""
    with contextlib.suppress(UnicodeEncodeError):
        return bool(text.encode("utf-8")) or not text
    return False


def _check_length(folder: Path, what: str, value: Any, limit: int) -> None:
    if isinstance(value, list | dict):
        _check_count(folder, what, len(value), limit)


def _templates(folder: Path) -> list[Path]:
    """Return the further chat templates of a folder; what leads out of it is refused."""
    inside = folder / TEMPLATES
    if not inside.is_symlink() and not inside.is_dir():
        return []
    paths = [_real(path, folder) for path in (inside, *inside.iterdir())][1:]
    _check_count(inside, "files", len(paths), SEVERAL_LIMIT)
    return [path for path in paths if path.is_file()]


# -- what may be endless ---------------------------------------------------------------------------


def run_apart(what: str, function: Callable[..., Any], *given: Any) -> Any:
    """Return what a function gives in a process of its own; ModelError beyond the bounds.

    function: of a module that imports without torch; what it is given and gives is JSON.
    """
    program = "from palimpsest.models.vet import answer_apart; answer_apart()"
    asked = json.dumps([function.__module__, function.__name__, given, APART_SECONDS])
    # -P and no relative places: a module beside the checkpoint must not be imported.
    places = os.pathsep.join(place for place in sys.path if os.path.isabs(place))
    settings = {"PYTHONPATH": places, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            input=asked,
            capture_output=True,
            text=True,
            timeout=6 * APART_SECONDS,
            env=os.environ | settings,
        )
    except subprocess.TimeoutExpired:
        problem = "it does not end"
    else:
        if done.returncode == 0:
            return json.loads(done.stdout)
        last = (done.stderr.strip().splitlines() or ["it does not end"])[-1]
        problem = last[:300] if done.returncode > 0 else "it does not end"
        if done.returncode == -signal.SIGABRT:
            problem = "it needs too much memory"
    raise ModelError(
        f"{what} cannot be used ({problem}); expected one that is done within {APART_SECONDS} "
        "seconds and a few megabytes; do not use this checkpoint, or leave it out"
    )


def answer_apart() -> None:
    """Call the function that standard input names, within bounds, and print what it gives."""
    module, name, given, seconds = json.load(sys.stdin)
    for bound, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, APART_BYTES)):
        with contextlib.suppress(ValueError, OSError):  # where the system knows no such bound
            resource.setrlimit(bound, (most, most))
    text = json.dumps(getattr(importlib.import_module(module), name)(*given))
    if len(text) > APART_CHARACTERS:
        sys.exit(f"it gives {len(text)} characters")
    sys.stdout.write(text)


def matching_names(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the names that a regular expression matches as a whole."""
    return [name for name in names if re.fullmatch(pattern, name)]


def split_texts(tokenizer: str, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each text; the tokenizer is given as JSON."""
    from tokenizers import Tokenizer

    built = Tokenizer.from_str(tokenizer)
    built.no_truncation()
    built.no_padding()
    return [found.ids for found in built.encode_batch(list(texts))]


def render_turns(
    template: str,
    conversations: Sequence[Sequence[Mapping[str, str]]],
    date: str,
    tokens: Mapping[str, Any],
) -> list[str]:
    """Return conversations as a chat template writes them; the day it may ask for is given."""
    from transformers.utils.chat_template_utils import render_jinja_template

    # transformers gives templates the clock; a macro of that name comes before it.
    dated = "{% macro strftime_now(form) %}{{ fixed_date }}{% endmacro %}{{ '' }}" + template
    values = {**tokens, "date_string": date, "fixed_date": date}
    given = [list(turns) for turns in conversations]
    texts: list[str] = render_jinja_template(given, chat_template=dated, **values)[0]
    return texts


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
        raise ModelError(
            f"{path}: is not a safetensors file ({str(error)[:200]}); it is damaged or forged, get "
            "it again"
        ) from error
    for name, stored in tensors.items():
        _check_count(path, f"dimensions of {name!r}", len(stored.shape), DIMENSIONS_LIMIT)
    return tensors


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
