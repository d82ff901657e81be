"""The device that numbers are computed on: whether it is there, and faults that are its own.

Running out of memory or a broken driver says nothing about a model. Such a fault ends the run with
a ``MachineError`` and is never stored as a result.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from palimpsest.errors import MachineError, PlanError

_TYPES = ("OutOfMemoryError", "AcceleratorError")
_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
_WORDS = ("CUDA error", "CUDA driver", "cuDNN error", "CUBLAS_STATUS", "HIP error", *_MEMORY)
ADVICE = (
    "use --dtype bfloat16, --checkpointing, a larger --accumulate or a smaller --batch-tokens, or "
    "a device with more memory"
)


def check_device(device: str) -> None:
    """Refuse a device that torch does not have here."""
    import torch

    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise PlanError(f"device: {device!r} found; expected cpu, cuda or cuda:N") from error
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise PlanError(
            f"device: {device} found, but torch sees no CUDA device; use --device cpu, or install "
            "a torch with CUDA on a machine with an NVIDIA GPU"
        )
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise PlanError(
            f"device: {device} found, but torch sees {torch.cuda.device_count()} CUDA devices, "
            "numbered from 0"
        )


def repeatable(device: str) -> None:
    """Have torch compute the same bytes again for the same call, where it can.

    On a CPU it always can. On CUDA an operation without a deterministic kernel warns and is used
    all the same; matrix products are deterministic in a workspace of fixed size.
    """
    import torch

    if device != "cpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=device != "cpu")
    # Or torch would write into every tensor before its first use: a guard for code that reads what
    # nobody wrote, at the price of a tenth of a pocket model's step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def raise_machine_fault(error: BaseException) -> None:
    """Raise a MachineError if the error is the machine's and not a model's or a method's."""
    if isinstance(error, MachineError):
        raise error
    names = {kind.__name__ for kind in type(error).__mro__}
    text = " ".join(str(error).split())
    told = isinstance(error, RuntimeError) and any(word in text for word in _WORDS)
    if not (isinstance(error, MemoryError) or told or names & set(_TYPES)):
        return
    memory = isinstance(error, MemoryError) or "OutOfMemoryError" in names
    memory = memory or any(word in text for word in _MEMORY)
    what = f"out of memory; {ADVICE}" if memory else "the device failed; check its driver"
    raise MachineError(
        f"{what}; nothing of this step is stored, run the same command again to continue "
        f"({type(error).__name__}: {text[:300]})"
    ) from error


@contextmanager
def machine_faults() -> Iterator[None]:
    """Let faults of the machine leave the block as MachineError, all others as they are."""
    try:
        yield
    except Exception as error:
        raise_machine_fault(error)
        raise
