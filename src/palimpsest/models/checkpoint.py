"""The one door to checkpoints: whatever reads one comes through here.

A name is a pocket model (``pocket/qwen2-s``), a folder, or a Hugging Face id; a folder or an id may
hold a whole model or a LoRA adapter. ``outline`` gives a model on paper, ``survey`` what identifies
models and whether they can be measured, ``load`` one that is ready to score or train, and
``checkpoint_state`` its weights, which stay in their files. All of them refuse what is no sound
checkpoint before memory is asked for. Only safetensors are read, and no code of a checkpoint ever
runs. Weights are hashed whenever they are read, and whoever says what they must be gets no others.

Behind the door: ``sources.py`` finds the files, ``vet.py`` reads what they claim, ``stored.py``
reads the tensors, ``skeleton.py`` compares them with the shape the config asks for and fills it,
``tokenizer.py`` builds the tokenizer, and ``lora.py`` merges an adapter.
"""

import copy
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from palimpsest.errors import DriftError, ModelError
from palimpsest.models.device import check_device, foreign
from palimpsest.models.lora import WEIGHTS as ADAPTER_WEIGHTS
from palimpsest.models.lora import adapter_base as stated_base
from palimpsest.models.lora import merged
from palimpsest.models.skeleton import build_config, check_loaded, fill, match_names, skeleton
from palimpsest.models.sources import (
    Kind,
    family_of,
    find_kind,
    locate,
    pocket_names,
    small_files,
    stamp,
)
from palimpsest.models.stored import LazyState as LazyState
from palimpsest.models.stored import StoredState, not_finite
from palimpsest.models.stored import state_digest as state_digest
from palimpsest.models.stored import stored_state as stored_state
from palimpsest.models.tokenizer import TELLING, read_tokenizer, tokenizer_difference
from palimpsest.models.vet import Stored, check_tokenizer, holds_adapter, read_config, read_weights
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
class Digests:
    """A checkpoint by what is loaded from its files and by its tensors alone.

    files: of its tensors and of the bytes of its small files (``small_files``); of a hub id, its
        commit; of an adapter, its base's too.
    weights: of the tensors that the model computes with, in float32 and by the names of its module,
        whatever file, precision or name they are stored in and whatever else is written there; of
        an adapter, of its own tensors and its base's.
    """

    files: str
    weights: str


