"""The nine pocket base models: tiny real checkpoints in Hugging Face layout, inside the package."""

import hashlib
import json
from pathlib import Path

from palimpsest.errors import ModelError
from palimpsest.models.families import pocket_spec

ROOT = Path(__file__).parent
DIGESTS = ROOT / "digests.json"


def pocket_folder(name: str) -> Path:
    """Return the folder of a pocket model, which loads like any other checkpoint folder."""
    folder = ROOT / pocket_spec(name).folder
    if not (folder / "model.safetensors").is_file():
        raise ModelError(
            f"{name}: no weights in {folder}; expected model.safetensors; install the package "
            "again, or train them in a clone: make pocket"
        )
    return folder


def check_digests(name: str) -> None:
    """Refuse, as ModelError, a pocket model whose files are not the ones that were shipped."""
    folder = pocket_folder(name)
    shipped = json.loads(DIGESTS.read_text("utf-8"))
    expected = {path: sha for path, sha in shipped.items() if path.startswith(f"{folder.name}/")}
    for path, sha in expected.items():
        file = ROOT / path
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != sha:
            raise ModelError(f"{name}: {path} is missing or was changed; install the package again")
