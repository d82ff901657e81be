"""The shape a config asks for, compared with the file before memory is allocated, then filled."""

import re
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palimpsest.errors import ModelError
from palimpsest.models.device import free_memory
from palimpsest.models.inspect_folder import FLOATS, Stored, check_quantiser
from palimpsest.models.module import device_of
from palimpsest.models.quiet import foreign

# Tensors that older checkpoints carry and transformers now computes.
COMPUTED = r"(rotary_emb\.inv_freq|\battn\.(masked_)?bias|\battention\.(masked_)?bias|masked_bias)$"


def build_config(config: Mapping[str, Any], where: str) -> Any:
    """Return the transformers config of a vetted ``config.json``: a causal model, dropout zero."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind, architectures = config["model_type"], config["architectures"]
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    causal = (causal,) if isinstance(causal, str) else tuple(causal or ())
    if not set(architectures) & set(causal):
        raise ModelError(
            f"{where}: is a {architectures[0]} ({kind}); expected a causal language model that "
            f"transformers has built in{', such as ' + causal[0] if causal else ''}; give the "
            "checkpoint of such a model"
        )
    check_quantiser(config, where)
    with foreign(f"{where}: its config", f"a config of {architectures[0]}"):
        built = CONFIG_MAPPING[kind].from_dict(dict(config))
    for key, value in vars(built).items():
        if "drop" in key and isinstance(value, (int, float)) and not isinstance(value, bool):
            setattr(built, key, 0.0)
    built.use_cache = False
    return built


def skeleton(config: Any, where: str) -> Any:
    """Return the model of a config without memory for its weights (on the meta device)."""
    from transformers import AutoModelForCausalLM

    with foreign(f"{where}: its config", "one whose numbers fit together"), torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def filled(
    folder: Path,
    config: Any,
    tensors: Mapping[str, Stored],
    dtype: torch.dtype,
    room: Mapping[int | str, int] | None = None,
) -> Any:
    """Return the model of a config with the weights of the files, every tensor where it belongs.

    room: the bytes it may take on each device when it is spread; {} takes what is free.
    """
    bare = skeleton(config, str(folder))
    settings: dict[str, Any] = {"config": config, "dtype": dtype, "local_files_only": True}
    if room is None:
        check_memory(bare, folder, dtype)
    _check_shapes(folder, bare, tensors)
    place = None
    if room is None:
        settings["state_dict"] = read_tensors(tensors, dtype)
    else:
        # Read by transformers itself; what fits on no device stays on the disk.
        place = str(folder)
        settings |= {"device_map": "auto", "max_memory": dict(room) or None}
        settings |= {"use_safetensors": True, "offload_folder": (spare := tempfile.mkdtemp())}
    with foreign(f"{folder}: its weights", f"the weights of a {type(bare).__name__}"):
        model, info = type(bare).from_pretrained(place, output_loading_info=True, **settings)
    if room is not None:
        weakref.finalize(model, shutil.rmtree, spare, ignore_errors=True)
    _check_info(folder, info)
    return model


def check_memory(bare: Any, where: object, dtype: torch.dtype) -> None:
    """Refuse a model that this machine's memory cannot hold."""
    floats = torch.finfo(dtype).bits // 8
    parameters = sum(value.numel() for value in bare.parameters())
    needed = parameters * floats + sum(b.numel() * b.element_size() for b in bare.buffers())
    room = free_memory()
    if needed > room:
        raise ModelError(
            f"{where}: its config asks for {parameters} parameters, {needed / 2**30:.1f} GiB as "
            f"{str(dtype).removeprefix('torch.')}; this machine has {room / 2**30:.1f} GiB free; "
            "use a larger machine, a smaller dtype, or check the config"
        )


def check_loaded(name: str, model: Any, tokenizer: Any) -> None:
    """Refuse weights that are not finite, a tokenizer that does not fit, a model that peeks."""
    for part, weight in model.named_parameters():
        if not weight.is_floating_point():
            raise ModelError(
                f"{name}: weight {part!r} is {str(weight.dtype).removeprefix('torch.')}, a "
                "quantised model; expected float weights; dequantise it and save it again"
            )
    for part, value in model.state_dict().items():
        checked = value.is_floating_point() and value.element_size() > 1 and not value.is_meta
        if checked and not _finite(value):
            raise ModelError(
                f"{name}: tensor {part!r} holds NaN or infinite values; expected finite weights; "
                "the training diverged or the file is damaged, get another checkpoint"
            )
    rows = model.get_input_embeddings().weight.shape[0]
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= rows:
        raise ModelError(
            f"{name}: its tokenizer has ids up to {largest}, its embedding {rows} rows; expected a "
            "row for every token; give the tokenizer that belongs to the model"
        )
    _check_causal(name, model, rows)


