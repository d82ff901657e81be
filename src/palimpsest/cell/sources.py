"""Where a cell's models come from: trained by one of its steps, or given as a checkpoint.

Both answer ``state``. A given checkpoint can also be loaded as a model of its own (``Given.net``),
for a caller that keeps one model in memory at a time.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from palimpsest.challenge.models import interpolated
from palimpsest.errors import DriftError
from palimpsest.models import gguf, hub
from palimpsest.models.load import Loaded, Outline, check_compatible, load, resolve
from palimpsest.models.net import WholeNet
from palimpsest.models.stored import lasting_state, stored_state
from palimpsest.run.store import Cell, canonical, digest, file_digest

State = Mapping[str, Tensor]

WEIGHTS = "weights.safetensors"


class Source(Protocol):
    """A model of a cell."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The steps that must be done before the model is there."""

    def state(self, cell: Cell, expected: Loaded, *, in_memory: bool) -> State:
        """Return the weights; not ``in_memory`` lets them stay in their file until they are used.

        expected: the loaded base, which a given checkpoint must match.
        """


@dataclass(frozen=True, slots=True)
class Trained:
    """Weights that a step of the cell stored."""

    step: str

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.step,)

    def state(self, cell: Cell, expected: Loaded, *, in_memory: bool) -> State:
        path = cell.file(self.step, WEIGHTS)
        return load_file(path) if in_memory else stored_state(path)


@dataclass(frozen=True, slots=True)
class Given:
    """A checkpoint that was made elsewhere; ``adapter_base`` is what an adapter goes on."""

    place: str
    dtype: str = "float32"
    device: str = "cpu"
    adapter_base: str | None = None
    checkpointing: bool = False
    optimizer: str = "device"
    lora: int = 0

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    def load(self, expected: Loaded | Outline) -> Loaded:
        """Load the checkpoint; ModelError if it cannot be measured beside the expected model."""
        loaded = load(self.place, dtype=self.dtype, device=self.device, base=self.adapter_base)
        check_compatible(expected, loaded)
        return loaded

    def state(self, cell: Cell, expected: Loaded, *, in_memory: bool) -> State:
        loaded = replace(self, device="cpu").load(expected)
        if not in_memory:
            return lasting_state(loaded)
        return {name: value.detach() for name, value in loaded.weights.items()}

    @contextmanager
    def net(self, expected: Loaded | Outline) -> Iterator[tuple[Loaded, WholeNet]]:
        """Provide the model ready to score and train; it is dropped when the block ends."""
        loaded = self.load(expected)
        loaded.model.requires_grad_(True)
        try:
            options: dict[str, Any] = {"optimizer": self.optimizer, "lora": self.lora}
            yield loaded, WholeNet(loaded.model, checkpointing=self.checkpointing, **options)
        finally:
            # A module refers to itself; without this the next one is loaded beside it.
            loaded.model.zero_grad(set_to_none=True)
            del loaded
            gc.collect()


@contextmanager
def mixed_net(
    reference: Given, injected: Given, share: float, expected: Loaded | Outline
) -> Iterator[tuple[Loaded, WholeNet]]:
    """Provide the control with ``share`` of the injected weights left, made of two checkpoints.

    The reference is loaded and changed tensor by tensor; the injected tensors are read from their
    file one at a time where it holds them as they are. ``Unavailable`` if the two cannot be mixed.
    """
    with replace(injected, device="cpu").net(expected) as (loaded, _):
        far = lasting_state(loaded)
        del loaded
    with reference.net(expected) as (loaded, net):
        own = loaded.model.state_dict()
        mixed = interpolated(own, far, 1.0 - share)
        owners: set[int] = set()
        with torch.no_grad():
            for name, value in own.items():
                if value.data_ptr() not in owners:  # a tied tensor is changed once
                    owners.add(value.data_ptr())
                    value.copy_(mixed[name])
        yield loaded, net


def save_weights(state: State, path: Path) -> None:
    """Write weights to a safetensors file."""
    # Tied tensors share memory, which safetensors refuses; each gets its own.
    save_file({name: value.clone() for name, value in state.items()}, path)


def source_digest(name: str) -> str:
    """Return the digest of a checkpoint's files as they lie on disk; for the hub, its commit."""
    return source_digests(name)[0]


def source_digests(name: str) -> tuple[str, str]:
    """Return the digest of a checkpoint's files, and of those with weights alone."""
    source = resolve(name)
    path = gguf.smollm2_folder()[0] if source.kind == "smollm2" else source.path
    if path is None:
        commit = f"{source.kind}:{name}@{hub.snapshot(name, None, weights=False)[1]}"
        return commit, commit
    files = [path] if path.is_file() else sorted(path.iterdir())
    digests = {file.name: file_digest(file) for file in files if file.is_file()}
    kept = {n: found for n, found in digests.items() if n.endswith((".safetensors", ".gguf"))}
    return digest(canonical(digests)), digest(canonical(kept))


def check_source(name: str, place: str, recorded: str) -> None:
    """Refuse a model whose files are others than when the run began, or on another machine."""
    found = source_digest(place)
    if found != recorded:
        raise DriftError(
            f"inputs.{name}: the run has {recorded}, found {found}; expected the model the run "
            "was started with; put it back, or start a new run from here with --fork"
        )
