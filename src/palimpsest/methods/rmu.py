"""RMU: steer the forget texts' activations at one layer to noise, hold the retain texts' in place.

    L = mean (h_θ − c · u)² on forget texts + w · mean (h_θ − h_injected)² on retain texts

h is the output of decoder layer ℓ at every token of a text, the mean is over tokens and width; u is
a random unit vector, its entries drawn uniformly from [0, 1) and fixed by the cell's seed. Only the
last matrix of the layers ℓ − 2 … ℓ (the feed-forward output) is trained. Li et al. 2024, *The WMDP
Benchmark*, ICML, arXiv:2403.03218, whose settings for Zephyr-7B are c = 6.5, w = 1200 and ℓ = 7
(from 0) of 32 layers: ``depth`` = 0.25 is that layer in a model of any depth. c is in the units of
the activations and w balances it, so another model may need its own: on pocket models w = 1200
holds everything in place. The defaults act at the pocket dose (``dev/log/``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Gt, Le
from torch import Tensor, nn
from torch.nn import functional

from palimpsest.errors import MethodError
from palimpsest.facts.nonce import key_number
from palimpsest.methods.answer_sets import UnlearnBatch
from palimpsest.methods.context import Context, Knobs, Positive, State, Weight, train_one
from palimpsest.models.net import Batch, Encoded, Net, WholeNet, collate

Read = Callable[[Batch], Tensor]
"""From a batch to a layer's output (rows, width, d) at it."""


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

    name = "rmu"
    kind = "suppresses"
    summary = "turns the forget texts' activations at one layer into noise"
    needs = ("decoder layers",)
    citation = "Li et al. 2024, arXiv:2403.03218"

    def run(self, context: Context) -> State:
        net = context.whole(context.injected)
        layers = decoder_layers(net.model)
        layer = max(1, round(self.depth * len(layers))) - 1
        generator = torch.Generator().manual_seed(key_number(f"{context.seed_key}/rmu") % 2**63)

        with listening(net, layers[layer]) as read:
            held = read_texts(read, context.retain.texts)
            noise = torch.rand(held[0].shape[-1], generator=generator).to(net.device)
            steered = self.steering * noise / noise.norm()

            def loss(student: Net, part: UnlearnBatch) -> Tensor:
                forget, retain = read_batch(read, part)
                kept = torch.cat([held[number] for number in part.retain_texts])
                return self.loss(forget, steered, retain, kept).reshape(1)

            trained = _trained(net, layers[max(0, layer - 2) : layer + 1])
            rate = self.rate * context.budget.learning_rate
            train_one(self.name, net, context.batches(), loss, rate, trained)
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
    raise MethodError(f"{type(model).__name__} has no list of {depth} layers; expected a decoder")


@contextmanager
def listening(net: WholeNet, layer: nn.Module) -> Iterator[Read]:
    """Yield a function that reads a layer's output."""
    outputs: list[Tensor] = []

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        outputs[:] = [output[0] if isinstance(output, tuple) else output]

    def read(batch: Batch) -> Tensor:
        net.model.base_model(input_ids=batch.to(net.device).ids, use_cache=False)
        return outputs[0].float()

    handle = layer.register_forward_hook(keep)
    try:
        yield read
    finally:
        handle.remove()


@torch.no_grad()
def read_texts(read: Read, texts: Sequence[Encoded]) -> list[Tensor]:
    """Return the activations (tokens, width) at each text."""
    return [read(collate([text]))[0].clone() for text in texts]


def read_batch(read: Read, part: UnlearnBatch) -> tuple[Tensor, Tensor]:
    """Return the activations (tokens, width) at the forget and the retain texts."""
    hidden, border = read(part.tokens), len(part.forget_texts)
    real = real_tokens(part.tokens.to(hidden.device))
    return hidden[:border][real[:border]], hidden[border:][real[border:]]


def real_tokens(batch: Batch) -> Tensor:
    """Tell which tokens (rows, width) are text: padding comes behind a row's last scored token."""
    last = torch.zeros(len(batch.ids), dtype=torch.int64, device=batch.ids.device)
    last = last.scatter_reduce(0, batch.rows, batch.columns + 1, "amax")
    return torch.arange(batch.ids.shape[1], device=batch.ids.device) <= last[:, None]


def _trained(net: WholeNet, layers: Sequence[nn.Module]) -> Mapping[str, Tensor]:
    """Return the last matrix of each layer; no other parameter is trained."""
    chosen = [[value for value in layer.parameters() if value.dim() > 1][-1] for layer in layers]
    for value in net.params.values():
        value.requires_grad_(any(value is other for other in chosen))
    return {name: value for name, value in net.params.items() if value.requires_grad}