def _check_causal(name: str, model: Any, rows: int) -> None:
    """Refuse a model whose prediction changes with the token it has to predict."""
    pair = torch.arange(4).repeat(2, 1) % rows
    pair[1, -1] = (pair[0, -1] + 1 + rows // 2) % rows
    with foreign(f"{name}: a first forward pass", "a causal language model"), torch.no_grad():
        pair = pair.to(device_of(model.parameters()))
        seen = model(input_ids=pair, use_cache=False).logits[:, :-1].float()
    first, second = seen
    if not torch.isfinite(seen).all():
        raise ModelError(
            f"{name}: its predictions are not finite; expected logits; load it as float32 or "
            "bfloat16, or get another checkpoint"
        )
    if not torch.allclose(first, second, rtol=1e-3, atol=1e-5):
        raise ModelError(
            f"{name}: its predictions change with the token that comes after them; expected a "
            "causal language model; this is an encoder, give another checkpoint"
        )


def _finite(value: Tensor) -> bool:
    if value.numel() == 0:
        return True
    low, high = torch.aminmax(value)  # one pass, and a NaN anywhere comes out of it
    return bool(torch.isfinite(low) & torch.isfinite(high))


def _check_shapes(folder: Path, bare: Any, tensors: Mapping[str, Stored]) -> None:
    """Refuse tensors of another shape or kind, missing ones and strangers, from headers alone."""
    expected = {name: tuple(value.shape) for name, value in bare.state_dict().items()}
    renamed, certain = _renamed(bare, tensors)
    for name, target in renamed.items():
        stored = tensors[name]
        if target in expected and stored.dtype not in FLOATS and expected[target]:
            raise ModelError(
                f"{stored.file}: tensor {name!r} is stored as {stored.dtype}; expected one of "
                f"{', '.join(sorted(FLOATS))}; save the model again as float16, bfloat16 or float32"
            )
        if certain and target in expected and stored.shape != expected[target]:
            raise ModelError(
                f"{stored.file}: tensor {name!r} has shape {list(stored.shape)}; expected "
                f"{list(expected[target])} from config.json; weights and config belong to "
                "different models"
            )
    if not certain:
        return  # transformers splits or joins tensors of this family; it tells after loading
    tied = dict(getattr(bare, "all_tied_weights_keys", None) or {})
    present = set(renamed.values())
    present |= {name for name, source in tied.items() if source in present}
    present |= {source for name, source in tied.items() if name in present}
    _refuse(folder, "missing", expected.keys() - present)
    ignored = "|".join(getattr(bare, "_keys_to_ignore_on_load_unexpected", None) or ["(?!)"])
    known = re.compile(f"{COMPUTED}|{ignored}")
    unknown = [name for name, target in renamed.items() if target not in expected]
    _refuse(folder, "unknown", (n for n in unknown if not known.search(renamed[n])))


def _renamed(bare: Any, tensors: Iterable[str]) -> tuple[dict[str, str], bool]:
    """Return each stored name as the model calls it, and whether only names change on loading."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    expected, prefix = bare.state_dict(), bare.base_model_prefix
    transforms = get_model_conversion_mapping(bare)
    renamings = [change for change in transforms if isinstance(change, WeightRenaming)]
    renamed = {
        name: rename_source_key(name, renamings, [], prefix, expected)[0] for name in tensors
    }
    return renamed, len(renamings) == len(transforms)


def _refuse(folder: Path, what: str, tensors: Iterable[str]) -> None:
    names = sorted(tensors)
    if not names:
        return
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    raise ModelError(
        f"{folder}: {what} tensors: {shown}; expected exactly those that config.json asks for; "
        "weights and config belong to different models, or a shard is missing"
    )


def _check_info(folder: Path, info: Mapping[str, Any]) -> None:
    """Refuse what transformers reports after loading: tensors it invented, resized or dropped."""
    mismatched = [key if isinstance(key, str) else str(key[0]) for key in info["mismatched_keys"]]
    _refuse(folder, "wrongly shaped", mismatched)
    _refuse(folder, "missing", info["missing_keys"])
    unknown = info["unexpected_keys"]
    _refuse(folder, "unknown", (name for name in unknown if not re.search(COMPUTED, name)))


def read_tensors(tensors: Mapping[str, Stored], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the tensors in memory of their own, which a later change of the file cannot reach."""
    from safetensors import safe_open

    state: dict[str, Tensor] = {}
    for file in sorted({stored.file for stored in tensors.values()}):
        with foreign(f"{file}", "a safetensors file"), safe_open(file, framework="pt") as opened:
            for name in (n for n, stored in tensors.items() if stored.file == file):
                value = opened.get_tensor(name)
                wanted = dtype if value.is_floating_point() else value.dtype
                state[name] = value.to(wanted, copy=True)
    return state
