"""The model families of the paper, their nine checkpoints, and the nine pocket models.

A family is a kind of architecture: Qwen2.5, SmolLM2 (Llama), Pythia (GPT-NeoX), GPT-2 and OLMo-2.
Thresholds of the recalibrated bar are per family, and gate masks exist only where the feed-forward
layer is gated (SwiGLU).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from palimpsest.errors import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# transformers' model_type -> the paper's family
FAMILIES: Mapping[str, str] = MappingProxyType(
    {"qwen2": "qwen2", "llama": "smollm2", "gpt_neox": "pythia", "gpt2": "gpt2", "olmo2": "olmo2"}
)
GATED: frozenset[str] = frozenset({"qwen2", "smollm2", "olmo2"})

POCKET_POSITIONS = 256


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One of the paper's pretrained models on the Hugging Face hub."""

    id: str
    family: str
    parameters: int

    @property
    def gated(self) -> bool:
        """Whether its feed-forward layers have a gate that a mask can act on."""
        return self.family in GATED


@dataclass(frozen=True, slots=True)
class PocketSpec:
    """One pocket model: its architecture and its size."""

    name: str
    model_type: str
    width: int
    layers: int
    heads: int

    @property
    def family(self) -> str:
        """The paper's family that this architecture belongs to."""
        return FAMILIES[self.model_type]

    @property
    def gated(self) -> bool:
        """Whether its feed-forward layers have a gate that a mask can act on."""
        return self.family in GATED

    @property
    def folder(self) -> str:
        """The name of its folder in ``models/pocket``."""
        return self.name.removeprefix("pocket/")


PAPER: tuple[Checkpoint, ...] = (
    Checkpoint("Qwen/Qwen2.5-0.5B", "qwen2", 494_032_768),
    Checkpoint("Qwen/Qwen2.5-1.5B", "qwen2", 1_543_714_304),
    Checkpoint("HuggingFaceTB/SmolLM2-360M", "smollm2", 361_821_120),
    Checkpoint("HuggingFaceTB/SmolLM2-1.7B", "smollm2", 1_711_376_384),
    Checkpoint("EleutherAI/pythia-410m", "pythia", 405_334_016),
    Checkpoint("EleutherAI/pythia-1.4b", "pythia", 1_414_647_808),
    Checkpoint("openai-community/gpt2-medium", "gpt2", 354_823_168),
    Checkpoint("openai-community/gpt2-large", "gpt2", 774_030_080),
    Checkpoint("allenai/OLMo-2-0425-1B", "olmo2", 1_484_916_736),
)

POCKET: tuple[PocketSpec, ...] = (
    PocketSpec("pocket/qwen2-s", "qwen2", 64, 3, 4),
    PocketSpec("pocket/qwen2-m", "qwen2", 80, 4, 4),
    PocketSpec("pocket/smollm2-s", "llama", 64, 3, 4),
    PocketSpec("pocket/smollm2-m", "llama", 80, 4, 4),
    PocketSpec("pocket/pythia-s", "gpt_neox", 64, 3, 4),
    PocketSpec("pocket/pythia-m", "gpt_neox", 80, 4, 4),
    PocketSpec("pocket/gpt2-s", "gpt2", 64, 3, 4),
    PocketSpec("pocket/gpt2-m", "gpt2", 80, 4, 4),
    PocketSpec("pocket/olmo2-s", "olmo2", 64, 3, 4),
)


def family_of(model_type: str) -> str:
    """Return the paper's family of a ``model_type``; an architecture it lacks is its own."""
    return FAMILIES.get(model_type, model_type)


def pocket_spec(name: str) -> PocketSpec:
    """Return the pocket model of that name, with or without ``pocket/`` before it."""
    for spec in POCKET:
        if name in (spec.name, spec.folder):
            return spec
    known = ", ".join(spec.name for spec in POCKET)
    raise ModelError(f"no pocket model is called {name!r}; there are {known}")


def pocket_config(spec: PocketSpec, vocabulary: int, end_of_text: int) -> "PretrainedConfig":
    """Return the transformers config of a pocket model: dropout 0, tied embeddings, float32."""
    from transformers import AutoConfig

    shared = {
        "vocab_size": vocabulary,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "pad_token_id": end_of_text,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }
    if spec.model_type == "gpt2":
        sizes = {
            "n_embd": spec.width,
            "n_layer": spec.layers,
            "n_head": spec.heads,
            "n_inner": 4 * spec.width,
            "n_positions": POCKET_POSITIONS,
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "summary_first_dropout": 0.0,
        }
    else:
        # A gated layer has three matrices for two: 8/3 of the width weighs what 4 times would.
        gated_width = 8 * spec.width // 3 // 4 * 4
        sizes = {
            "hidden_size": spec.width,
            "num_hidden_layers": spec.layers,
            "num_attention_heads": spec.heads,
            "intermediate_size": gated_width if spec.gated else 4 * spec.width,
            "max_position_embeddings": POCKET_POSITIONS,
        }
        if spec.model_type == "qwen2":
            # One key head a query head, unlike its namesake: a head here is only 16 or 20 wide.
            sizes["num_key_value_heads"] = spec.heads
    return AutoConfig.for_model(spec.model_type, **sizes, **shared)
