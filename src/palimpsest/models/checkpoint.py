"""The one door to checkpoints: whatever reads one comes through here.

A name is a pocket model (``pocket/qwen2-s``), a folder, or a Hugging Face id; a folder or an id may
hold a whole model or a LoRA adapter. ``outline`` gives a model on paper, ``load`` one that is ready
to score or train, ``checkpoint_state`` its weights, which stay in their files, and
``checkpoint_digests`` what identifies it. All of them refuse what is no sound checkpoint before
memory is asked for. Only safetensors are read, and no code of a checkpoint ever runs.

Behind the door: ``sources.py`` finds the files, ``vet.py`` reads what they claim, ``skeleton.py``
compares that with the shape the config asks for and fills it, ``tokenizer.py`` builds the
tokenizer, and ``lora.py`` merges an adapter.
"""

import copy
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palimpsest.errors import ModelError
from palimpsest.models.device import check_device, foreign
from palimpsest.models.lora import WEIGHTS as ADAPTER_WEIGHTS
from palimpsest.models.lora import adapter_base as stated_base
from palimpsest.models.lora import merged
from palimpsest.models.skeleton import (
    build_config,
    check_finite,
    check_loaded,
    fill,
    match_names,
    read_tensor,
    skeleton,
)
from palimpsest.models.sources import Kind, family_of, find_kind, locate, pocket_names
from palimpsest.models.tokenizer import TELLING, read_tokenizer, tokenizer_difference
from palimpsest.models.vet import (
    TEMPLATES,
    Stored,
    check_tokenizer,
    holds_adapter,
    read_config,
    read_header,
    read_weights,
)
from palimpsest.run.files import canonical, digest, file_digest

# Some virtual machines announce AMX and then kill the process that uses it, which bfloat16 on a
# CPU would; the next best instructions are there wherever AMX is. Read at torch's first product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SHAPE_KEYS = (
    "model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "intermediate_size", "head_dim", "tie_word_embeddings",
)  # fmt: skip
# What a config says beside the computation: identifiers, training, caches, other tasks.
_INCIDENTAL = re.compile(
    r".*_token_id|.*drop.*|use_cache|initializer_range|max_position_embeddings|max_window_layers"
    r"|pretraining_tp|(classifier|summary)_.*"
)


@dataclass(frozen=True)
class Outline:
    """A model on paper: what is known before its weights are read.

    settings: its vetted config.json. folder: of the whole model. tokenizer_folder: where its
    tokenizer is. adapter: the folder of a LoRA adapter that is to be merged into it.
    """

    name: str
    settings: Mapping[str, Any]
    folder: Path
    tokenizer_folder: Path
    revision: str
    adapter: Path | None = None

    @cached_property
    def config(self) -> Any:
        """The config as transformers reads it."""
        return build_config(self.settings, str(self.folder))

    @cached_property
    def tokenizer(self) -> Any:
        return read_tokenizer(self.tokenizer_folder, find_kind(self.name) is Kind.POCKET)

    def number(self, *keys: str, default: int) -> int:
        """Return the first of these that config.json has, or that its architecture sets."""
        stated = [self.settings[key] for key in keys if self.settings.get(key)]
        implied = (value for key in keys if (value := getattr(self.config, key, None)))
        return int(stated[0] if stated else next(implied, default))

    @property
    def in_package(self) -> bool:
        """Whether it is a pocket model, whose files and names were checked when it was made."""
        return self.adapter is None and find_kind(self.name) is Kind.POCKET

    @cached_property
    def parameters(self) -> int:
        """The number of parameters, tied ones once."""
        if self.in_package:
            return sum(math.prod(stored.shape) for stored in read_weights(self.folder).values())
        return sum(value.numel() for value in skeleton(self.config, self.name).parameters())

    @cached_property
    def stored_names(self) -> dict[str, str] | None:
        """The stored name of every tensor of the module, as ``match_names`` finds them."""
        if self.in_package:
            return pocket_names(self.name)
        bare = skeleton(self.config, self.name)
        return match_names(self.folder, bare, read_weights(self.folder))


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode with its tokenizer; ``revision`` as ``locate`` says.

    weights: the tensors by the names of the module and in its order, tied ones under each of their
        names. They are the module's own, except of a pocket model.
    parameters: their number, tied ones once.
    embedding: the names of the input embedding, a tied head's among them.
    build: gives the module.
    """

    name: str
    config: Any
    tokenizer: Any
    weights: Mapping[str, Tensor]
    parameters: int
    embedding: tuple[str, ...]
    build: Callable[[], Any]
    revision: str = ""

    @cached_property
    def model(self) -> Any:
        """The ``transformers`` module; that of a pocket model is built when it is asked for."""
        return self.build()

    @property
    def family(self) -> str:
        """The paper's family of the architecture."""
        return family_of(self.config.model_type)

    @property
    def gated(self) -> bool:
        """Whether the feed-forward layers have a gate that a mask can act on."""
        return any(".gate_proj." in name for name in self.weights)


