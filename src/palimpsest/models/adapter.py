"""A LoRA adapter merged into its base (Hu et al., 2021): W + s B A, with s = alpha / rank.

The adapter's claims are compared with its own tensors first, because a rank in its config alone
would allocate memory, and an adapter that matches nothing would leave the base as it is in silence.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palimpsest.errors import ModelError
from palimpsest.models.device import check_package
from palimpsest.models.inspect_folder import FLOATS, Stored, file_in, read_json, read_weights
from palimpsest.models.quiet import foreign

WEIGHTS = "adapter_model.safetensors"
RANK_LIMIT = 512  # what a config may claim beyond its tensors: a default that patterns override
# Starts of these kinds take something out of the base, which the adapter's files do not hold.
CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga", "mica")


def adapter_base(folder: Path) -> str:
    """Return the name of the base that an adapter's own config states."""
    config = _config(folder)
    name = config.get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ModelError(
            f"{folder}: is an adapter that names no base (base_model_name_or_path is {name!r}); "
            "expected one; give the base model beside it"
        )
    return name


def merged(model: Any, folder: Path) -> Any:
    """Return the model with the adapter merged into its weights; the model given is used up."""
    config = _config(folder)
    tensors = read_weights(folder, WEIGHTS)
    _check_ranks(folder, config, tensors)
    check_package("peft", f"{folder}: is a LoRA adapter", "palimpsest-audit[peft]")
    import peft
    from safetensors.torch import load_file

    with foreign(f"{folder}: its adapter", "a LoRA adapter of the base it is merged into"):
        settings = peft.LoraConfig.from_pretrained(str(folder))
        settings.init_lora_weights, settings.inference_mode = True, True
        shell = peft.get_peft_model(model, settings)
        state = load_file(str(file_in(folder, WEIGHTS)))
        report = peft.set_peft_model_state_dict(shell, state)
        missing = [name for name in report.missing_keys if "lora_" in name or "modules_to" in name]
        unexpected = list(report.unexpected_keys)
        if missing or unexpected:
            raise ModelError(
                f"{folder}: {len(missing)} tensors of the adapter are missing and "
                f"{len(unexpected)} fit nothing in the base (first: {(missing + unexpected)[0]}); "
                "expected an adapter trained on this base; name its own base"
            )
        result = shell.merge_and_unload(safe_merge=True)
    for value in result.parameters():
        value.requires_grad_(True)
    return result


def _config(folder: Path) -> dict[str, Any]:
    config = read_json(folder, "adapter_config.json")
    if config is None:
        raise ModelError(f"{folder}: has no adapter_config.json; expected a LoRA adapter")
    start = config.get("init_lora_weights")
    if config.get("peft_type") != "LORA" or config.get("auto_mapping"):
        raise ModelError(
            f"{folder}: is a {str(config.get('peft_type'))[:40]!r} adapter"
            f"{' with a model class of its own' if config.get('auto_mapping') else ''}; expected "
            "'LORA'; merge it with its own tools and give the whole model"
        )
    if isinstance(start, str) and start.lower().startswith(CHANGES_BASE):
        raise ModelError(
            f"{folder}: was started as {start[:40]!r}, which changes the base itself; expected a "
            "plain LoRA; convert it with peft (path_initial_model_for_weight_conversion) or give "
            "the merged model"
        )
    return config


def _check_ranks(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Stored]) -> None:
    """Refuse ranks that the adapter's tensors do not have."""
    strange = next((n for n, stored in tensors.items() if stored.dtype not in FLOATS), None)
    if strange:
        raise ModelError(
            f"{folder}: tensor {strange!r} is stored as {tensors[strange].dtype}; expected one of "
            f"{', '.join(sorted(FLOATS))}; save the adapter again"
        )
    stored_ranks = {
        stored.shape[0]
        for name, stored in tensors.items()
        if re.search(r"lora_(embedding_)?A\b", name) and stored.shape
    }
    pattern = config.get("rank_pattern") or {}
    claimed = [config.get("r"), *(pattern.values() if isinstance(pattern, dict) else [None])]
    if (
        not stored_ranks
        or any(type(rank) is not int or rank < 1 for rank in claimed)
        or max(claimed) > max(RANK_LIMIT, *stored_ranks)
    ):
        raise ModelError(
            f"{folder}: its config claims rank {str(max(map(str, claimed), key=len))[:40]}, its "
            f"tensors have {sorted(stored_ranks) or 'no LoRA matrices'}; expected the same; get "
            "the adapter again"
        )
