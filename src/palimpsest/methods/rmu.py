"""RMU: steer the forget texts' activations at one layer to noise, hold the retain texts' in place.

    L = mean (h_θ − c · u)² on forget texts + w · mean (h_θ − h_injected)² on retain texts

h is the output of decoder layer ℓ at every token of a text, the mean is over tokens and width; u is
a random unit vector, its entries drawn uniformly from [0, 1) and fixed by the cell's seed. Only the
last matrix of the layers ℓ − 2 … ℓ (the feed-forward output) is trained. Li et al. 2024, *The WMDP
Benchmark*, ICML, arXiv:2403.03218, whose settings for Zephyr-7B are c = 6.5, w = 1200 and ℓ = 7
(from 0) of 32 layers: ``depth`` = 0.25 is that place in a model of any depth. c is in the units of
the activations and w balances it, so another model may need its own: on pocket models w = 1200
holds everything in place. The defaults act at the pocket dose (``docs/log.md``).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Gt, Le
from torch import Tensor, nn
from torch.nn import functional

from palimpsest.errors import MethodError
from palimpsest.facts.nonce import key_number
from palimpsest.methods.context import (
    Context,
    Exercise,
    Knobs,
    Positive,
    State,
    Weight,
    train_one,
)
from palimpsest.models.net import Batch, Encoded, Net, WholeNet, collate


@dataclass(frozen=True)
class RMU(Knobs):
    weight: Weight = 10.0
    """Weight of the retain term; the paper's is 1200."""
    steering: Positive = 6.5
    """c, the length of the vector that forget activations are steered to; the paper's."""
    depth: Annotated[float, Gt(0), Le(1)] = 0.5
    """Which layer, as a share of the model's depth; the paper's is 0.25."""
    rate: Positive = 8.0
    """Multiple of the plan's learning rate."""

    name: ClassVar[str] = "rmu"
    kind: ClassVar[str] = "suppresses"
    summary: ClassVar[str] = "turns the forget texts' activations at one layer into noise"
    needs: ClassVar[tuple[str, ...]] = ("decoder layers",)
    citation: ClassVar[str] = "Li et al. 2024, arXiv:2403.03218"

    def run(self, context: Context) -> State:
        net = context.whole(context.injected)
        layers = decoder_layers(net.model)
        place = max(1, round(self.depth * len(layers))) - 1
        generator = torch.Generator().manual_seed(key_number(f"{context.seed_key}/rmu") % 2**63)

        with recording(layers[place]) as outputs:
            held = activations(net, context.retain.texts, context.pad, outputs)
            noise = torch.rand(held[0].shape[-1], generator=generator).to(net.device)
            steered = self.steering * noise / noise.norm()

            def loss(student: Net, part: Exercise) -> Tensor:
                forget, retain = hidden_states(net, part, outputs)
                kept = torch.cat([held[number] for number in part.retain_texts])
                return self.loss(forget, steered, retain, kept).reshape(1)

            trained = _trained(net, layers[max(0, place - 2) : place + 1])
            rate = self.rate * context.budget.learning_rate
            train_one(self, net, context.exercises(), loss, rate, trained)
        return net.state()

    def loss(self, forget: Tensor, steered: Tensor, retain: Tensor, kept: Tensor) -> Tensor:
        """Return the loss; activations are (tokens, width), steered is (width,)."""
        away = functional.mse_loss(forget, steered.expand_as(forget))
        return away + self.weight * functional.mse_loss(retain, kept)


def decoder_layers(model: Any) -> list[nn.Module]:
    """Return the decoder layers of any ``transformers`` model, first to last."""
    depth = getattr(model.config, "num_hidden_layers", None)
    for part in model.modules():
        if isinstance(part, nn.ModuleList) and len(part) == depth:
            return list(part)
    raise MethodError(
        f"rmu: {type(model).__name__} has no list of {depth} layers; expected a decoder"
    )


def real_tokens(batch: Batch) -> Tensor:
    """Tell which tokens (rows, width) are text: padding comes behind a row's last scored token."""
    last = torch.zeros(len(batch.ids), dtype=torch.int64, device=batch.ids.device)
    last = last.scatter_reduce(0, batch.rows, batch.columns + 1, "amax")
    return torch.arange(batch.ids.shape[1], device=batch.ids.device) <= last[:, None]


@torch.no_grad()
def activations(
    net: WholeNet, texts: Sequence[Encoded], pad: int, outputs: list[Tensor]
) -> list[Tensor]:
    """Return the layer's activations (tokens, width) at each text."""
    held = []
    for text in texts:
        ids = collate([text], pad).to(net.device).ids
        net.model.base_model(input_ids=ids, use_cache=False)
        held.append(outputs[0][0].float().clone())
    return held


def hidden_states(net: WholeNet, part: Exercise, outputs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the layer's activations (tokens, width) at the forget and the retain texts."""
    batch = part.batch.to(net.device)
    net.model.base_model(input_ids=batch.ids, use_cache=False)
    hidden, real = outputs[0].float(), real_tokens(batch)
    border = len(part.forget_texts)
    return hidden[:border][real[:border]], hidden[border:][real[border:]]


@contextmanager
def recording(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Yield a list whose only entry is always the layer's latest output (rows, width, d)."""
    outputs: list[Tensor] = []

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        outputs[:] = [output[0] if isinstance(output, tuple) else output]

    handle = layer.register_forward_hook(keep)
    try:
        yield outputs
    finally:
        handle.remove()


def _trained(net: WholeNet, layers: Sequence[nn.Module]) -> Mapping[str, Tensor]:
    """Return the last matrix of each layer; no other parameter is trained."""
    chosen = [[value for value in layer.parameters() if value.dim() > 1][-1] for layer in layers]
    for value in net.params.values():
        value.requires_grad_(any(value is other for other in chosen))
    return {name: value for name, value in net.params.items() if value.requires_grad}
