"""The one training loop: injection, unlearning and re-acquisition are all calls of ``train``.

AdamW without weight decay, constant learning rate, gradient norm clipped at 1.0. A stack of models
is trained as if each were alone: its own loss, its own gradient norm, and a member that diverges
stops counting without touching the others. On a CPU the same call gives the same bytes.

Weights that are not float32 are trained through float32 copies of them (master weights): a step of
AdamW is smaller than what bfloat16 can tell apart, so that without them most weights never move.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from palimpsest.errors import ModelError
from palimpsest.facts.stream import Stream
from palimpsest.models.net import Batch, Encoded, Net, collate

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
    optimiser: type["AdamW"] | None = None,
) -> dict[int, int]:
    """Train in place; return the members that diverged and the step (from 1) at which each did.

    loss: returns (stack,) for one part of a step; a step's parts add up (gradient accumulation).
    params: the leaves to train, the net's own by default; each with a leading stack axis if the
    net is a stack of more than one.
    optimiser: AdamW, or another of ``optimisers.py``.
    """
    leaves = list((net.params if params is None else params).values())
    host = getattr(net, "host", False)
    stepper = (optimiser or AdamW)(leaves, learning_rate, host=host, stack=net.stack)
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


class AdamW:
    """torch's fused AdamW without weight decay, without the search through its groups each step.

    Leaves that are not float32 have float32 masters, which the steps are taken on; moments are
    float32 always. host: masters and moments stay in the host's memory, pinned for CUDA.
    """

    def __init__(
        self, leaves: Sequence[Tensor], learning_rate: float, *, host: bool = False, stack: int = 1
    ) -> None:
        if any(leaf.dtype == torch.float16 for leaf in leaves):
            raise ModelError(
                "float16 weights cannot be trained: their gradients underflow and their steps "
                "diverge; use --dtype bfloat16 or float32"
            )
        self.leaves, self.learning_rate, self.stack = leaves, learning_rate, stack
        away = [host and leaf.device.type != "cpu" for leaf in leaves]
        self.masters = [_master(leaf, far) for leaf, far in zip(leaves, away)]
        self.first, self.second = (
            [
                _pinned(torch.zeros_like(master, requires_grad=False), leaf, far)
                for leaf, master, far in zip(leaves, self.masters, away)
            ]
            for _ in range(2)
        )
        self.steps = [0] * len(leaves)

    @torch.no_grad()
    def step(self) -> None:
        known = [n for n, leaf in enumerate(self.leaves) if leaf.grad is not None]
        grads = [leaf.grad for leaf in self.leaves if leaf.grad is not None]
        for n in known:
            self.steps[n] += 1
        if all(self.masters[n] is self.leaves[n] for n in known):
            if known:
                self._update(known, grads)
            return
        # One leaf at a time, so that only one float32 gradient exists at a time.
        for n, grad in zip(known, grads):
            leaf, master = self.leaves[n], self.masters[n]
            self._update([n], [grad.to(master.device, torch.float32)])
            if master is not leaf:
                leaf.copy_(master)

    def _update(self, known: Sequence[int], grads: list[Tensor]) -> None:
        # Most leaves have taken the same number of steps: one tensor says it for all of them.
        device = grads[0].device
        counts = {
            number: torch.tensor(float(number), device=device)
            for number in {self.steps[n] for n in known}
        }
        torch._fused_adamw_(
            [self.masters[n] for n in known],
            grads,
            [self.first[n] for n in known],
            [self.second[n] for n in known],
            [],
            [counts[self.steps[n]] for n in known],
            lr=self.learning_rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )


def _master(leaf: Tensor, away: bool) -> Tensor:
    """Return the float32 tensor that steps are taken on: the leaf itself where it is one."""
    if leaf.dtype == torch.float32 and not away:
        return leaf
    master = leaf.detach().to("cpu" if away else leaf.device, torch.float32, copy=True)
    return _pinned(master, leaf, away)


def _pinned(value: Tensor, leaf: Tensor, away: bool) -> Tensor:
    """Return a host tensor where CUDA can read it directly; others as they are."""
    return value.pin_memory() if away and leaf.device.type == "cuda" else value


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
