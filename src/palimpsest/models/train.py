"""The one training loop: injection, unlearning and re-acquisition are all calls of ``train``.

AdamW with the gradient norm clipped at 1.0; constant learning rate and no weight decay unless a
recipe says otherwise. A stack of models is trained as if each were alone: its own loss, its own
gradient norm, and a member that diverges stops counting without touching the others. On a CPU the
same call gives the same bytes.

A step of AdamW is smaller than the spacing of bfloat16 numbers, so weights that are not float32
are trained through float32 copies of them. Moments are float32 and lie beside the weights.
"""

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

    moments = 2
    """Tensors of a leaf's size that are kept from step to step."""

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
        # The leaf itself where it is float32 already.
        self.masters = [leaf.detach().float() for leaf in leaves]
        # A stack takes AdamW's steps on weights that are divided by the scales: one call over all
        # leaves takes half as long as one for each pocket-sized leaf and member.
        self.divided = bool(scales) and stack > 1 and self.moments == 2
        if self.divided:
            self.masters = [master / scale for master, scale in zip(self.masters, scales)]
        self.first, self.second = (
            [torch.zeros_like(master) for master in self.masters] if kept < self.moments else []
            for kept in range(2)
        )
        self.steps = [0] * len(leaves)

    @torch.no_grad()
    def step(self, clip: Tensor | None = None) -> None:
        """Take a step; clip: (stack,) factors of the members' gradients, None where all are 1."""
        grads = {n: leaf.grad for n, leaf in enumerate(self.leaves) if leaf.grad is not None}
        for n in grads:
            self.steps[n] += 1
        if exact := [n for n, grad in grads.items() if grad.dtype == torch.float32]:
            self._update(exact, [grads[n] for n in exact], clip)
        # The others one at a time, so that only one float32 gradient exists at a time.
        for n, grad in grads.items():
            if grad.dtype != torch.float32:
                self._update([n], [grad.float()], clip)
                self.leaves[n].copy_(self.masters[n])

    def _update(self, known: Sequence[int], grads: list[Any], clip: Tensor | None) -> None:
        """Take a step on the masters of these leaves."""
        if self.weight_decay:  # of matrices alone; in a stack the first axis is the models'
            for n in known:
                if self.masters[n].dim() - (self.stack > 1) > 1:
                    self.masters[n].mul_(1.0 - self.learning_rate * self.weight_decay)
        if self.stack > 1 and clip is not None:
            torch._foreach_mul_(grads, [self._by_member(n, clip) for n in known])
            clip = None
        if self.divided:
            torch._foreach_mul_(grads, [self.scales[n] for n in known])
            self._fused(known, grads, clip)
            for n in known:
                torch.mul(self.masters[n], self.scales[n], out=self.leaves[n])
        elif self.scales:
            # On x / s the step is −r m̂ s / (√v̂ s + ε), with the moments of x's own gradient. Times
            # s it is AdamW's step on x at the rate r s with ε / s, which needs no copy of x.
            for n, grad in zip(known, grads):
                self._fused([n], [grad], clip, float(self.scales[n]))
        else:
            self._fused(known, grads, clip)

    def _fused(
        self, known: Sequence[int], grads: list[Any], clip: Tensor | None, scale: float = 1.0
    ) -> None:
        masters, first, second = (
            [row[n] for n in known] for row in (self.masters, self.first, self.second)
        )
        # Most leaves have taken the same number of steps: one tensor says it for all of them.
        counts = {
            number: torch.tensor(float(number), device=masters[0].device)
            for number in {self.steps[n] for n in known}
        }
        steps = [counts[self.steps[n]] for n in known]
        settings: dict[str, Any] = {"lr": self.learning_rate * scale, "beta1": 0.9, "beta2": 0.999}
        settings |= {"weight_decay": 0.0, "eps": 1e-8 / scale, "amsgrad": False, "maximize": False}
        settings["grad_scale"] = None if clip is None else 1.0 / clip  # a divisor
        torch._fused_adamw_(masters, grads, first, second, [], steps, **settings)

    def _by_member(self, n: int, factor: Tensor) -> Tensor:
        """Return a factor (stack,) in the shape that a leaf is multiplied by."""
        return factor.reshape(-1, *[1] * (self.leaves[n].dim() - 1) if self.stack > 1 else ())


class Momentum(AdamW):
    """Gradient descent with momentum, each tensor's step of a length set by the rate.

    Δ = 0.35 · rate · √size · m / ‖m‖ with m ← β m + g, tensor by tensor and member by member, so
    that one learning rate serves it and AdamW. On x / s, m has the same direction, so that x itself
    takes the step s Δ.
    """

    moments = 1

    def _update(self, known: Sequence[int], grads: list[Any], clip: Tensor | None) -> None:
        for n, grad in zip(known, grads):
            rows = self._direction(n, grad, clip).reshape(self.stack, -1)
            length = torch.linalg.vector_norm(rows, dim=1).clamp(min=1e-12)
            factor = LENGTH * self.learning_rate * rows.shape[1] ** 0.5 / length
            if self.scales:
                factor = factor * self.scales[n].reshape(-1)
            step = rows.view_as(self.masters[n])
            self.masters[n].addcmul_(step, self._by_member(n, factor), value=-1.0)

    def _direction(self, n: int, grad: Tensor, clip: Tensor | None) -> Tensor:
        """Return the moment after this gradient."""
        moment = self.first[n].mul_(0.9)
        if clip is None:
            return moment.add_(grad)
        return moment.addcmul_(grad, self._by_member(n, clip))


class Descent(Momentum):
    """The same without memory, so that clipping has no effect."""

    moments = 0

    def _direction(self, n: int, grad: Tensor, clip: Tensor | None) -> Tensor:
        return grad


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
            norms = gradient_norms(leaves, net.stack, factors)
            shorter = (CLIP / (norms + 1e-6)).clamp(max=1.0)
            if rates:
                stepper.learning_rate = rate * rates[number - 1]
            stepper.step(shorter if clip and bool((shorter != 1.0).any()) else None)
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


def gradient_norms(leaves: Sequence[Tensor], stack: int, scales: Sequence[Tensor] = ()) -> Tensor:
    """Return the norm of each member's gradient (stack,); scales: as ``AdamW`` takes them."""
    known = [n for n, leaf in enumerate(leaves) if leaf.grad is not None]
    if not known:
        return torch.zeros(stack, device=leaves[0].device)
    grads: list[Any] = [leaves[n].grad for n in known]
    if stack == 1:
        precise = None if grads[0].dtype == torch.float32 else torch.float32
        rows = [part.reshape(1) for part in torch._foreach_norm(grads, 2, dtype=precise)]
    else:
        rows = [torch.linalg.vector_norm(grad.flatten(1), dim=1) for grad in grads]
    norms = torch.stack(rows)
    if scales:
        norms *= torch.stack([scales[n].reshape(-1) for n in known])
    return torch.linalg.vector_norm(norms, dim=0)
