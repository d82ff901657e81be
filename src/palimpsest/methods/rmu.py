"""RMU: steer the forget texts' activations at one layer to noise, hold the retain texts' in place.

    L = mean (h_θ − c · u)² on forget texts + w · mean (h_θ − h_injected)² on retain texts

h is the output of decoder layer ℓ at every token of a text, the mean is over tokens and width; u is
a random unit vector, its entries drawn uniformly from [0, 1) and fixed by the cell's seed. Only the
last matrix of the layers ℓ − 2 … ℓ (the feed-forward output) is trained. Li et al. 2024, *The WMDP
Benchmark*, ICML, arXiv:2403.03218, whose settings for Zephyr-7B are c = 6.5, w = 1200 and ℓ = 7
(from 0) of 32 layers: ``depth`` = 0.25 is that place in a model of any depth. c is in the units of
the activations and w balances it, so another model may need its own: on pocket models w = 1200
holds everything in place and w = 1 lets the forget texts go.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from palimpsest.errors import MethodError, TrainingDiverged
from palimpsest.facts.nonce import key_number
from palimpsest.methods.context import Context, Exercise, State, knob_label, require
from palimpsest.models.net import Batch, Encoded, Net, WholeNet, collate
from palimpsest.models.train import train


@dataclass(frozen=True)
class RMU:
    weight: float = 1200.0
    """Weight of the retain term; the paper's."""
    steering: float = 6.5
    """c, the length of the vector that forget activations are steered to; the paper's."""
    depth: float = 0.25
    """Which layer, as a share of the model's depth; the paper's."""
    rate: float = 1.0
    """Multiple of the plan's learning rate."""

    name: ClassVar[str] = "rmu"
    summary: ClassVar[str] = "turns the forget texts' activations at one layer into noise"
    needs: ClassVar[tuple[str, ...]] = ("decoder layers",)
    citation: ClassVar[str] = "Li et al. 2024, arXiv:2403.03218"

    def __post_init__(self) -> None:
        require(self, "weight", self.weight >= 0, "0 or more")
        require(self, "steering", self.steering > 0, "a number above 0")
        require(self, "depth", 0 < self.depth <= 1, "a share of the depth, above 0 and at most 1")
        require(self, "rate", self.rate > 0, "a number above 0")

    @property
    def label(self) -> str:
        return knob_label(self)

    def run(self, context: Context) -> State:
        net = context.whole(context.injected)
        layers = decoder_layers(net.model)
        place = max(1, round(self.depth * len(layers))) - 1
        generator = torch.Generator().manual_seed(key_number(f"{context.seed_key}/rmu") % 2**63)

        with _listening(layers[place]) as heard:
            held = self._retain_activations(net, context, heard)
            noise = torch.rand(held[0].shape[-1], generator=generator).to(net.device)
            steered = self.steering * noise / noise.norm()

            def loss(student: Net, part: Exercise) -> Tensor:
                batch = part.batch.to(net.device)
                _read(net, batch)
                hidden, real = heard[0].float(), real_tokens(batch)
                border = len(part.forget_texts)
                forget = hidden[:border][real[:border]]
                retain = hidden[border:][real[border:]]
                kept = torch.cat([held[number] for number in part.retain_texts])
                return self.loss(forget, steered, retain, kept).reshape(1)

            diverged = train(
                net,
                ([part] for part in context.exercises()),
                loss,
                learning_rate=self.rate * context.budget.learning_rate,
                params=_trained(net, layers[max(0, place - 2) : place + 1]),
            )
        if diverged:
            raise TrainingDiverged(diverged[0], "the loss of rmu is not finite")
        return net.state()

    def loss(self, forget: Tensor, steered: Tensor, retain: Tensor, kept: Tensor) -> Tensor:
        """Give the scalar to be minimised; activations are (tokens, width), steered is (width,)."""
        away = functional.mse_loss(forget, steered.expand_as(forget))
        return away + self.weight * functional.mse_loss(retain, kept)

    @torch.no_grad()
    def _retain_activations(
        self, net: WholeNet, context: Context, heard: list[Tensor]
    ) -> list[Tensor]:
        """Give the injected model's activations (tokens, width) at each retain text."""
        texts: Sequence[Encoded] = context.retain.texts
        kept = []
        for text in texts:
            _read(net, collate([text], context.pad).to(net.device))
            kept.append(heard[0][0].float().clone())
        return kept


def decoder_layers(model: Any) -> list[nn.Module]:
    """Give the decoder layers of any ``transformers`` model, first to last."""
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


def _read(net: WholeNet, batch: Batch) -> None:
    net.model.base_model(input_ids=batch.ids, use_cache=False)


@contextmanager
def _listening(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Give a list whose only entry is always the layer's latest output (rows, width, d)."""
    heard: list[Tensor] = []

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        heard[:] = [output[0] if isinstance(output, tuple) else output]

    handle = layer.register_forward_hook(keep)
    try:
        yield heard
    finally:
        handle.remove()


def _trained(net: WholeNet, layers: Sequence[nn.Module]) -> Mapping[str, Tensor]:
    """Give the last matrix of each layer and stop all other parameters from being trained."""
    chosen = [[value for value in layer.parameters() if value.dim() > 1][-1] for layer in layers]
    for value in net.params.values():
        value.requires_grad_(any(value is other for other in chosen))
    return {name: value for name, value in net.params.items() if value.requires_grad}
