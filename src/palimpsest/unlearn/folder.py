"""Checkpoints in Hugging Face layout with a record and a model card, written whole or not at all.

The folder is built beside the work of the command and renamed into place when everything is in it.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from palimpsest.errors import InputError
from palimpsest.models.load import Loaded
from palimpsest.models.quiet import quiet
from palimpsest.models.stored import stored_state
from palimpsest.run import disk

RECORD = "palimpsest.json"


def write_checkpoint(
    folder: Path, loaded: Loaded, weights: Path, record: Mapping[str, Any], card: str
) -> None:
    """Write the model with these weights; its module and tokenizer are the loaded model's."""
    state = stored_state(weights)
    with torch.no_grad():
        for name, value in loaded.model.state_dict().items():
            value.copy_(state[name])
    with quiet():
        loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
    disk.write_bytes(folder / RECORD, json.dumps(record, indent=2).encode() + b"\n")
    disk.write_bytes(folder / "README.md", card.encode())


def publish(built: Path, out: Path) -> None:
    """Rename a finished folder into place; an existing one is never replaced."""
    disk.make_folder(Path(os.path.abspath(out)).parent)
    if out.exists():
        raise InputError(f"out: {out} was created meanwhile; expected a new folder; move it away")
    with disk.disk_errors(out, "rename"):
        os.rename(built, out)


def card(title: str, lines: Mapping[str, str], *paragraphs: str) -> str:
    """Return a model card: what the model is, how it was made, and what is not known of it."""
    table = "\n".join(f"- **{name}**: {text}" for name, text in lines.items())
    return "\n\n".join([f"# {title}", *paragraphs[:1], table, *paragraphs[1:]]) + "\n"
