"""The one training loop: injection, unlearning and re-acquisition are all calls of ``train``.

AdamW without weight decay, constant learning rate, gradient norm clipped at 1.0. A stack of models
is trained as if each were alone: its own loss, its own gradient norm, and a member that diverges
stops counting without touching the others. On a CPU the same call gives the same bytes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from palimpsest.errors import ModelError, TrainingDiverged
from palimpsest.facts.stream import Stream
from palimpsest.models.lora import RATE, adapted
from palimpsest.models.net import Batch, Encoded, Net, collate
from palimpsest.models.optimiser import AdamW

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
    optimiser: type[AdamW] = AdamW,
    key: str = "",
) -> dict[int, int]:
    """Train in place; return the members that diverged and the step (from 1) at which each did.

    loss: returns (stack,) for one part of a step; a step's parts add up (gradient accumulation).
    params: the leaves to train, the net's own by default; each with a leading stack axis if the
    net is a stack of more than one. A net with a rank (``lora``) trains adapters instead of its
    own leaves; others are trained as they are.
    optimiser: AdamW, or another of ``optimiser.py``.
    key: what the adapters' start is drawn from; the same for models that are to be compared.
    """
    if getattr(net, "spread", False):
        raise ModelError(
            "a model that is spread over several devices (device: auto) cannot be trained; "
            "expected the whole model on one device; use cuda with --lora RANK or --optimizer host"
        )
    own = net.params if params is None else params
    rank = getattr(net, "lora", 0) if own is net.params else 0
    rate = RATE * learning_rate if rank else learning_rate
    with adapted(net.models, rank, key) if rank else nullcontext(own) as leaves:
        kept = getattr(net, "optimizer", "device")
        stepper = optimiser([*leaves.values()], rate, kept=kept, stack=net.stack)
        return _train(net, steps, loss, stepper, after_step)


def train_alone(
    net: Net,
    steps: Iterable[Sequence[Data]],
    loss: Callable[[Net, Data], Tensor],
    what: str,
    **settings: Any,
) -> None:
    """Train a net of one member; TrainingDiverged says in what, and at which step."""
    diverged = train(net, steps, loss, **settings)
    if diverged:
        raise TrainingDiverged(diverged[0], what)


def _train(
    net: Net,
    steps: Iterable[Sequence[Data]],
    loss: Callable[[Net, Data], Tensor],
    stepper: AdamW,
    after_step: Callable[[int], None] | None,
) -> dict[int, int]:
    leaves = stepper.leaves
    diverged: dict[int, int] = {}
    for number, parts in enumerate(steps, start=1):
        for leaf in leaves:
            leaf.grad = None
        total = torch.zeros(net.stack, device=net.device)
        for part in parts:
            losses = loss(net, part)
            losses.sum().backward()
            total += losses.detach()
        norms = _clip(leaves, net.stack)
        stepper.step()
        for member, healthy in enumerate((total + norms).isfinite().tolist()):
            if not healthy:
                diverged.setdefault(member, number)
        if after_step is not None:
            after_step(number)
        if len(diverged) == net.stack:
            break
    for leaf in leaves:
        leaf.grad = None  # or the last gradients stay as long as the net
    return diverged


def text_loss(net: Net, part: TextBatch) -> Tensor:
    """Return each member's weighted negative log-likelihood (stack,) of the texts."""
    part = part.to(net.device)
    logits = net.logits(part.batch)
    vocabulary = logits.shape[-1]
    nll = functional.cross_entropy(
        logits.reshape(-1, vocabulary), part.batch.targets.repeat(net.stack), reduction="none"
    )
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
        size = -(-len(texts) // accumulate) if texts else 1
        yield [
            text_batch(texts[start : start + size], stream.step_items, pad)
            for start in range(0, len(texts), size)
        ]


def _clip(leaves: Sequence[Tensor], stack: int) -> Tensor:
    """Scale each member's gradient to norm ``CLIP`` at most; return the norms before (stack,)."""
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
    scale = (CLIP / (norms + 1e-6)).clamp(max=1.0)
    if stack == 1:
        torch._foreach_mul_(grads, scale[0])
    elif bool((scale != 1.0).any()):
        by_depth = {depth: scale.view(stack, *(1,) * (depth - 1)) for depth in range(1, 5)}
        torch._foreach_mul_(grads, [by_depth[grad.dim()] for grad in grads])
    return norms
