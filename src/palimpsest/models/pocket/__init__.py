"""The nine pocket base models: tiny real checkpoints in Hugging Face layout, inside the package."""

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from palimpsest.errors import ModelError
from palimpsest.models.families import pocket_spec

ROOT = Path(__file__).parent
DIGESTS = ROOT / "digests.json"
EMBEDDINGS = ("embed_tokens", "embed_in", "wte", "wpe")
PARTS = (
    *EMBEDDINGS, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "self_attn.q_norm", "self_attn.k_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
    "input_layernorm", "post_attention_layernorm", "post_feedforward_layernorm",
    "attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h",
    "ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj",
    "norm", "final_layer_norm", "ln_f",
)  # fmt: skip
"""What the five architectures consist of, in the order of their modules."""
_NAME = re.compile(r"\w+\.(?:\w+\.(\d+)\.)?(.+)\.(weight|bias)")


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


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names of stored tensors in the order in which the module has them.

    Sums over all tensors are taken in this order, so that it decides on their last bits.
    """

    def place(name: str) -> tuple[int, int, bool]:
        layer, part, kind = _NAME.fullmatch(name).groups()  # type: ignore[union-attr]
        at = -1 if part in EMBEDDINGS else 1000 if layer is None else int(layer)
        return at, PARTS.index(part), kind == "bias"

    return sorted(names, key=place)
