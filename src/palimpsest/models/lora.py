"""Training by LoRA (Hu et al. 2021, arXiv:2106.09685): W + s B A, where only A and B are trained.

Every linear layer of the body gets an adapter, the head and the embeddings none. Adapters are made
when a training begins and merged into the weights when it ends, so that all other code
sees an ordinary model.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from palimpsest.facts.nonce import key_number
from palimpsest.models.device import check_lora
from palimpsest.models.quiet import quiet

RATE = 10.0
"""Factor of the learning rate for adapters, with s = 2: docs/log.md."""
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