def outline(name: str, base: str | None = None, *, weights: bool = False) -> Outline:
    """Return a model on paper, its small files vetted; an adapter has its base's config.

    base: the model under an adapter; without it the adapter's own config names one.
    weights: whether the weights of a hub model are downloaded too.
    """
    folder, commit = locate(name, weights=weights)
    if not holds_adapter(folder):
        found = Outline(name, read_config(folder), folder, folder, commit)
        return found if found.in_package else _read(found)
    base = base or stated_base(folder)
    if holds_adapter(locate(base)[0]):
        raise ModelError(
            f"{folder}: its base {base} is an adapter too; expected a whole model; merge {base} "
            "into its own base first and give the result"
        )
    under = outline(base, weights=weights)
    own = folder if check_tokenizer(folder) else under.tokenizer_folder
    return _read(Outline(name, under.settings, under.folder, own, commit, folder))


def _read(found: Outline) -> Outline:
    """Read what may be refused; a pocket model's is known, and read when it is asked for."""
    _ = found.config, found.tokenizer
    return found


def load(
    name: Any,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    base: str | None = None,
    tokenizer: Any = None,
) -> Loaded:
    """Return the model of that name, checked, in evaluation mode, with dropout zero.

    ``name`` may be a ``transformers`` model in memory, with its ``tokenizer``; it is copied.
    ``base`` is the model under a LoRA adapter; without it the adapter's own config names one.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype: {dtype!r} found; expected one of {', '.join(DTYPES)}")
    check_device(device)
    # Nothing in loading needs randomness; if a library draws some, the caller's is not touched.
    with torch.random.fork_rng(devices=[]):
        if isinstance(name, str | os.PathLike):
            here = outline(os.fspath(name), base, weights=True)
            if here.in_package:
                return _pocket_model(here, DTYPES[dtype], device)
            model = _filled(here, DTYPES[dtype])
            if here.adapter is not None:
                model = merged(model, here.adapter)
            name, tokenizer, revision = here.name, here.tokenizer, here.revision
        elif hasattr(name, "get_input_embeddings") and tokenizer is not None:
            model = copy.deepcopy(name).to(DTYPES[dtype])
            name, revision = "model in memory", ""
        else:
            raise ModelError(
                f"load: {type(name).__name__} found; expected a path, a Hugging Face id, or a "
                "transformers model and its tokenizer=…"
            )
        check_loaded(name, model, tokenizer)
        with foreign(f"{name}: moving it to {device!r}", "a device with room for the model"):
            model.eval().to(device)
    weights = dict(model.state_dict())
    table = model.get_input_embeddings().weight.data_ptr()
    return Loaded(
        name,
        model.config,
        tokenizer,
        weights,
        sum(value.numel() for value in model.parameters()),
        tuple(n for n, value in weights.items() if value.data_ptr() == table),
        lambda: model,
        revision,
    )


def _filled(here: Outline, dtype: torch.dtype) -> Any:
    return fill(here.folder, here.config, read_weights(here.folder), dtype)


def _pocket_model(here: Outline, dtype: torch.dtype, device: str) -> Loaded:
    """Return a pocket model with its weights alone.

    The CPU engine needs no module, and importing that of a family takes longer than a first step.
    """
    names, tensors = pocket_names(here.name), read_weights(here.folder)
    table = next(iter(names.values()))
    own = {name: read_tensor(name, stored, dtype).to(device) for name, stored in tensors.items()}
    return Loaded(
        here.name,
        here.config,
        here.tokenizer,
        {name: own[stored] for name, stored in names.items()},
        here.parameters,
        tuple(name for name, stored in names.items() if stored == table),
        lambda: _filled(here, dtype).eval().to(device),
        here.revision,
    )


def check_compatible(
    base: Loaded | Outline, other: Loaded | Outline, texts: Sequence[str] = TELLING
) -> None:
    """Refuse a model that cannot be scored beside the base: tokenizer, vocabulary, architecture.

    Weights are scored in the base's module, so every setting that a model computes with must agree.
    texts: those that will be used; tokenizers may differ on characters that none of them has.
    """
    for key in dict.fromkeys((*_SHAPE_KEYS, *_computing_keys(base.config))):
        value, expected = (getattr(model.config, key, None) for model in (other, base))
        if value != expected:
            raise ModelError(
                f"{other.name}: its {key} is {value}; expected {expected}, as in {base.name}; give "
                "models that were trained from this base"
            )
    if difference := tokenizer_difference(base.tokenizer, other.tokenizer, texts):
        raise ModelError(
            f"{other.name}: its tokenizer has {difference}; expected that of {base.name}, because "
            "scores of different tokens cannot be compared; save the model with the base's "
            "tokenizer"
        )


def _computing_keys(config: Any) -> list[str]:
    """Return the keys that this kind of config has of its own and that decide what is computed."""
    from transformers import PretrainedConfig

    own = type(config)().to_dict().keys() - PretrainedConfig().to_dict().keys()
    return sorted(key for key in own if not _INCIDENTAL.fullmatch(key))


# -- weights that stay in their files --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StoredState(Mapping[str, Tensor]):
    """Weights in safetensors files, by name; several names may share a tensor.

    names: the stored name of each name, where they differ.
    dtype: what floats are converted to when they are read; None leaves them as they are stored.
    """

    tensors: Mapping[str, Stored]
    names: Mapping[str, str] | None = None
    dtype: torch.dtype | None = None

    def __getitem__(self, name: str) -> Tensor:
        stored = self.names[name] if self.names else name
        return read_tensor(stored, self.tensors[stored], self.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names or self.tensors)

    def __len__(self) -> int:
        return len(self.names or self.tensors)


def stored_state(path: Path) -> StoredState:
    """Return the weights in one safetensors file."""
    return StoredState(read_header(path))


def checkpoint_state(
    name: str,
    expected: Loaded | Outline,
    *,
    dtype: str = "float32",
    adapter_base: str | None = None,
) -> Mapping[str, Tensor]:
    """Return the weights of a checkpoint under the names of the expected module.

    They are those of ``load(name).weights``, read from their files one by one. Where no file holds
    them as they are (an adapter, tensors that transformers joins), the model is loaded once and its
    weights stay in the host's memory. ModelError if its shape is not that of ``expected``; its
    tokenizer is not used.
    """
    here = outline(name, adapter_base, weights=True)
    check_compatible(expected, here, texts=())
    if here.adapter is None:
        names = here.stored_names
        if names is not None:
            state = StoredState(read_weights(here.folder), names, DTYPES[dtype])
            for part, value in state.items():
                check_finite(name, part, value)
            return state
    return load(name, dtype=dtype, base=adapter_base).weights


# -- digests ---------------------------------------------------------------------------------------


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, dtypes, shapes and bytes, whatever the order of the tensors."""
    whole = hashlib.sha256()
    for name in sorted(state):
        value = state[name].detach()
        data: Any = value.to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
        whole.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        whole.update(hashlib.sha256(data).digest())
    return f"sha256:{whole.hexdigest()}"


