"""LoRA (Hu et al. 2021, arXiv:2106.09685): W + s B A, merged into a base or trained.

A user's adapter is merged into its base, with s = alpha / rank. Its claims are compared with its
own tensors first, because a rank in its config alone would allocate memory, and an adapter that
matches nothing would leave the base as it is in silence.

In training, every linear layer of the body gets an adapter, the head and the embeddings none.
Adapters are made when a training begins and merged into the weights when it ends, so that all other
code sees an ordinary model.
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palimpsest.errors import ModelError
from palimpsest.facts.nonce import key_number
from palimpsest.models.device import check_lora, check_package, foreign, quiet
from palimpsest.models.stored import StoredState
from palimpsest.models.vet import FLOATS, Stored, read_json

WEIGHTS = "adapter_model.safetensors"
RANK_LIMIT = 512  # what a config may claim beyond its tensors: a default that patterns override
# Starts of these kinds take something out of the base, which the adapter's files do not hold.
CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga", "mica")
# Further parts of peft's LoRA: models made longer, matrices sampled or spread over devices.
BEYOND_LORA = ("layer_replication", "monteclora_config", "megatron_config")


def adapter_base(folder: Path) -> str:
    """Return the name of the base that an adapter's own config states."""
    name = _config(folder).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ModelError(
            f"{folder}: adapter_config.json has base_model_name_or_path {name!r}; expected the "
            "name of its base; give the base model beside it"
        )
    return name


def merged(model: Any, folder: Path, adapter: StoredState) -> Any:
    """Return the model with the adapter merged into its weights; the model given is used up."""
    _check_ranks(folder, adapter.tensors)
    check_package("peft", f"{folder}: is a LoRA adapter")
    import peft

    with foreign(f"{folder}: its adapter", "a LoRA adapter of the base it is merged into"):
        settings = peft.LoraConfig.from_pretrained(str(folder))
        settings.init_lora_weights, settings.inference_mode = True, True
        settings.auto_mapping = None
        shell = peft.get_peft_model(model, settings)
        report = peft.set_peft_model_state_dict(shell, adapter.in_memory())
        missing = [name for name in report.missing_keys if "lora_" in name or "modules_to" in name]
        if problems := [*missing, *report.unexpected_keys]:
            raise ModelError(
                f"{folder}: {len(missing)} tensors of the adapter are missing and "
                f"{len(problems) - len(missing)} fit nothing in the base (first: {problems[0]}); "
                "expected an adapter trained on this base; name its own base"
            )
        return shell.merge_and_unload(safe_merge=True).requires_grad_(True)


def _config(folder: Path) -> dict[str, Any]:
    config = read_json(folder, "adapter_config.json") or {}
    kind, start = (str(config.get(key))[:40] for key in ("peft_type", "init_lora_weights"))
    # Without a task_type, peft writes down the class of the base; it is never imported from here.
    mapping = config.get("auto_mapping") or {}
    named = mapping.get("parent_library", "transformers.") if isinstance(mapping, dict) else "?"
    library = str(named)
    own = "" if library.startswith("transformers.") else " with a model class of its own"
    if kind != "LORA" or own or start.lower().startswith(CHANGES_BASE):
        raise ModelError(
            f"{folder}: is an adapter of type {kind!r}{own}, started as {start!r}; expected a "
            "plain 'LORA'; merge it with its own tools and give the whole model"
        )
    if extra := [key for key in BEYOND_LORA if config.get(key)]:
        raise ModelError(
            f"{folder}: adapter_config.json sets {', '.join(extra)}; expected a plain LoRA "
            "adapter; merge it with its own tools and give the whole model"
        )
    return config


def _check_ranks(folder: Path, tensors: Mapping[str, Stored]) -> None:
    """Refuse ranks that the adapter's tensors do not have, and tensors that are not floats."""
    config = _config(folder)
    stored = {
        tensor.shape[0]
        for name, tensor in tensors.items()
        if re.search(r"lora_(embedding_)?A\b", name) and tensor.shape
    }
    pattern = config.get("rank_pattern") or {}
    claimed = [config.get("r"), *(pattern.values() if isinstance(pattern, dict) else [None])]
    known = all(type(rank) is int and rank > 0 for rank in claimed)
    floats = all(tensor.dtype in FLOATS for tensor in tensors.values())
    if not (stored and known and floats and max(claimed) <= max(RANK_LIMIT, *stored)):
        raise ModelError(
            f"{folder}: adapter_config.json claims the ranks {str(claimed)[:80]}, its tensors have "
            f"{sorted(stored)}; expected the same, stored as floats; get the adapter again"
        )


RATE = 10.0
"""Factor of the learning rate for adapters, with s = 2: dev/log/."""
SCALE = 2


@contextmanager
def adapted(models: tuple[Any, ...], rank: int, key: str) -> Iterator[dict[str, Tensor]]:
    """Provide the adapters of these modules to be trained; they are merged when the block ends.

    Adapters are float32 whatever the weights are. A is drawn from ``key``, B is zero.
    """
    check_lora(rank)
    import peft

    draw = torch.Generator().manual_seed(key_number(f"{key}/adapters") % 2**63)
    leaves: dict[str, Tensor] = {}
    for number, model in enumerate(models):
        settings = peft.LoraConfig(
            r=rank, lora_alpha=SCALE * rank, target_modules="all-linear", lora_dropout=0.0
        )
        with quiet(), torch.random.fork_rng(devices=[]):
            peft.inject_adapter_in_model(settings, model)
        for name, part in _layers(model):
            for matrix, weights in (("A", part.lora_A.float()), ("B", part.lora_B.float())):
                value = next(iter(weights.parameters()))
                leaves[f"{number}.{name}.{matrix}"] = value
                if matrix == "A":
                    bound = 1 / math.sqrt(value.shape[1])
                    start = torch.empty(value.shape).uniform_(-bound, bound, generator=draw)
                    value.detach().copy_(start)
    try:
        yield leaves
    finally:
        for model in models:
            _merge(model)


def _layers(model: Any) -> list[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    return [(name, part) for name, part in model.named_modules() if isinstance(part, LoraLayer)]


@torch.no_grad()
def _merge(model: Any) -> None:
    """Add the adapters to the weights and take them out of the module."""
    for name, part in _layers(model):
        own = part.get_base_layer()
        own.weight.copy_(own.weight.float() + part.get_delta_weight("default"))
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, own)
    del model.peft_config
    model.requires_grad_(True)
