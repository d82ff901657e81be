"""State dicts that stay in their files: a tensor is read when it is asked for, and not kept.

A large model's cell refers to four or more sets of weights and trains one. The student holds its
own; all others are looked up where they lie.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from palimpsest.errors import ModelError
from palimpsest.models.gguf import smollm2_folder
from palimpsest.models.inspect_folder import Stored, read_header, read_weights
from palimpsest.models.load import Loaded, resolve


class StoredState(Mapping[str, Tensor]):
    """Weights in safetensors files, by name; several names may share a tensor.

    dtypes: what tensors are converted to when they are read, where that is not what is stored.
    """

    def __init__(
        self,
        names: Mapping[str, tuple[str, Stored]],
        dtypes: Mapping[str, torch.dtype] | None = None,
    ) -> None:
        self._names = dict(names)
        self._dtypes = dict(dtypes or {})

    def __getitem__(self, name: str) -> Tensor:
        key, stored = self._names[name]
        with safe_open(str(stored.file), framework="pt") as file:
            value: Tensor = file.get_tensor(key)
        return value.to(self._dtypes.get(name, value.dtype))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def stored_state(path: Path) -> StoredState:
    """Return the weights in one safetensors file."""
    return StoredState({name: (name, stored) for name, stored in read_header(path).items()})


@torch.no_grad()
def lasting_state(loaded: Loaded) -> Mapping[str, Tensor]:
    """Return a model's weights as they are now, for when its module has gone on to be trained.

    Where the model's own files hold exactly these tensors under these names they are read from
    there; otherwise (names of their own, a merged adapter) they are copied to the host's memory.
    """
    now = {name: value.detach() for name, value in loaded.weights.items()}
    stored = _in_files(loaded, now)
    if stored is not None and all(torch.equal(stored[name], now[name].cpu()) for name in now):
        return stored
    return {name: value.to("cpu", copy=True) for name, value in now.items()}


def _in_files(loaded: Loaded, now: Mapping[str, Tensor]) -> StoredState | None:
    """Return the files' tensors under the module's names, None where one is not there."""
    if loaded.source not in ("folder", "smollm2"):
        return None
    try:
        folder = smollm2_folder()[0] if loaded.source == "smollm2" else resolve(loaded.name).path
        files = read_weights(folder) if folder else {}
    except ModelError:
        return None
    owners = {now[name].data_ptr(): name for name in files if name in now}
    names: dict[str, tuple[str, Stored]] = {}
    for name, value in now.items():
        owner = name if name in files else owners.get(value.data_ptr(), "")
        if owner not in files or files[owner].shape != tuple(value.shape):
            return None
        names[name] = (owner, files[owner])
    return StoredState(names, {name: value.dtype for name, value in now.items()})
