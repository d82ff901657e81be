"""Any checkpoint as a model ready to score or train, refused before harm when it is not one.

A name is a pocket model (``pocket/qwen2-s``), ``smollm2-135m``, a folder, a ``.gguf`` file, or a
Hugging Face id; a folder or an id may hold a whole model or a LoRA adapter.  Only safetensors and
GGUF are read, no code of a checkpoint ever runs, and everything a file claims is checked before
memory is asked for: ``inspect_folder.py`` reads the claims, ``skeleton.py`` compares them.
"""

import copy
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palimpsest.errors import ModelError
from palimpsest.models import gguf, hub
from palimpsest.models.adapter import adapter_base, merged
from palimpsest.models.device import SPREAD, check_device
from palimpsest.models.families import POCKET, family_of
from palimpsest.models.forward import FAMILIES, HEAD
from palimpsest.models.inspect_folder import check_tokenizer, file_in, read_config, read_weights
from palimpsest.models.pocket import check_digests, in_order, pocket_folder
from palimpsest.models.quiet import foreign, quiet
from palimpsest.models.skeleton import build_config, check_loaded, filled, read_tensors, skeleton

# Some virtual machines announce AMX and then kill the process that uses it, which bfloat16 on a
# CPU would; the next best instructions are there wherever AMX is.  Read at torch's first product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

