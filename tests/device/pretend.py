"""A pretend accelerator: CPU data in tensors that report another device and refuse to mix.

``pretend:0`` behaves like a CUDA device as far as placement goes. A tensor on it meets a CPU tensor
only in a copy, as an index, or where the CPU tensor is a single number; everything else raises, as
CUDA would. Numbers are computed by the CPU's own kernels on the data inside, so results can be
compared with the CPU's. What it does not show: CUDA's kernels, their rounding, their speed.

``Gauge`` counts how many tensors of one shape live on the device at once: with the shape of a
weight that is the number of copies of the weights, gradients and moments included.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "pretend"


class _Backend(_DummyBackendModule):  # type: ignore[misc]
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
DEVICE = torch.device(f"{NAME}:0")
_tensor = torch.tensor
_device_constructors()  # keeps torch.tensor as it is now, for torch.device("meta") as a context


class Mixed(RuntimeError):
    """Tensors of two devices met."""


class Gauge:
    """The number of live tensors of one shape on the device, now and at most."""

    current: "Gauge | None" = None

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.storages: Counter[int] = Counter()
        self.peak = 0

    def __enter__(self) -> "Gauge":
        Gauge.current = self
        return self

    def __exit__(self, *_: object) -> None:
        Gauge.current = None


class _Token:
    """Lives as long as a tensor on the device; several views share a storage."""

    def __init__(self, gauge: Gauge, storage: int) -> None:
        self.gauge, self.storage = gauge, storage
        gauge.storages[storage] += 1
        gauge.peak = max(gauge.peak, len(gauge.storages))

    def __del__(self) -> None:
        self.gauge.storages[self.storage] -= 1
        if not self.gauge.storages[self.storage]:
            del self.gauge.storages[self.storage]


class Far(torch.Tensor):
    """A tensor on the device; its data are in ``inner``, on the CPU."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Far":
        far: Far = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=DEVICE,
        )
        far.inner = inner
        gauge = Gauge.current
        if gauge is not None and tuple(inner.shape) == gauge.shape:
            far.token = _Token(gauge, inner.untyped_storage().data_ptr())  # type: ignore[attr-defined]
        return far

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Far({self.inner!r})"

    # Lists in an index become tensors below the dispatcher, which would make them on the device.
    def __getitem__(self, key: Any) -> torch.Tensor:
        return super().__getitem__(_indices(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_indices(key), value)

    def tolist(self) -> Any:
        return self.inner.tolist()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(f"can't convert {DEVICE} device type tensor to numpy; use .cpu() first")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            copy: Any = Far(self.inner.detach().clone())
            if isinstance(self, torch.nn.Parameter):
                copy = torch.nn.Parameter(copy, requires_grad=self.requires_grad)
            memo[id(self)] = copy
        return memo[id(self)]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _indices(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(map(_indices, key))
    return _tensor(key) if isinstance(key, list) else key


def _near(value: Any) -> Any:
    return value.inner if isinstance(value, Far) else value


def _far(value: Any) -> Any:
    return Far(value) if type(value) is torch.Tensor else value


def _is_far(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """Compute an operation on the data inside, if its tensors may meet."""
    name = func._schema.name.removeprefix("aten::")
    if func is torch.ops.prim.device.default:
        return DEVICE
    leaves = tree_flatten((args, kwargs))[0]
    tensors = [value for value in leaves if isinstance(value, torch.Tensor)]
    far = [value for value in tensors if isinstance(value, Far)]
    target = kwargs.get("device")
    if not far and not _is_far(target):
        return func(*args, **kwargs)
    inside = {**kwargs, "device": torch.device("cpu")} if _is_far(target) else kwargs
    if name == "copy_":
        _near(args[0]).copy_(_near(args[1]))
        return args[0]
    if name == "_to_copy":
        result = func(_near(args[0]), **inside)
        return Far(result) if target is None or _is_far(target) else result
    if far:
        _refuse(name, args, tensors)
    result = func(*tree_map(_near, args), **tree_map(_near, inside))
    if name == "_local_scalar_dense" or (target is not None and not _is_far(target)):
        return result
    if name.endswith("_") and not name.endswith("__"):
        return args[0] if result is not None else None
    return kwargs["out"] if "out" in kwargs else tree_map(_far, result)


def _refuse(name: str, args: Any, tensors: list[torch.Tensor]) -> None:
    """Raise where CUDA would: a CPU tensor with dimensions beside one on the device."""
    near = [value for value in tensors if not isinstance(value, Far)]
    if name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"):
        if not isinstance(args[0], Far):
            raise Mixed(f"{name}: a CPU tensor is indexed by one on {DEVICE}")
        near = [value for value in near if not any(value is index for index in args[1])]
    joined = name in ("cat", "stack")
    if any(value.dim() or joined for value in near):
        raise Mixed(
            f"{name}: expected all tensors on the same device, found {DEVICE} and cpu, shapes "
            f"{[tuple(value.shape) for value in near]} on the cpu"
        )


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
    """Stand for ``torch.tensor``, which makes its tensor below the dispatcher."""
    made = _tensor(data, *args, **kwargs)
    return made.to(device) if _is_far(device) else made


@contextlib.contextmanager
def pretend() -> Iterator[torch.device]:
    """Have the device while the block runs."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # or tied weights come apart
    torch.tensor = _made  # type: ignore[assignment]
    try:
        with _Mode():
            yield DEVICE
    finally:
        torch.tensor = _tensor
        torch.__future__.set_swap_module_params_on_conversion(before)
