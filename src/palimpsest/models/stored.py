"""Tensors in safetensors files: whoever reads them, the same pass hashes and checks them.

A tensor goes from its file to where it is used in pieces that stay in the processor's cache. So
reading, converting, checking and copying it cost little beside the hash.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palimpsest.errors import DriftError, ModelError
from palimpsest.models.vet import Stored, read_header

PIECE = 2**20
"""Bytes read at a time."""
TYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Content:
    """What a tensor was found to hold: the SHA-256 of its values, floats in float32."""

    dtype: str
    shape: tuple[int, ...]
    sha: bytes
    finite: bool


def read_tensor(name: str, stored: Stored, into: Tensor | None = None) -> Content:
    """Read a tensor, into memory of its own where some is given, and return what it holds.

    It is finite if it is so in the precision of ``into``.
    """
    piece = torch.empty(PIECE, dtype=torch.uint8)
    window = memoryview(_bytes(piece))
    kind, whole, finite, done = TYPES[stored.dtype], hashlib.sha256(), True, 0
    flat = None if into is None else into.detach().view(-1)
    left = math.prod(stored.shape) * kind.itemsize
    try:
        with open(stored.file, "rb") as file:
            file.seek(stored.offset)
            while left:
                size = file.readinto(window[: min(PIECE, left)])
                if size % kind.itemsize or not size:
                    raise EOFError("the file is too short")
                left -= size
                values = piece[:size].view(kind)
                values = values.float() if kind.is_floating_point else values
                whole.update(_bytes(values))
                if flat is not None:
                    values = values.to(flat.dtype)
                    flat[done : done + len(values)] = values
                    done += len(values)
                if values.is_floating_point():
                    low, high = torch.aminmax(values)  # a NaN anywhere comes out of both
                    finite = finite and math.isfinite(low) and math.isfinite(high)
    except (OSError, EOFError) as error:
        raise ModelError(
            f"{stored.file}: tensor {name[:80]!r} cannot be read ({error}); the file changed or "
            "is damaged; get it again"
        ) from error
    dtype = torch.float32 if kind.is_floating_point else kind
    return Content(str(dtype), stored.shape, whole.digest(), finite)


def content_of(value: Tensor) -> Content:
    """Return what a tensor in memory holds."""
    exact = value.detach().float() if value.is_floating_point() else value.detach()
    sha = hashlib.sha256(_bytes(exact.to("cpu"))).digest()
    return Content(str(exact.dtype), tuple(value.shape), sha, is_finite(value))


def _bytes(value: Tensor) -> Any:
    return value.contiguous().reshape(-1).view(torch.uint8).numpy()


def is_finite(value: Tensor) -> bool:
    """Tell whether every value of a tensor is finite."""
    if value.numel() == 0 or not value.is_floating_point():
        return True
    low, high = torch.aminmax(value.detach())  # one pass, and a NaN anywhere comes out of it
    return bool(torch.isfinite(low) & torch.isfinite(high))


def not_finite(name: str, part: str) -> ModelError:
    """Return the error of a model with a tensor that is not finite."""
    return ModelError(
        f"{name}: tensor {part!r} holds NaN or infinite values; the training diverged or the file "
        "is damaged, get another checkpoint"
    )


class LazyState(Mapping[str, Tensor]):
    """Weights that are read or made when they are asked for, and hashed whenever they are.

    What is read a second time has to be what was read first.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.contents: dict[str, Content] = {}
        """What was read so far, by owner."""

    def owner(self, name: str) -> str:
        """Return what identifies a tensor: names that share one have the same owner."""
        return name

    def ordered(self) -> list[str]:
        """Return the names in the order in which they are best read."""
        return list(self)

    def read_into(self, name: str, into: Tensor) -> None:
        """Read a tensor into memory of its shape."""
        copy_into(name, self[name], into)

    def look(self, name: str) -> None:
        """Read a tensor only to know what it holds."""
        _ = self[name]

    def owned(self) -> dict[str, Tensor]:
        """Return every tensor once, by owner."""
        found: dict[str, Tensor] = {}
        for name in self.ordered():
            if self.owner(name) not in found:
                found[self.owner(name)] = self[name]
        return found

    def in_memory(self) -> dict[str, Tensor]:
        """Return the weights, read once; names that share a tensor share memory."""
        found = self.owned()
        return {name: found[self.owner(name)] for name in self}

    def note(self, owner: str, content: Content) -> None:
        """Remember what was read; DriftError if it is not what was read before."""
        if self.contents.setdefault(owner, content).sha != content.sha:
            raise DriftError(
                f"{self.name}: tensor {owner!r} changed between two reads; expected files that "
                "stay as they are; put the model back, or start a new run with another --out"
            )

    def digest(self) -> str:
        """Return ``state_digest`` of the weights; what was not read yet is read now."""
        for name in self.ordered():
            if self.owner(name) not in self.contents:
                self.look(name)
        return _combined({name: self.contents[self.owner(name)] for name in self})