@dataclass(frozen=True)
class Outline:
    """A model on paper: what is known before its weights are read.

    settings: its vetted config.json. folder: of the whole model. tokenizer_folder: where its
    tokenizer is. adapter: the folder of a LoRA adapter that is to be merged into the model
    ``under`` it.
    """

    name: str
    settings: Mapping[str, Any]
    folder: Path
    tokenizer_folder: Path
    revision: str
    adapter: Path | None = None
    under: "Outline | None" = None

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
            return sum(math.prod(stored.shape) for stored in self.tensors.values())
        return sum(value.numel() for value in self.bare.parameters())

    @cached_property
    def bare(self) -> Any:
        """The module without memory for its weights."""
        return skeleton(self.config, self.name)

    @cached_property
    def tensors(self) -> dict[str, Stored]:
        """The tensors of the whole model, by their stored names."""
        return read_weights(self.folder)

    @cached_property
    def stored_names(self) -> dict[str, str] | None:
        """The stored name of every tensor of the module, as ``match_names`` finds them."""
        if self.in_package:
            return pocket_names(self.name)
        return match_names(self.folder, self.bare, self.tensors)

    def state(
        self, dtype: torch.dtype | None = None, whole: Callable[[StoredState], None] | None = None
    ) -> StoredState:
        """Return the weights of the whole model, which stay in their files."""
        return StoredState(self.name, self.tensors, self.stored_names, dtype, whole)

    def adapter_state(self) -> StoredState | None:
        """Return the weights of the adapter, if there is one."""
        if self.adapter is None:
            return None
        return StoredState(self.name, read_weights(self.adapter, ADAPTER_WEIGHTS))

    def identify(self, weights: str, own: str = "") -> Digests:
        """Return what identifies the model, from the digest of its weights; own: an adapter's."""
        if self.adapter is None or self.under is None:
            return Digests(self._files(self.folder, weights), weights)
        files = [self._files(self.adapter, own), self.under.identify(weights).files]
        return Digests(digest(canonical(files)), digest(canonical([own, weights])))

    def _files(self, folder: Path, weights: str) -> str:
        if find_kind(self.name) is Kind.HUB:
            return f"hub:{self.name}@{self.revision}"
        small = {str(path.relative_to(folder)): file_digest(path) for path in small_files(folder)}
        return digest(canonical({"small files": small, "weights": weights}))

    def check(
        self, expected: Digests | None, state: StoredState, adapter: StoredState | None = None
    ) -> None:
        """Refuse a model that is not the expected one, by what was read of it."""
        own = "" if adapter is None else adapter.digest()
        if expected is not None and self.identify(state.digest(), own) != expected:
            raise DriftError(
                f"{self.name}: is not what it was when the run was created; expected the same "
                "files; put them back, or start a new run with another --out"
            )


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
    config: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    weights: Mapping[str, Tensor] = field(repr=False)
    parameters: int
    embedding: tuple[str, ...] = field(repr=False)
    build: Callable[[], Any] = field(repr=False)
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
    return _read(Outline(name, under.settings, under.folder, own, commit, folder, under))


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
    expected: Digests | None = None,
) -> Loaded:
    """Return the model of that name, checked, in evaluation mode, with dropout zero.

    ``name`` may be a ``transformers`` model in memory, with its ``tokenizer``; it is copied.
    ``base`` is the model under a LoRA adapter; without it the adapter's own config names one.
    DriftError if it is not the ``expected`` model, before it computes anything.

    ::

        loaded = palimpsest.load("pocket/qwen2-s")
        loaded.model, loaded.tokenizer
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype: {dtype!r} found; expected one of {', '.join(DTYPES)}")
    check_device(device)
    # Nothing in loading needs randomness; if a library draws some, the caller's is not touched.
    with torch.random.fork_rng(devices=[]):
        if isinstance(name, str | os.PathLike):
            here = outline(os.fspath(name), base, weights=True)
            if here.in_package:
                return _pocket_model(here, DTYPES[dtype], device, expected)
            state, adapter = here.state(DTYPES[dtype]), here.adapter_state()
            model = fill(here.folder, here.bare, state, DTYPES[dtype])
            if adapter is not None:
                model = merged(model, cast(Path, here.adapter), adapter)
            here.check(expected, state, adapter)
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


def _pocket_model(
    here: Outline, dtype: torch.dtype, device: str, expected: Digests | None
) -> Loaded:
    """Return a pocket model with its weights alone.

    The CPU engine needs no module, and importing that of a family takes longer than a first step.
    """
    state = here.state(dtype)
    weights = state.in_memory()
    here.check(expected, state)
    table = next(iter(weights.values()))
    return Loaded(
        here.name,
        here.config,
        here.tokenizer,
        {name: value.to(device) for name, value in weights.items()},
        here.parameters,
        tuple(name for name, value in weights.items() if value is table),
        lambda: fill(here.folder, here.bare, here.state(dtype), dtype).eval().to(device),
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


def checkpoint_state(
    name: str,
    like: Loaded | Outline,
    *,
    dtype: str = "float32",
    adapter_base: str | None = None,
    expected: Digests | None = None,
) -> Mapping[str, Tensor]:
    """Return the weights of a checkpoint under the names of the module that it is like.

    They are those of ``load(name).weights``, read from their files one by one. Where no file holds
    them as they are (an adapter, tensors that transformers joins), the model is loaded once and its
    weights stay in the host's memory. ModelError if its shape is not that of ``like``; its
    tokenizer is not used. DriftError, with the last tensor, if it is not the ``expected`` model.
    """
    here = outline(name, adapter_base, weights=True)
    check_compatible(like, here, texts=())
    if here.adapter is None and here.stored_names is not None:
        return here.state(DTYPES[dtype], lambda state: here.check(expected, state))
    return load(name, dtype=dtype, base=adapter_base, expected=expected).weights


# -- what identifies a model -----------------------------------------------------------------------


@dataclass(frozen=True)
class Survey:
    """What one read of a checkpoint shows; problem: why it cannot be measured, "" if it can."""

    digests: Digests
    problem: str


_SURVEYS: dict[tuple[object, ...], Survey] = {}
"""By the model's name and the stamps of its files: one that stays as it is is read once."""


def survey(
    names: Iterable[str], adapter_base: str | None = None, workers: int = 0
) -> dict[str, Survey]:
    """Return what identifies checkpoints, and what is wrong with their tensors: each is read once.

    workers: how many are read at a time; 0 takes as many as there are cores.
    """
    found = {name: outline(name, adapter_base, weights=True) for name in names}
    if under := {here.under.name for here in found.values() if here.under is not None}:
        survey(under, None, workers)  # a base that several adapters share is read once
    keys = {name: (name, adapter_base, *_stamps(here)) for name, here in found.items()}
    fresh = [name for name in found if keys[name] not in _SURVEYS]
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        for name, seen in zip(fresh, pool.map(_survey, [found[name] for name in fresh])):
            _SURVEYS[keys[name]] = seen
    return {name: _SURVEYS[keys[name]] for name in found}


def checkpoint_digests(name: str, adapter_base: str | None = None) -> Digests:
    """Return what identifies a checkpoint."""
    return survey([name], adapter_base)[name].digests


def _survey(here: Outline) -> Survey:
    adapter, own = here.adapter_state(), ""
    if here.under is not None and adapter is not None:
        base, own, state = survey([here.under.name])[here.under.name], adapter.digest(), adapter
        weights, problem = base.digests.weights, base.problem
    else:
        state = here.state()
        weights, problem = state.digest(), ""
    broken = [name for name, content in state.contents.items() if not content.finite]
    problem = problem or (str(not_finite(here.name, broken[0])) if broken else "")
    return Survey(here.identify(weights, own), problem)


def _stamps(here: Outline) -> list[object]:
    """Return what changes when a file of a model does; its names are matched on the way."""
    folders = {here.folder, here.tokenizer_folder, here.adapter or here.folder}
    files = {path for folder in folders for path in small_files(folder)}
    parts = [here.state(), here.adapter_state()]
    files |= {stored.file for part in parts if part for stored in part.tensors.values()}
    return [here.revision, *(stamp(path) for path in sorted(files))]
