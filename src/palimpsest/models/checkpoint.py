"""Checkpoints by what lies on disk: their digests, and their weights without a module around them.

An audit scores many checkpoints in one module. Their weights stay in their files: a tensor is read
when it is asked for, and not kept.
"""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from palimpsest.models.load import (
    DTYPES,
    Loaded,
    Outline,
    check_compatible,
    load,
    outline,
    state_digest,
)
from palimpsest.models.lora import WEIGHTS as ADAPTER_WEIGHTS
from palimpsest.models.lora import adapter_base as stated_base
from palimpsest.models.skeleton import check_finite, read_tensor
from palimpsest.models.sources import Kind, find_kind, locate
from palimpsest.models.vet import (
    TEMPLATES,
    Stored,
    holds_adapter,
    read_header,
    read_weights,
)
from palimpsest.run.files import canonical, digest, file_digest


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


@contextmanager
def written_weights() -> Iterator[None]:
    """Let faults of the disk leave the block as OSError; safetensors has an error of its own."""
    try:
        yield
    except SafetensorError as error:
        full = "os error 28" in str(error)
        raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error


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
    """Return both digests of a checkpoint; reads it whole."""
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