class StoredState(LazyState):
    """Weights in safetensors files, by name.

    names: the stored name of each name, where they differ; several may have the same.
    dtype: what floats are converted to when they are read; None leaves them as they are stored.
    whole: told of the state once all of it has been read, before the last tensor is handed out.
    """

    def __init__(
        self,
        name: str,
        tensors: Mapping[str, Stored],
        names: Mapping[str, str] | None = None,
        dtype: torch.dtype | None = None,
        whole: Callable[["StoredState"], None] | None = None,
    ) -> None:
        super().__init__(name)
        self.tensors, self.dtype, self._whole = tensors, dtype, whole
        self.names = names or {name: name for name in tensors}
        self._owners = set(self.names.values())

    def owner(self, name: str) -> str:
        return self.names[name]

    def ordered(self) -> list[str]:
        places = {name: self.tensors[stored] for name, stored in self.names.items()}
        return sorted(places, key=lambda name: (str(places[name].file), places[name].offset))

    def __getitem__(self, name: str) -> Tensor:
        stored = self.tensors[self.names[name]]
        kind = TYPES[stored.dtype]
        kind = self.dtype or kind if kind.is_floating_point else kind
        value = torch.empty(stored.shape, dtype=kind)
        self.read_into(name, value)
        return value

    def read_into(self, name: str, into: Tensor) -> None:
        owner = self.names[name]
        stored = self.tensors[owner]
        check_shape(name, stored.shape, into)
        content = read_tensor(owner, stored, into)
        if not content.finite:
            raise not_finite(self.name, name)
        self.note(owner, content)

    def look(self, name: str) -> None:
        owner = self.names[name]
        self.note(owner, read_tensor(owner, self.tensors[owner]))

    def note(self, owner: str, content: Content) -> None:
        super().note(owner, content)
        if self._whole is not None and self._owners <= self.contents.keys():
            whole, self._whole = self._whole, None
            whole(self)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def stored_state(path: Path) -> StoredState:
    """Return the weights in one safetensors file."""
    return StoredState(str(path), read_header(path))


def check_shape(name: str, shape: Sequence[int], into: Tensor) -> None:
    """Refuse a tensor that does not fit where it belongs."""
    if tuple(shape) != tuple(into.shape):
        raise ModelError(
            f"tensor {name[:80]!r} has the shape {list(shape)}; expected {list(into.shape)}; give "
            "weights of the same architecture"
        )


def copy_into(name: str, value: Tensor, into: Tensor) -> None:
    """Copy a tensor into memory of its shape."""
    check_shape(name, value.shape, into)
    into.copy_(value)


@torch.no_grad()
def pour(state: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
    """Copy weights into the tensors of the same names; what two names share is read once."""
    if odd := sorted(state.keys() ^ into.keys()):
        raise ModelError(f"tensor {odd[0][:80]!r} is in one of two models; expected it in both")
    if not isinstance(state, LazyState):
        for name, value in state.items():
            copy_into(name, value, into[name])
        return
    filled = set[tuple[str, int]]()
    for name in state.ordered():
        tied = (state.owner(name), into[name].data_ptr())
        if tied not in filled:
            state.read_into(name, into[name])
            filled.add(tied)


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, shapes and values, floats as float32: neither the order of the
    tensors nor the precision that they are stored in matters."""
    if isinstance(state, LazyState):
        return state.digest()
    memory: dict[Any, Content] = {}
    contents = {}
    for name, value in state.items():
        place = (value.data_ptr(), value.dtype, value.shape, value.stride())
        if place not in memory or not value.numel():
            memory[place] = content_of(value)
        contents[name] = memory[place]
    return _combined(contents)


def _combined(contents: Mapping[str, Content]) -> str:
    whole = hashlib.sha256()
    for name in sorted(contents):
        content = contents[name]
        whole.update(f"{name}\0{content.dtype}\0{content.shape}\0".encode() + content.sha)
    return f"sha256:{whole.hexdigest()}"
