"""The one training loop: injection, unlearning and re-acquisition are all calls of ``train``.

AdamW with the gradient norm clipped at 1.0; constant learning rate and no weight decay unless a
recipe says otherwise. A stack of models is trained as if each were alone: its own loss, its own
gradient norm, and a member that diverges stops counting without touching the others. On a CPU the
same call gives the same bytes.

A step of AdamW is smaller than the spacing of bfloat16 numbers, so weights that are not float32
are trained through float32 copies of them. Moments are float32 and lie beside the weights.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from palimpsest.errors import TrainingDiverged
from palimpsest.facts.general import Stream
from palimpsest.models.lora import RATE, adapted
from palimpsest.models.net import Batch, Encoded, Net, collate

CLIP = 1.0
Data = TypeVar("Data")


LENGTH = 0.35
"""Of a step along the gradient, as a fraction of AdamW's: it goes further."""


class AdamW:
    """torch's fused AdamW, without its search through groups each step.

    stack: number of models in a leaf.
    scales: one per leaf; a step is taken on leaf / scale, whose gradient is the leaf's times scale,
        so that two models which differ only in how their weights are scaled are trained alike.
    """

    def __init__(
        self,
        leaves: Sequence[Tensor],
        learning_rate: float,
        stack: int = 1,
        scales: Sequence[Tensor] = (),
    ) -> None:
        self.leaves, self.learning_rate, self.stack = leaves, learning_rate, stack
        self.scales = scales
        self.weight_decay = 0.0
        if scales:
            self.masters = [leaf.detach().float() / scale for leaf, scale in zip(leaves, scales)]
        else:  # the leaf itself where it is float32 already
            exact = torch.float32
            self.masters = [x if x.dtype == exact else x.detach().float() for x in leaves]
        self.first = [torch.zeros_like(master, requires_grad=False) for master in self.masters]
        self.second = [torch.zeros_like(moment) for moment in self.first]
        self.steps = [0] * len(leaves)

    @torch.no_grad()
    def step(self) -> None:
        grads = {n: leaf.grad for n, leaf in enumerate(self.leaves) if leaf.grad is not None}
        for n in grads:
            self.steps[n] += 1
        if plain := [n for n in grads if self.masters[n].dtype == self.leaves[n].dtype]:
            self._update(plain, [grads[n] for n in plain])
            for n in plain if self.scales else ():
                torch.mul(self.masters[n], self.scales[n], out=self.leaves[n])
        # The others one at a time, so that only one float32 gradient exists at a time.
        for n, grad in grads.items():
            if n not in plain:
                self._update([n], [grad.float()])
                scaled = self.masters[n] * self.scales[n] if self.scales else self.masters[n]
                self.leaves[n].copy_(scaled)

    def _update(self, known: Sequence[int], grads: list[Any]) -> None:
        """Take a step on the masters of these leaves."""
        masters, first, second = (
            [row[n] for n in known] for row in (self.masters, self.first, self.second)
        )
        # Most leaves have taken the same number of steps: one tensor says it for all of them.
        counts = {
            number: torch.tensor(float(number), device=masters[0].device)
            for number in {self.steps[n] for n in known}
        }
        steps = [counts[self.steps[n]] for n in known]
        settings: dict[str, Any] = {"lr": self.learning_rate, "beta1": 0.9, "beta2": 0.999}
        if self.weight_decay:  # of matrices alone; in a stack the first axis is the models'
            for master in masters:
                if master.dim() - (self.stack > 1) > 1:
                    master.mul_(1.0 - self.learning_rate * self.weight_decay)
        settings |= {"weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}
        torch._fused_adamw_(masters, grads, first, second, [], steps, **settings)


class Momentum(AdamW):
    """Gradient descent with momentum, each tensor's step of a length set by the rate.

    Δ = 0.35 · rate · √size · m / ‖m‖ with m ← β m + g, tensor by tensor and member by member, so
    that one learning rate serves it and AdamW.
    """

    beta = 0.9

    def _update(self, known: Sequence[int], grads: list[Any]) -> None:
        for n, grad in zip(known, grads):
            moment = self.first[n]
            flat = moment.mul_(self.beta).add_(grad).reshape(self.stack, -1)
            length = torch.linalg.vector_norm(flat, dim=1, keepdim=True).clamp(min=1e-12)
            step = flat / length * (LENGTH * self.learning_rate * flat.shape[1] ** 0.5)
            self.masters[n].sub_(step.reshape(moment.shape))


class Descent(Momentum):
    """The same without memory."""

    beta = 0.0


OPTIMIZERS: Mapping[str, type[AdamW]] = {"adamw": AdamW, "momentum": Momentum, "descent": Descent}
"""AdamW, and those that a beacon may draw for re-acquisition."""


@dataclass(frozen=True)
class TextBatch:
    """Texts to learn, each scored token with its share of the step's loss (scored,)."""

    batch: Batch
    weights: Tensor

    def to(self, device: torch.device) -> "TextBatch":
        if self.weights.device == device:
            return self
        return TextBatch(self.batch.to(device), self.weights.to(device))


def train(
    net: Net,
    steps: Iterable[Sequence[Data]],
    loss: Callable[[Net, Data], Tensor],
    *,
    learning_rate: float,
    params: Mapping[str, Tensor] | None = None,
    after_step: Callable[[int], None] | None = None,
    optimizer: Callable[..., AdamW] = AdamW,
    clip: bool = True,
    scales: Mapping[str, Tensor] | None = None,
    key: str = "",
    rates: Sequence[float] = (),
    weight_decay: float = 0.0,
) -> dict[int, int]:
    """Train in place; return the members that diverged and the step (from 1) at which each did.

    loss: returns (stack,) for one part of a step; a step's parts add up (gradient accumulation).
    params: the leaves to train, the net's own by default; each with a leading stack axis if the
        net is a stack of more than one. A net with a rank (``lora``) trains adapters instead of its
        own leaves; others are trained as they are.
    clip: whether each member's gradient is scaled to norm 1 at most.
    scales: of the net's own leaves, as ``AdamW`` takes them; adapters are trained without.
    key: what the adapters' start is drawn from; the same for models that are to be compared.
    rates: factor of the learning rate at each step; constant where there are none.
    weight_decay: of matrices; norms and biases have none, as in Hugging Face's Trainer.
    """
    own = net.params if params is None else params
    rank = getattr(net, "lora", 0) if own is net.params else 0
    rate = RATE * learning_rate if rank else learning_rate
    diverged: dict[int, int] = {}
    with trained_leaves(net, key) if own is net.params else nullcontext(own) as named:
        leaves = [*named.values()]
        factors = [] if scales is None or rank else [scales[name] for name in named]
        stepper = optimizer(leaves, rate, net.stack, factors)
        stepper.weight_decay = weight_decay
        for number, parts in enumerate(steps, start=1):
            _forget_gradients(leaves)
            total = torch.zeros(net.stack, device=net.device)
            for part in parts:
                losses = loss(net, part)
                losses.sum().backward()
                total += losses.detach()
            for leaf, factor in zip(leaves, factors):
                if leaf.grad is not None:
                    leaf.grad.mul_(factor)
            norms = _clip(leaves, net.stack, CLIP if clip else math.inf)
            if rates:
                stepper.learning_rate = rate * rates[number - 1]
            stepper.step()
            for member, healthy in enumerate((total + norms).isfinite().tolist()):
                if not healthy:
                    diverged.setdefault(member, number)
            if after_step is not None:
                after_step(number)
            if len(diverged) == net.stack:
                break
        _forget_gradients(leaves)  # or the last ones stay as long as the net
    return diverged


def trained_leaves(net: Net, key: str) -> AbstractContextManager[Mapping[str, Tensor]]:
    """Provide what is trained of a net: its own leaves, or adapters drawn from ``key``."""
    rank = getattr(net, "lora", 0)
    return adapted(net.models, rank, key) if rank else nullcontext(net.params)


def train_alone(
    net: Net,
    steps: Iterable[Sequence[Data]],
    loss: Callable[[Net, Data], Tensor],
    what: str,
    **settings: Any,
) -> None:
    """Train a net of one member; TrainingDiverged says in what, and at which step."""
    if diverged := train(net, steps, loss, **settings):
        raise TrainingDiverged(diverged[0], what)


def text_loss(net: Net, part: TextBatch) -> Tensor:
    """Return each member's weighted negative log-likelihood (stack,) of the texts."""
    part = part.to(net.device)
    logits, targets = net.logits(part.batch), part.batch.targets.repeat(net.stack)
    nll = functional.cross_entropy(logits.flatten(0, 1), targets, reduction="none")
    return (nll.view(net.stack, -1) * part.weights).sum(-1)


def text_batch(texts: Sequence[Encoded], items: int, *, tokens: int = 0) -> TextBatch:
    """Return the batch in which every text weighs ``1 / items``, shared evenly by its tokens.

    tokens: where every token weighs the same, how many the whole step has; 0 otherwise.
    """
    shares = [1.0 / (tokens or text.scored * items) for text in texts for _ in range(text.scored)]
    return TextBatch(collate(texts), torch.tensor(shares, dtype=torch.float32))


def stream_steps(
    stream: Stream, encoded: Sequence[Encoded], *, accumulate: int = 1
) -> Iterable[list[TextBatch]]:
    """Yield the stream's steps as batches, each cut into at most ``accumulate`` parts."""
    for number, step in enumerate(stream.steps):
        texts = sorted((encoded[index] for index in step), key=lambda text: len(text.ids))
        tokens = step_tokens(stream, encoded, number)
        size = -(-len(texts) // accumulate) or 1
        yield [
            text_batch(texts[start : start + size], stream.step_items, tokens=tokens)
            for start in range(0, len(texts), size)
        ]


def step_tokens(stream: Stream, encoded: Sequence[Encoded], number: int) -> int:
    """Return the trained tokens of a step as drawn, where each weighs the same; otherwise 0."""
    return (
        sum(encoded[index].scored for index in stream.full_steps[number])
        if stream.full_steps
        else 0
    )


def _forget_gradients(leaves: Sequence[Tensor]) -> None:
    for leaf in leaves:
        leaf.grad = None


def _clip(leaves: Sequence[Tensor], stack: int, most: float) -> Tensor:
    """Scale each member's gradient to norm ``most`` at most; return the norms before (stack,)."""
    grads = [leaf.grad for leaf in leaves if leaf.grad is not None]
    if not grads:
        return torch.zeros(stack, device=leaves[0].device)
    if stack == 1:
        precise = None if grads[0].dtype == torch.float32 else torch.float32
        parts = torch._foreach_norm(grads, 2, dtype=precise)
        norms = torch.linalg.vector_norm(torch.stack(parts)).reshape(1)
    else:
        rows = [torch.linalg.vector_norm(grad.flatten(1), dim=1) for grad in grads]
        norms = torch.linalg.vector_norm(torch.stack(rows), dim=0)
    scale = (most / (norms + 1e-6)).clamp(max=1.0)
    if stack == 1:
        torch._foreach_mul_(grads, scale[0])
    elif bool((scale != 1.0).any()):
        torch._foreach_mul_(grads, [scale.view(-1, *(1,) * (grad.dim() - 1)) for grad in grads])
    return norms
