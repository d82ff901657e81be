"""The model families of the paper, their nine checkpoints, and the nine pocket models.

A family is a kind of architecture: Qwen2.5, SmolLM2 (Llama), Pythia (GPT-NeoX), GPT-2 and OLMo-2.
Thresholds of the recalibrated bar are per family, and gate masks exist only where the feed-forward
layer is gated (SwiGLU).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from palimpsest.errors import ModelError

# transformers' model_type -> the paper's family
FAMILIES: Mapping[str, str] = MappingProxyType(
    {"qwen2": "qwen2", "llama": "smollm2", "gpt_neox": "pythia", "gpt2": "gpt2", "olmo2": "olmo2"}
)
GATED: frozenset[str] = frozenset({"qwen2", "smollm2", "olmo2"})


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


PAPER: tuple[str, ...] = (
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen2.5-1.5B",
    "HuggingFaceTB/SmolLM2-360M",
    "HuggingFaceTB/SmolLM2-1.7B",
    "EleutherAI/pythia-410m",
    "EleutherAI/pythia-1.4b",
    "openai-community/gpt2-medium",
    "openai-community/gpt2-large",
    "allenai/OLMo-2-0425-1B",
)
"""The paper's pretrained models on the Hugging Face hub, in the order of the pocket models."""

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
