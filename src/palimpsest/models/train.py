"""The one training loop: injection, unlearning and re-acquisition are all calls of ``train``.

AdamW without weight decay, constant learning rate, gradient norm clipped at 1.0. A stack of models
is trained as if each were alone: its own loss, its own gradient norm, and a member that diverges
stops counting without touching the others. On a CPU the same call gives the same bytes.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from palimpsest.errors import TrainingDiverged
from palimpsest.facts.stream import Stream
from palimpsest.models.lora import RATE, adapted
from palimpsest.models.net import Batch, Encoded, Net, collate
from palimpsest.models.optimizer import AdamW

CLIP = 1.0
Data = TypeVar("Data")


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
) -> dict[int, int]:
    """Train in place; return the members that diverged and the step (from 1) at which each did.

    loss: returns (stack,) for one part of a step; a step's parts add up (gradient accumulation).
    params: the leaves to train, the net's own by default; each with a leading stack axis if the
        net is a stack of more than one. A net with a rank (``lora``) trains adapters instead of its
        own leaves; others are trained as they are.
    clip: whether each member's gradient is scaled to norm 1 at most.
    scales: of the net's own leaves, as ``AdamW`` takes them; adapters are trained without.
    key: what the adapters' start is drawn from; the same for models that are to be compared.
    """
    own = net.params if params is None else params
    rank = getattr(net, "lora", 0) if own is net.params else 0
    rate = RATE * learning_rate if rank else learning_rate
    diverged: dict[int, int] = {}
    with adapted(net.models, rank, key) if rank else nullcontext(own) as named:
        leaves = [*named.values()]
        factors = [] if scales is None or rank else [scales[name] for name in named]
        stepper = optimizer(leaves, rate, net.stack, factors)
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


def text_batch(texts: Sequence[Encoded], items: int, pad: int = 0) -> TextBatch:
    """Return the batch in which every text weighs ``1 / items``, shared evenly by its tokens."""
    shares = [1.0 / (text.scored * items) for text in texts for _ in range(text.scored)]
    return TextBatch(collate(texts, pad), torch.tensor(shares, dtype=torch.float32))


def stream_steps(
    stream: Stream, encoded: Sequence[Encoded], *, pad: int = 0, accumulate: int = 1
) -> Iterable[list[TextBatch]]:
    """Yield the stream's steps as batches, each cut into at most ``accumulate`` parts."""
    for step in stream.steps:
        texts = sorted((encoded[index] for index in step), key=lambda text: len(text.ids))
        size = -(-len(texts) // accumulate) or 1
        yield [
            text_batch(texts[start : start + size], stream.step_items, pad)
            for start in range(0, len(texts), size)
        ]


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
