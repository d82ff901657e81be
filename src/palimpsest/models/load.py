"""Any checkpoint as a model ready to score or train, refused before harm when it is not one.

A name is a pocket model (``pocket/qwen2-s``), ``smollm2-135m``, a folder, a ``.gguf`` file, or a
Hugging Face id; a folder may hold a whole model or a LoRA adapter.  Only safetensors (or GGUF) are
read and no code of a checkpoint ever runs.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palimpsest.errors import ModelError
from palimpsest.models.families import POCKET, family_of
from palimpsest.models.pocket import pocket_folder

SMOLLM2 = "smollm2-135m"
DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")


@dataclass(frozen=True)
class Source:
    """Where a name leads: ``kind`` is pocket, smollm2, folder, adapter, gguf or hub."""

    name: str
    kind: str
    path: Path | None


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode with its tokenizer and where it came from.

    ``digest`` covers weights, config and tokenizer; ``gated`` says whether the feed-forward layers
    have a gate that a mask can act on; ``source`` is the kind of ``Source``.
    """

    name: str
    model: Any
    tokenizer: Any
    family: str
    gated: bool
    digest: str
    revision: str
    source: str
    parameters: int


def resolve(name: str) -> Source:
    """Give where a name would be loaded from; reads no weights and no network."""
    text = str(name)
    if text == SMOLLM2:
        return Source(text, "smollm2", None)
    if text.startswith("pocket/") or any(text == spec.folder for spec in POCKET):
        return Source(text, "pocket", pocket_folder(text))
    path = Path(text).expanduser()
    if path.is_dir():
        adapter = (path / "adapter_config.json").exists()
        return Source(text, "adapter" if adapter else "folder", path)
    if path.suffix == ".gguf" and path.is_file():
        return Source(text, "gguf", path)
    if _HUB_ID.fullmatch(text):
        return Source(text, "hub", None)
    raise ModelError(f"{text!r}: no such folder; expected a folder, a pocket model or a hub id")


def load(
    name: str,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    revision: str | None = None,
    base: "Loaded | str | None" = None,
) -> Loaded:
    """Give the model of that name, checked, in evaluation mode, with dropout zero."""
    from transformers import AutoModelForCausalLM

    source = resolve(name)
    if source.path is None:
        raise ModelError(f"{name}: cannot be loaded yet")
    with _quiet():
        model = AutoModelForCausalLM.from_pretrained(
            str(source.path), dtype=DTYPES[dtype], trust_remote_code=False, use_safetensors=True
        )
    model.config.use_cache = False
    model = model.eval().to(device)
    return Loaded(
        name,
        model,
        load_tokenizer(name, revision),
        family_of(model.config.model_type),
        any(part.endswith("gate_proj") for part, _ in model.named_modules()),
        state_digest(model.state_dict()),
        revision or "",
        source.kind,
        sum(value.numel() for value in model.parameters()),
    )


def load_tokenizer(name: str, revision: str | None = None) -> Any:
    """Give the tokenizer of that name."""
    from transformers import AutoTokenizer

    with _quiet():
        return AutoTokenizer.from_pretrained(str(resolve(name).path), trust_remote_code=False)


def load_config(name: str, revision: str | None = None) -> Any:
    """Give the transformers config of that name; reads no weights."""
    from transformers import AutoConfig

    with _quiet():
        return AutoConfig.from_pretrained(str(resolve(name).path), trust_remote_code=False)


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Give the SHA-256 of names, dtypes, shapes and bytes, whatever the order of the tensors."""
    whole = hashlib.sha256()
    for name in sorted(state):
        value = state[name].detach().to("cpu").contiguous()
        whole.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        whole.update(value.reshape(-1).view(torch.uint8).numpy())
    return f"sha256:{whole.hexdigest()}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from talking: no bars, errors only."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
