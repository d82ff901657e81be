"""The device that numbers are computed on, faults that are its own, and third-party libraries.

Running out of memory or a broken driver says nothing about a model. Such a fault ends the run with
a ``MachineError`` and is never stored as a result. Any other failure of a library on a user's files
becomes a ``ModelError``.
"""

import contextlib
import ctypes
import importlib.util
import logging as logs
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from palimpsest.errors import MachineError, ModelError, PalimpsestError, PlanError

_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
_DEVICE = ("CUDA error", "CUDA driver", "cuDNN error", "CUBLAS_STATUS", "HIP error")
ADVICE = (
    "use --dtype bfloat16, --checkpointing, --lora RANK, a larger engine.accumulate or a smaller "
    "engine.batch_tokens (in the YAML file), or a device with more memory"
)
SLACK = 1.2
"""The cost model is right within a fifth: what needs more than this times the memory is refused."""


KEPT = {-1: 512 * 2**20, -3: 32 * 2**20}
"""What glibc is told: M_TRIM_THRESHOLD, the most free bytes at the end of the heap, and
M_MMAP_THRESHOLD, the size from which on a block is mapped by itself; not more can be set."""


def keep_freed_memory() -> None:
    """Have the C library keep freed memory for the next tensors; does nothing where it cannot.

    By default glibc hands the end of its heap back to the kernel and gets it again, as zeroed
    pages, for nearly every operation on a few megabytes: half of the time that scoring takes.
    """
    with contextlib.suppress(OSError, AttributeError):
        for parameter, value in KEPT.items():
            ctypes.CDLL(None).mallopt(parameter, value)


def check_device(device: str) -> None:
    """Refuse a device that torch does not know or that this machine lacks."""
    import torch

    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise PlanError(f"device: {device!r} found; expected cpu, cuda or cuda:N") from error
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise PlanError(f"device: {device} found, and no CUDA device is there for it; use cpu")


def precision_remark(device: str, dtype: str) -> str:
    """Return what bfloat16 costs on a processor that has no instructions for it, "" otherwise."""
    if dtype != "bfloat16" or device != "cpu" or not (known := processor_flags()):
        return ""
    if known & {"avx512_bf16", "amx_bf16", "bf16"}:
        return ""
    return (
        "This processor has no instructions for bfloat16 (avx512_bf16, amx_bf16): it takes several "
        "times as long as float32, five times where it was measured, and two bytes per weight and "
        "gradient less. Use float32 if there is room."
    )


def processor_flags() -> set[str]:
    """Return what the processor says it can do; empty where the system does not tell."""
    try:
        return set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return set()


def check_lora(rank: int) -> None:
    """Refuse training by LoRA where peft is not installed."""
    if rank:
        check_package("peft", f"lora: rank {rank} trains adapters")


def check_package(package: str, what: str) -> None:
    """Refuse what needs an optional package that is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ModelError(
            f"{what}, and the package {package} is not installed; install it: pip install "
            f"'palimpsest-audit[{package}]'"
        )


def device_memory(device: str) -> int:
    """Return the bytes of memory that a device has, 0 where that cannot be known here."""
    import psutil
    import torch

    if device == "cpu":
        try:
            limit = int(Path("/sys/fs/cgroup/memory.max").read_text())  # of the container
        except (OSError, ValueError):
            limit = sys.maxsize
        return min(int(psutil.virtual_memory().total), limit)
    known = torch.device(device).type == "cuda" and torch.cuda.is_available()
    return torch.cuda.get_device_properties(device).total_memory if known else 0


def check_room(needed: float, device: str, what: str) -> None:
    """Refuse work that needs more bytes than its device has, before anything is computed."""
    there = device_memory(device)
    if there and needed > SLACK * there:
        raise PlanError(
            f"device: {device} has {there / 1e9:.1f} GB, and {what} needs about "
            f"{needed / 1e9:.1f} GB; {ADVICE}"
        )


def repeatable(device: str) -> None:
    """Have torch compute the same bytes again for the same call, where it can.

    On a CPU it always can. On CUDA an operation without a deterministic kernel warns and is used
    all the same; matrix products are deterministic in a workspace of fixed size.
    """
    import torch

    if device != "cpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # The same as use_deterministic_algorithms, which imports the compiler first: two seconds.
    torch.set_deterministic_debug_mode("error" if device == "cpu" else "warn")
    # Or torch would write into every tensor before its first use: a guard against reading what was
    # never written, at the price of a tenth of a pocket model's step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def raise_machine_fault(error: BaseException) -> None:
    """Raise a MachineError if the error is the machine's and not a model's or a method's."""
    if isinstance(error, MachineError):
        raise error
    kinds = {kind.__name__ for kind in type(error).__mro__}
    text = " ".join(str(error).split()) if "RuntimeError" in kinds else ""
    memory = kinds & {"MemoryError", "OutOfMemoryError"} or any(word in text for word in _MEMORY)
    if not (memory or "AcceleratorError" in kinds or any(word in text for word in _DEVICE)):
        return
    what = f"out of memory; {ADVICE}" if memory else "the device failed; check its driver"
    raise MachineError(
        f"{what}; nothing of this step is stored, run the same command again to resume "
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


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from printing: no bars, no warnings, errors only as exceptions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging: Any = sys.modules.get("transformers.utils.logging")
        if logging is None:  # it takes a second to import, and is not used here
            yield
            return
        before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity(logs.CRITICAL)
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(before)
            if bars:
                logging.enable_progress_bar()


@contextmanager
def foreign(what: str, expected: str) -> Iterator[None]:
    """Run a library on a user's files, already vetted: quiet, and any failure as one ModelError."""
    try:
        with quiet():
            yield
    except PalimpsestError:
        raise
    except BaseException as error:
        # What a library written in Rust raises where it gives up is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise_machine_fault(error)
        first = " ".join(str(error).split())[:300]
        raise ModelError(
            f"{what} cannot be used ({type(error).__name__}: {first}); expected {expected}; "
            "get the files again, or save them again with save_pretrained"
        ) from error