@dataclass(frozen=True)
class Digests:
    """A checkpoint by its files and by its tensors alone.

    files: of all files on disk; for a hub id, its commit; for an adapter, its base's too.
    weights: of the tensors that the model computes with, in float32 and by the names of its module,
        whatever file, precision or name they are stored in and whatever else is written there; for
        an adapter, of its own tensors and its base's.
    """

    files: str
    weights: str


def checkpoint_digests(name: str, adapter_base: str | None = None) -> Digests:
    """Return both digests of a checkpoint; it is read whole, once while no file of it changes."""
    here = outline(name, adapter_base, weights=True)
    folders = {here.folder, here.tokenizer_folder, here.adapter or here.folder}
    files = [p for f in sorted(folders) for p in (*f.iterdir(), *(f / TEMPLATES).glob("*"))]
    found = sorted((str(path.resolve()), path.stat()) for path in files if path.is_file())
    seen = tuple((path, s.st_ino, s.st_size, s.st_mtime_ns) for path, s in found)
    return _digests(name, adapter_base, here.revision, seen)


@lru_cache(maxsize=1024)
def _digests(
    name: str, adapter_base: str | None, revision: str, seen: tuple[object, ...]
) -> Digests:
    """Return both digests; revision, seen: what tells whether a checkpoint is still the same."""
    here = outline(name, adapter_base, weights=True)
    stored = StoredState(read_weights(here.folder), here.stored_names, torch.float32)
    weights = state_digest(stored)
    if here.adapter is not None:
        own = state_digest(StoredState(read_weights(here.adapter, ADAPTER_WEIGHTS)))
        weights = digest(canonical([own, weights]))
    return Digests(files_digest(name, adapter_base), weights)


def check_weights(name: str, adapter_base: str | None = None) -> None:
    """Refuse a checkpoint with a tensor that is not finite; reads it whole."""
    here = outline(name, adapter_base, weights=True)
    tensors = read_weights(here.folder)
    if here.adapter is not None:
        tensors |= read_weights(here.adapter, ADAPTER_WEIGHTS)
    for part, value in StoredState(tensors).items():
        check_finite(name, part, value)


def files_digest(name: str, adapter_base: str | None = None) -> str:
    """Return the digest of a checkpoint's files; for a hub id its commit, without its weights.

    An adapter is one model with its base: the digest covers both.
    """
    folder, commit = locate(name)
    if find_kind(name) is Kind.HUB:
        own = f"hub:{name}@{commit}"
    else:
        files = [*folder.iterdir(), *(folder / TEMPLATES).glob("*")]
        digests = {str(p.relative_to(folder)): file_digest(p) for p in files if p.is_file()}
        own = digest(canonical(digests))
    if not holds_adapter(folder):
        return own
    return digest(canonical([own, files_digest(adapter_base or stated_base(folder))]))
