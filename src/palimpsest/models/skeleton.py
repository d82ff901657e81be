"""The shape a config asks for, compared with the file before memory is allocated, then filled."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from palimpsest.errors import ModelError
from palimpsest.models.device import device_memory, foreign
from palimpsest.models.stored import StoredState, is_finite, not_finite, read_tensor
from palimpsest.models.vet import FLOATS, Stored

# Tensors that older checkpoints carry and transformers now computes.
COMPUTED = r"(rotary_emb\.inv_freq|\battn\.(masked_)?bias|\battention\.(masked_)?bias|masked_bias)$"


def build_config(config: Mapping[str, Any], where: str) -> Any:
    """Return the transformers config of a vetted ``config.json``: a causal model, dropout zero."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind, architectures = config["model_type"], config["architectures"]
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind) or ()
    if not set(architectures) & set((causal,) if isinstance(causal, str) else causal):
        raise ModelError(
            f"{where}: is a {architectures[0]} ({kind}); expected a causal language model that "
            "transformers has built in, such as LlamaForCausalLM"
        )
    if config.get("quantization_config") is not None:
        raise ModelError(
            f"{where}: quantization_config found; expected float weights, because quantized ones "
            "cannot be re-acquired; dequantize the model and save it as bfloat16"
        )
    with foreign(f"{where}: its config", f"a config of {architectures[0]}"):
        built = CONFIG_MAPPING[kind].from_dict(dict(config))
    for key, value in vars(built).items():
        if "drop" in key and type(value) in (int, float):
            setattr(built, key, 0.0)
    built.use_cache = False
    return built


def skeleton(config: Any, where: str) -> Any:
    """Return the model of a config without memory for its weights (on the meta device)."""
    from transformers import AutoModelForCausalLM

    with foreign(f"{where}: its config", "one whose numbers fit together"), torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def fill(folder: Path, bare: Any, state: StoredState, dtype: torch.dtype) -> Any:
    """Return the model of a skeleton with the weights of the files, each where it belongs."""
    needed = dtype.itemsize * sum(value.numel() for value in bare.parameters())
    if needed > (room := device_memory("cpu")):
        raise ModelError(
            f"{folder}: needs {needed / 1e9:.1f} GB; this machine has {room / 1e9:.1f} GB; use a "
            "larger machine or a smaller dtype"
        )
    options: dict[str, Any] = {"config": bare.config, "dtype": dtype}
    with foreign(f"{folder}: its weights", f"the weights of a {type(bare).__name__}"):
        model, info = type(bare).from_pretrained(
            None, state_dict=state.owned(), output_loading_info=True, **options
        )
    # Where transformers joins or splits stored tensors, only loading tells what is lost.
    _refuse(folder, "missing", info["missing_keys"])
    unknown = [name for name in info["unexpected_keys"] if not re.search(COMPUTED, name)]
    _refuse(folder, "unknown or wrongly shaped", [*unknown, *map(str, info["mismatched_keys"])])
    return model


def match_names(folder: Path, bare: Any, tensors: Mapping[str, Stored]) -> dict[str, str] | None:
    """Return the stored name of every tensor of the module, checked from headers; only tensors that
    the config ties are read.

    None where transformers joins or splits stored tensors of this family.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    expected = bare.state_dict()
    changes = get_model_conversion_mapping(bare)
    renamings = [change for change in changes if isinstance(change, WeightRenaming)]
    certain = len(renamings) == len(changes)
    dropped = getattr(bare, "_keys_to_ignore_on_load_unexpected", None) or ()
    names: dict[str, str] = {}
    for name, stored in tensors.items():
        target = rename_source_key(name, renamings, [], bare.base_model_prefix, expected)[0]
        _refuse(folder, "repeated", [name] if target in names else [])
        names[target] = name
        shape = tuple(expected[target].shape) if target in expected else ()
        if shape and (stored.dtype not in FLOATS or (certain and stored.shape != shape)):
            raise ModelError(
                f"{stored.file}: tensor {name!r} is {stored.dtype} of shape {list(stored.shape)}; "
                f"config.json asks for one of {', '.join(sorted(FLOATS))} of shape {list(shape)}; "
                "weights and config belong to different models"
            )
    if not certain:
        return None
    for name, owner in dict(getattr(bare, "all_tied_weights_keys", None) or {}).items():
        if name in names and owner in names:
            _check_tie(names[name], names[owner], tensors)
        shared = names.get(owner) or names.get(name)
        names |= {name: shared, owner: shared} if shared else {}
    _refuse(folder, "missing", expected.keys() - names.keys())
    known = re.compile("|".join([COMPUTED, *dropped]))
    unknown = names.keys() - expected.keys()
    _refuse(folder, "unknown", (names[name] for name in unknown if not known.search(name)))
    return {name: names[name] for name in expected}


def _check_tie(name: str, owner: str, tensors: Mapping[str, Stored]) -> None:
    """Refuse two tensors that the config calls one and that differ in the files."""
    if read_tensor(name, tensors[name]).sha != read_tensor(owner, tensors[owner]).sha:
        raise ModelError(
            f"{tensors[name].file}: tensors {name!r} and {owner!r} differ, and config.json ties "
            "them; set tie_word_embeddings to false there"
        )


def _refuse(folder: Path, what: str, tensors: Iterable[str]) -> None:
    """Refuse a folder with such tensors, if there are any."""
    if names := sorted(tensors):
        first = ", ".join(name[:80] for name in names[:3])
        raise ModelError(
            f"{folder}: {len(names)} {what} tensors ({first}); expected exactly "
            "those that config.json asks for; weights and config belong to different models"
        )


def check_loaded(name: str, model: Any, tokenizer: Any) -> None:
    """Refuse weights that are not finite, a tokenizer that does not fit, a non-causal model."""
    for part, value in model.named_parameters():
        if not value.is_floating_point():
            raise ModelError(
                f"{name}: weight {part!r} is {value.dtype}, of a quantized model; expected float "
                "weights; dequantize the model and save it again"
            )
    for part, value in model.state_dict().items():
        if not is_finite(value):
            raise not_finite(name, part)
    rows = model.get_input_embeddings().weight.shape[0]
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= rows:
        raise ModelError(
            f"{name}: its tokenizer has ids up to {largest}, its embedding {rows} rows; expected a "
            "row for every token; give the tokenizer that belongs to the model"
        )
    # The last token must not change what is predicted before it.
    pair = torch.arange(4).repeat(2, 1) % rows
    pair[1, -1] = (pair[0, -1] + 1 + rows // 2) % rows
    with foreign(f"{name}: a first forward pass", "a causal language model"), torch.no_grad():
        pair = pair.to(next(model.parameters()).device)
        first, second = model(input_ids=pair, use_cache=False).logits[:, :-1].float()
    if not torch.isfinite(first + second).all():
        raise ModelError(f"{name}: its predictions are not finite; load it as float32 or bfloat16")
    if not torch.allclose(first, second, rtol=1e-3, atol=1e-5):
        raise ModelError(f"{name}: is not causal; its predictions change with the next token")