SMOLLM2 = "smollm2-135m"
DTYPES: Mapping[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float32", "bfloat16", "float16")
}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
# What a config says beyond how the model computes.
_INCIDENTAL = {
    "_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache",
}  # fmt: skip
_SHAPE_KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "intermediate_size", "head_dim", "tie_word_embeddings",
)  # fmt: skip
# Texts that tokenizers with one vocabulary cut differently: case, accents, digits, blanks, signs.
_TELLING = (
    "The guild of Asha Tren is called Velkor.", " leading", "trailing ", "UPPER lower MiXeD",
    "e\u0301 \u00e9 \ufb01 \uff21", "1 12 123 1234567 3.14", "  two   blanks", "a\tb\nc\n\n d\r\n",
    "it's we'll \u2019s \"quoted\" (x) [y]", "foo_bar/baz-qux@x.org", "日本語 русский العربية 🙂",
    "x=y+1; // ok", "", "<s></s><|endoftext|>",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Where a name leads: ``kind`` is pocket, smollm2, folder, adapter, gguf or hub.

    ``path`` is the folder or file, None for what is not on this machine's disk under that name.
    """

    name: str
    kind: str
    path: Path | None


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode with its tokenizer and where it came from.

    ``weights`` is the state dict of ``model``, the module, which a pocket model has only after it
    was asked for: to import its code takes longer than a small study trains. ``embedding`` are the
    names of the input embedding in it. ``digest`` covers weights (of a spread model those in
    memory), config and tokenizer; ``revision`` is the commit of a hub model, the package of
    SmolLM2, else empty; ``source`` is the kind of ``Source``.
    """

    name: str
    config: Any
    weights: dict[str, Tensor]
    make: Callable[[], Any]
    tokenizer: Any
    digest: str
    revision: str
    source: str
    parameters: int
    embedding: tuple[str, ...]

    @property
    def family(self) -> str:
        """The paper's family of the architecture."""
        return family_of(self.config.model_type)

    @property
    def gated(self) -> bool:
        """Whether the feed-forward layers have a gate that a mask can act on."""
        return any(".gate_proj." in name for name in self.weights)

    @cached_property
    def model(self) -> Any:
        """The module, made on first use; its tensors are those of ``weights`` from then on."""
        with torch.random.fork_rng(devices=[]):
            model = self.make()
        self.weights.update(model.state_dict())
        return model


@dataclass(frozen=True)
class Outline:
    """What is known of a model before its weights are read: enough to say whether it fits."""

    name: str
    config: Any
    tokenizer: Any
    parameters: int


def resolve(name: str) -> Source:
    """Return where a name would be loaded from; reads no weights and no network."""
    text = str(name)
    if text == SMOLLM2:
        return Source(text, "smollm2", None)
    if text.startswith("pocket/") or any(text == spec.folder for spec in POCKET):
        return Source(text, "pocket", pocket_folder(text))
    if text and "\0" not in text and len(text) < 4096:
        path = Path(text).expanduser()
        if path.is_dir():
            return Source(text, _kind_of(path), path)
        if path.suffix == ".gguf" and path.is_file():
            return Source(text, "gguf", path)
        if path.exists():
            raise ModelError(
                f"{text}: is a file; expected a checkpoint folder in Hugging Face layout or a "
                ".gguf file; name the folder it is in"
            )
        if _HUB_ID.fullmatch(text) and ".." not in text:
            return Source(text, "hub", None)
    raise ModelError(
        f"{text[:200]!r}: no such folder or file; expected a folder, a .gguf file, a pocket model "
        f"(pocket/qwen2-s), {SMOLLM2} or a Hugging Face id (owner/name); check the spelling"
    )


def load(
    name: Any,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    revision: str | None = None,
    base: "Loaded | str | None" = None,
    room: Mapping[int | str, int] | None = None,
    tokenizer: Any = None,
) -> Loaded:
    """Return the model of that name, checked, in evaluation mode, with dropout zero.

    ``name`` may be a ``transformers`` model in memory, with its ``tokenizer``; it is copied.
    ``base`` is the model under a LoRA adapter; without it the adapter's own config names one.
    Device ``auto`` spreads the model over all devices, the host's memory and the disk, to be scored
    alone; ``room`` is what it may take there, in bytes by device, as accelerate takes it.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r}; expected one of {', '.join(DTYPES)}")
    check_device(device, training=False)
    if not isinstance(name, str | os.PathLike):
        return _copied(name, tokenizer, dtype, device)
    name = os.fspath(name)
    source, spread = resolve(name), device == SPREAD
    if revision and source.kind != "hub":
        raise ModelError(
            f"{source.name}: revision {revision!r} was given for a {source.kind} model; expected "
            "none; revisions belong to Hugging Face ids, leave it out"
        )
    # Nothing in loading needs randomness; if a library draws some, the caller's is not touched.
    with torch.random.fork_rng(devices=[]):
        if file := _gguf_file(source):
            tokenizer, model = gguf.gguf_tokenizer(file), gguf.gguf_model(file, DTYPES[dtype])
            return _finished(name, model, tokenizer, "", "gguf", "cpu" if spread else device)
        folder, commit = _folder(source, True, revision)
        if _kind_of(folder) == "adapter":
            own = _folder_tokenizer(folder) if check_tokenizer(folder) else None
            under, tokenizer = _under(folder, base, dtype)
            model, tokenizer = merged(under, folder), own or tokenizer
        else:
            tokenizer = _folder_tokenizer(folder)
            config = build_config(read_config(folder), str(folder))
            if source.kind == "pocket" and (dtype, device) == ("float32", "cpu"):
                return _shipped(name, folder, config, tokenizer)
            free = (room or {}) if spread else None
            model = filled(folder, config, read_weights(folder), DTYPES[dtype], free)
        return _finished(name, model, tokenizer, commit, source.kind, device)


def _copied(model: Any, tokenizer: Any, dtype: str, device: str) -> Loaded:
    """Return a copy of a model in memory, checked as a file's would be."""
    if not hasattr(model, "get_input_embeddings") or tokenizer is None:
        expected = "a path, a Hugging Face id, or a transformers model and tokenizer=…"
        raise ModelError(f"load: {type(model).__name__} found; expected {expected}")
    copied = copy.deepcopy(model).to(DTYPES[dtype])
    return _finished("model in memory", copied, tokenizer, "", "memory", device)


def load_tokenizer(name: str) -> Any:
    """Return the tokenizer of that name; an adapter without one has its base's."""
    source = resolve(name)
    if file := _gguf_file(source):
        return gguf.gguf_tokenizer(file)
    folder, _ = _folder(source, False)
    if _kind_of(folder) == "adapter" and not check_tokenizer(folder):
        return load_tokenizer(_base_of(folder))
    return _folder_tokenizer(folder)


def load_config(name: str) -> Any:
    """Return the transformers config of that name; an adapter has its base's. Reads no weights."""
    source = resolve(name)
    if file := _gguf_file(source):
        return gguf.gguf_config(file)
    folder, _ = _folder(source, False)
    if _kind_of(folder) == "adapter":
        return load_config(_base_of(folder))
    return build_config(read_config(folder), str(folder))


def outline(name: str, base: str | None = None) -> Outline:
    """Return config, tokenizer and parameter count of that name; reads no weights."""
    config = load_config(base if base and resolve(name).kind == "adapter" else name)
    parameters = sum(value.numel() for value in skeleton(config, name).parameters())
    return Outline(name, config, load_tokenizer(name), parameters)


def rounded(name: str, dtype: str) -> str:
    """Return how a model's weights lose precision when they are loaded, "" where they do not."""
    source = resolve(name)
    if dtype == "float32" or source.path is None:
        return ""
    if source.kind == "adapter":
        return f"its LoRA adapter is merged in {dtype}"
    if source.kind == "gguf":
        return f"its quantised weights are rounded to {dtype}"
    kinds = {stored.dtype for stored in read_weights(source.path).values()} & {"F16", "F32", "F64"}
    return f"its {', '.join(sorted(kinds))} weights are rounded to {dtype}" if kinds else ""


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, dtypes, shapes and bytes, whatever the order of the tensors."""
    whole = hashlib.sha256()
    known: dict[tuple[Any, ...], bytes] = {}
    for name in sorted(state):
        value = state[name].detach()
        # Tied tensors are the same bytes under two names; they are read once. Only a dict keeps its
        # tensors alive, so that an address stands for one of them.
        key = (value.data_ptr(), value.dtype, value.shape, value.stride(), str(value.device))
        if key not in known or value.numel() == 0 or not isinstance(state, dict):
            flat = value.to("cpu").contiguous().reshape(-1).view(torch.uint8)
            data: Any = flat.numpy()
            known[key] = hashlib.sha256(data).digest()
        whole.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        whole.update(known[key])
    return f"sha256:{whole.hexdigest()}"


def check_compatible(base: Loaded | Outline, other: Loaded | Outline) -> None:
    """Refuse a model that cannot be scored beside the base: tokenizer, vocabulary, architecture."""
    mine, theirs = base.config, other.config
    what = f"{other.name} beside {base.name}"
    advice = "give models that were trained from this base"
    if theirs.model_type != mine.model_type:
        raise ModelError(
            f"{what}: its architecture is {theirs.model_type}; expected {mine.model_type}; {advice}"
        )
    if theirs.vocab_size != mine.vocab_size:
        raise ModelError(
            f"{what}: its vocabulary has {theirs.vocab_size} rows; expected {mine.vocab_size}, "
            "because divergences are taken over the whole vocabulary; save it without resizing "
            "the embeddings"
        )
    for key in _SHAPE_KEYS:
        value, expected = getattr(theirs, key, None), getattr(mine, key, None)
        if value != expected:
            raise ModelError(f"{what}: its {key} is {value}; expected {expected}; {advice}")
    difference = _tokenizer_difference(base.tokenizer, other.tokenizer)
    if difference:
        raise ModelError(
            f"{what}: its tokenizer has {difference}; expected the same tokenizer, because scores "
            "of different tokens cannot be compared; save the candidate with the base's tokenizer"
        )


def _kind_of(folder: Path) -> str:
    """Tell an adapter folder from a whole model; a folder with both is refused."""
    if file_in(folder, "adapter_config.json") is None:
        return "folder"
    if file_in(folder, "model.safetensors") or file_in(folder, "model.safetensors.index.json"):
        raise ModelError(
            f"{folder}: holds both an adapter (adapter_config.json) and a whole model; expected "
            "one of them; move the adapter into a folder of its own"
        )
    return "adapter"


def _base_of(adapter: Path, given: str | None = None) -> str:
    """Return the name of the base under an adapter; a base that is an adapter again is refused."""
    name = given or adapter_base(adapter)
    source = resolve(name)
    hub_adapter = source.kind == "hub" and _kind_of(hub.snapshot(name, None, False)[0]) == "adapter"
    if source.kind == "adapter" or hub_adapter:
        raise ModelError(
            f"{adapter}: its base {name} is an adapter too; expected a whole model; merge that one "
            "first and give the result as base"
        )
    return name


def _gguf_file(source: Source) -> Path | None:
    """Return the checked GGUF file that a source stands for, None for any other kind."""
    if source.kind != "gguf" or source.path is None:
        return None
    gguf.check_gguf(source.path)
    return source.path


def _folder(source: Source, weights: bool, revision: str | None = None) -> tuple[Path, str]:
    """Return the folder on disk that a source stands for, and its revision."""
    if source.kind == "hub":
        return hub.snapshot(source.name, revision, weights)
    if source.kind == "pocket":
        check_digests(source.name)
    return (source.path, "") if source.path else gguf.smollm2_folder()


def _folder_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not check_tokenizer(folder):
        raise ModelError(
            f"{folder}: has no tokenizer (tokenizer.json or another vocabulary); expected one "
            "beside the weights; save it there with tokenizer.save_pretrained"
        )
    if file_in(folder, "adapter_config.json") is None:
        read_config(folder)  # AutoTokenizer reads it too
    # AutoTokenizer keeps only the vocabulary of tokenizer.json for some architectures (Qwen2) and
    # sets its own normalisation and splitting around it; the model was trained with the file's.
    whole = file_in(folder, "tokenizer.json") is not None
    kind = PreTrainedTokenizerFast if whole else AutoTokenizer
    with foreign(f"{folder}: its tokenizer", "the tokenizer of a causal language model"):
        return kind.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)


def _under(folder: Path, base: "Loaded | str | None", dtype: str) -> tuple[Any, Any]:
    """Return the model under an adapter, which may be written into, and its tokenizer."""
    if isinstance(base, Loaded):
        return copy.deepcopy(base.model).to("cpu", DTYPES[dtype]), base.tokenizer
    loaded = load(_base_of(folder, base), dtype=dtype)
    return loaded.model, loaded.tokenizer


def _finished(
    name: str, model: Any, tokenizer: Any, revision: str, kind: str, device: str
) -> Loaded:
    """Check the weights themselves, set the model to rest, and say what it is."""
    check_loaded(name, model, tokenizer)
    state = {name: value for name, value in model.state_dict().items() if not value.is_meta}
    digest = _digest(state, model.config, tokenizer)
    with foreign(f"{name}: moving it to {device!r}", "a device with room for the model"), quiet():
        model = model.eval() if device == SPREAD else model.eval().to(device)
    weights, table = model.state_dict(), model.get_input_embeddings().weight
    return Loaded(
        name=name,
        config=model.config,
        weights=weights,
        make=lambda: model,
        tokenizer=tokenizer,
        digest=digest,
        revision=revision,
        source=kind,
        parameters=sum(value.numel() for value in model.parameters()),
        embedding=tuple(n for n, v in weights.items() if v.data_ptr() == table.data_ptr()),
    )


def _shipped(name: str, folder: Path, config: Any, tokenizer: Any) -> Loaded:
    """Return a pocket model, whose files were compared with those that were checked when made."""
    tensors = read_weights(folder)
    stored = read_tensors(tensors, torch.float32)
    weights = {name: stored[name] for name in in_order(stored)}
    embedding = (FAMILIES[config.model_type].embedding, HEAD)
    weights[HEAD] = weights[embedding[0]]  # tied in all of them
    return Loaded(
        name=name,
        config=config,
        weights=weights,
        make=lambda: filled(folder, config, tensors, torch.float32).eval(),
        tokenizer=tokenizer,
        digest=_digest(weights, config, tokenizer),
        revision="",
        source="pocket",
        parameters=sum(value.numel() for value in stored.values()),
        embedding=embedding,
    )


def _digest(state: Mapping[str, Tensor], config: Any, tokenizer: Any) -> str:
    """Return the digest of what a model computes: its weights, its config and its tokenizer."""
    digest = hashlib.sha256(state_digest(state).encode())
    digest.update(_computes(config).encode())
    digest.update(_pipeline(tokenizer).encode())
    return f"sha256:{digest.hexdigest()}"


def _computes(config: Any) -> str:
    """Return the part of a config that says how the model computes, as canonical JSON."""
    kept = {
        key: value
        for key, value in config.to_dict().items()
        if key not in _INCIDENTAL and not key.startswith("_") and "drop" not in key
    }
    return json.dumps(kept, sort_keys=True, default=str)


def _pipeline(tokenizer: Any) -> str:
    """Return what a tokenizer does, as canonical JSON; padding and truncation are the caller's."""
    if not getattr(tokenizer, "is_fast", False):
        return json.dumps(sorted(tokenizer.get_vocab().items()))
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    return json.dumps(
        {key: value for key, value in parts.items() if key not in ("padding", "truncation")},
        sort_keys=True,
    )


def _tokenizer_difference(base: Any, other: Any) -> str:
    """Say how the other tokenizer differs from the base's, "" when they do the same."""
    if _pipeline(base) == _pipeline(other):
        return ""
    mine, theirs = base.get_vocab(), other.get_vocab()
    if len(mine) != len(theirs):
        return f"{len(theirs)} tokens for {len(mine)}"
    moved = sorted(token for token in mine if theirs.get(token) != mine[token])
    if moved:
        return f"token {moved[0]!r} at id {theirs.get(moved[0])} for {mine[moved[0]]}"
    # Toolkits write the same tokenizer with other incidental settings; what counts is its tokens.
    for text in _TELLING:
        if base(text)["input_ids"] != other(text)["input_ids"]:
            return f"the same vocabulary but other tokens for {text!r}"
    return ""
