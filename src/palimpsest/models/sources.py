"""Where a model's files are: this package, a folder or the Hugging Face hub; and its family.

A family is a kind of architecture: Qwen2.5, SmolLM2 (Llama), Pythia (GPT-NeoX), GPT-2 and OLMo-2.
Thresholds of the recalibrated bar are per family, and gate masks exist only where the feed-forward
layer is gated (SwiGLU). Pocket models are tiny real checkpoints of these families inside this
package.

Of a hub repository the small files come first and are vetted, so that one that will be refused is
refused before its weights are downloaded; its code and its pickles are never downloaded.
"""

import difflib
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from palimpsest.errors import ModelError
from palimpsest.models.vet import TEMPLATES, check_tokenizer, file_in, read_config
from palimpsest.run.files import file_digest

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


# -- the files -------------------------------------------------------------------------------------

POCKET_ROOT = Path(__file__).parent / "pocket"
POCKET_DIGESTS = POCKET_ROOT / "digests.json"
POCKET_NAMES = POCKET_ROOT / "names.json"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
Stamp = tuple[str, int, int, int, int, int]


def stamp(path: Path) -> Stamp:
    """Return a file's path, device, inode, size and times: another content has another stamp."""
    about = path.stat()
    times = about.st_mtime_ns, about.st_ctime_ns
    return str(path), about.st_dev, about.st_ino, about.st_size, *times


def known_digest(path: Path) -> str:
    """Return the digest of a file, computed once in a process while the file stays as it is."""
    return _digest_of(stamp(path))


@functools.cache
def _digest_of(stamp: Stamp) -> str:
    return file_digest(Path(stamp[0]))


def pocket_folder(name: str) -> Path:
    """Return the folder of a pocket model; ModelError if its files are not the shipped ones."""
    folder = POCKET_ROOT / pocket_spec(name).folder
    shipped = json.loads(POCKET_DIGESTS.read_text("utf-8"))
    expected = {path: sha for path, sha in shipped.items() if path.startswith(f"{folder.name}/")}
    for path, sha in expected.items():
        file = POCKET_ROOT / path
        if not file.is_file() or known_digest(file) != f"sha256:{sha}":
            raise ModelError(
                f"{name}: {path} is missing or was changed; install the package again, or train "
                "the pocket models in a clone: make pocket"
            )
    return folder


def pocket_names(name: str) -> dict[str, str]:
    """Return the stored name of every tensor of a pocket model, in the order of its module.

    The input embedding comes first, a tied head last; sums over tensors follow this order.
    """
    names: dict[str, dict[str, str]] = json.loads(POCKET_NAMES.read_text("utf-8"))
    return names[pocket_spec(name).folder]


class Kind(StrEnum):
    """Where a model comes from."""

    POCKET = "pocket"
    FOLDER = "folder"
    HUB = "hub"


def locate(name: str, *, weights: bool = False) -> tuple[Path, str]:
    """Return a model's folder on disk, a hub model's without its weights unless asked for, and its
    revision: the commit of a hub model, else empty."""
    match find_kind(name):
        case Kind.POCKET:
            return pocket_folder(name), ""
        case Kind.FOLDER:
            return Path(name).expanduser(), ""
        case Kind.HUB:
            return snapshot(name, weights)


def find_kind(name: str) -> Kind:
    """Return where a name would be loaded from; reads no weights and no network."""
    if name.startswith("pocket/") or any(name == spec.folder for spec in POCKET):
        pocket_spec(name)  # or says that there is none
        return Kind.POCKET
    if name and "\0" not in name and len(name) < 4096:
        path = Path(name).expanduser()
        if path.is_dir():
            return Kind.FOLDER
        near = _nearest_folder(path)
        if not path.exists() and _HUB_ID.fullmatch(name) and ".." not in name and not near:
            return Kind.HUB
        if near:
            raise ModelError(f"{name[:200]!r}: no such folder; did you mean {near}?")
    raise ModelError(
        f"{name[:200]!r}: no such folder; expected a checkpoint folder, a pocket model "
        "(pocket/qwen2-s) or a Hugging Face id (owner/name)"
    )


def _nearest_folder(path: Path) -> str:
    """Return the folder that a path with one misspelt part probably means, "" for none.

    A single name has to be very near: it may as well be a Hugging Face id.
    """
    for parent in path.parents:
        if parent.is_dir():
            wanted, *rest = path.parts[len(parent.parts) :]
            names = [child.name for child in parent.iterdir() if child.joinpath(*rest).is_dir()]
            close = difflib.get_close_matches(wanted, names, 1, 0.6 if len(path.parts) > 1 else 0.9)
            return str(parent.joinpath(close[0], *rest)) if close else ""
    return ""


SMALL = ["*.json", "*.txt", "tokenizer.model", "chat_template.jinja"]
WEIGHTS = ["model.safetensors", "model-*.safetensors", "adapter_model.safetensors"]
IGNORED = ["*/*", "*.py"]  # subfolders hold other formats of the same model


def small_files(folder: Path) -> list[Path]:
    """Return the files of a model's folder beside its weights that anything is read from."""
    named = [path for path in folder.iterdir() if any(map(path.match, SMALL))]
    return sorted(p for p in (*named, *(folder / TEMPLATES).glob("*")) if p.is_file())


def snapshot(name: str, weights: bool) -> tuple[Path, str]:
    """Return the folder of a hub model and its commit; downloads what is not there yet."""
    folder = _download(name, None, SMALL)
    # Later downloads take this commit, whatever the branch says by then.
    commit = folder.name
    if file_in(folder, "adapter_config.json") is None:
        read_config(folder)
    check_tokenizer(folder)
    return (_download(name, commit, WEIGHTS) if weights else folder), commit


def _download(name: str, revision: str | None, patterns: list[str]) -> Path:
    import huggingface_hub

    try:
        path = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=patterns, ignore_patterns=IGNORED
        )
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0][:200]
        raise ModelError(
            f"{name}: is not a folder here and cannot be downloaded from the Hugging Face hub "
            f"({type(error).__name__}: {first}); check the spelling and the network, log in for "
            "gated models, or download it elsewhere and give the folder"
        ) from error
    return Path(path)
