"""Tiny random models, the folders they are stored in, and changes of what lies there."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

WEIGHTS = "model.safetensors"


def random_model(config: Any, seed: int, spread: float = 0.15) -> Any:
    """Return a model whose every parameter, norms and biases too, is far from its default."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            value.copy_(1 + 0.3 * noise if "norm" in name or ".ln_" in name else spread * noise)
    return model


def saved(folder: Path, model: Any, tokenizer: Any) -> Path:
    """Return the folder after a model and its tokenizer are stored there."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def copy_of(folder: Path, tmp_path: Path, name: str = "copy") -> Path:
    return Path(shutil.copytree(folder, tmp_path / name))


def edit(folder: Path, file: str, **changes: Any) -> None:
    """Change keys of a JSON file."""
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(
    folder: Path, change: Callable[[dict[str, Tensor]], object], file: str = WEIGHTS, **note: str
) -> None:
    """Write the weights again after a change of their state dict."""
    state = load_file(folder / file)
    change(state)
    save_file(state, folder / file, metadata={"format": "pt", **note})
