"""AdamW without weight decay, on float32 masters; its state on the device, off it, or in 8 bits.

A step of AdamW is smaller than what bfloat16 can tell apart, so that weights which are not float32
are trained through float32 copies of them (master weights). Moments are float32, or 8 bits a number
(Dettmers et al. 2022, arXiv:2110.02861, with a logarithmic grid in the place of their code book).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from palimpsest.errors import ModelError

BLOCK = 256
"""Numbers that share a scale."""
PIECE = 2**22
"""Numbers of a leaf that are unpacked at a time."""
UNPACKED = 4096
"""Leaves of fewer numbers (norms, biases) keep float32 moments."""
LENGTH = 0.35
"""Of a step along the gradient, as a share of AdamW's: it goes further."""


class AdamW:
    """torch's fused AdamW without weight decay, without the search through its groups each step.

    kept: ``device``; ``host`` keeps masters and moments in the host's memory, pinned for CUDA;
    ``8bit`` keeps the moments of large leaves on the device in a byte each.
    stack: number of models in a leaf.
    """

    packs = True
    """Whether moments can be kept in 8 bits."""

    def __init__(
        self, leaves: Sequence[Tensor], learning_rate: float, kept: str = "device", stack: int = 1
    ) -> None:
        if any(leaf.dtype == torch.float16 for leaf in leaves):
            raise ModelError(
                "float16 weights cannot be trained: their gradients underflow and their steps "
                "diverge; use --dtype bfloat16 or float32"
            )
        self.leaves, self.learning_rate, self.stack = leaves, learning_rate, stack
        away = [kept == "host" and leaf.device.type != "cpu" for leaf in leaves]
        self.masters = [_master(leaf, far) for leaf, far in zip(leaves, away)]
        packs = self.packs and kept == "8bit"
        self.packed = [packs and leaf.numel() >= UNPACKED for leaf in leaves]
        self.first: list[Any]
        self.second: list[Any]
        self.first, self.second = (
            [
                Packed(master, signed)
                if packed
                else _pinned(torch.zeros_like(master, requires_grad=False), leaf, far)
                for leaf, master, far, packed in zip(leaves, self.masters, away, self.packed)
            ]
            for signed in (True, False)
        )
        self.steps = [0] * len(leaves)

    @torch.no_grad()
    def step(self) -> None:
        known = [n for n, leaf in enumerate(self.leaves) if leaf.grad is not None]
        for n in known:
            self.steps[n] += 1
        alone = {n for n in known if self.masters[n] is not self.leaves[n] or self.packed[n]}
        if plain := [n for n in known if n not in alone]:
            self._update(plain, [self.leaves[n].grad for n in plain])
        # One leaf at a time, so that only one float32 gradient exists at a time.
        for n in sorted(alone):
            leaf, master = self.leaves[n], self.masters[n]
            assert leaf.grad is not None
            grad = leaf.grad.to(master.device, torch.float32)
            if self.packed[n]:
                self._update_packed(n, grad)
            else:
                self._update([n], [grad])
            if master is not leaf:
                leaf.copy_(master)

    def _update_packed(self, n: int, grad: Tensor) -> None:
        flat, whole = grad.reshape(-1), self.masters[n].view(-1)
        pairs = zip(self.first[n].pieces(), self.second[n].pieces())
        for (at, first), (_, second) in pairs:
            self._update([n], [flat[at]], (whole[at], first, second))
            self.first[n].store(at, first, self.steps[n])
            self.second[n].store(at, second, self.steps[n])

    def _update(self, known: Sequence[int], grads: list[Any], piece: Sequence[Tensor] = ()) -> None:
        """Take a step on leaves, or on a piece of one: its part of the master and both moments."""
        rows = (self.masters, self.first, self.second)
        parts = [[part] for part in piece] or [[row[n] for n in known] for row in rows]
        masters, first, second = parts
        # Most leaves have taken the same number of steps: one tensor says it for all of them.
        counts = {
            number: torch.tensor(float(number), device=masters[0].device)
            for number in {self.steps[n] for n in known}
        }
        torch._fused_adamw_(
            masters,
            grads,
            first,
            second,
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


class Momentum(AdamW):
    """Gradient descent with momentum, each tensor's step of a length set by the rate.

    Δ = 0.35 · rate · √size · m / ‖m‖ with m ← β m + g, tensor by tensor and member by member. One
    learning rate serves it and AdamW. Its moment is float32 always.
    """

    beta = 0.9
    packs = False

    def _update(self, known: Sequence[int], grads: list[Any], piece: Sequence[Tensor] = ()) -> None:
        for n, grad in zip(known, grads):
            moment = self.first[n]
            flat = moment.mul_(self.beta).add_(grad).reshape(self.stack, -1)
            length = torch.linalg.vector_norm(flat, dim=1, keepdim=True).clamp(min=1e-12)
            step = flat / length * (LENGTH * self.learning_rate * flat.shape[1] ** 0.5)
            self.masters[n].sub_(step.reshape(moment.shape))


class Descent(Momentum):
    """The same without memory."""

    beta = 0.0


OPTIMISERS: Mapping[str, type[AdamW]] = {
    "adamw": AdamW,
    "momentum": Momentum,
    "descent": Descent,
}
"""AdamW, and those that a beacon may draw for re-acquisition."""


class Packed:
    """A tensor like ``master`` with one byte a number: a block's scale times a power of a base.

    The powers span 7 decades with a sign and 14 without. A number between two of them is rounded up
    or down by a sequence that is even over the steps, so that a second moment, which changes by a
    thousandth a step, moves on average; what is not zero never becomes zero.
    """

    def __init__(self, master: Tensor, signed: bool) -> None:
        self.count = master.numel()
        blocks = -(-self.count // BLOCK)
        self.codes = torch.zeros(self.count, dtype=torch.uint8, device=master.device)
        self.scales = torch.zeros(blocks, dtype=torch.float32, device=master.device)
        self.signed, self.levels = signed, 126 if signed else 254
        self.base = (7 if signed else 14) * math.log(10) / self.levels

    def pieces(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield the numbers as float32, piece by piece, each with its place."""
        for start in range(0, self.count, PIECE):
            at = slice(start, min(start + PIECE, self.count))
            codes = self.codes[at].float()
            level = codes - 128 * (codes > 127) if self.signed else codes
            value = torch.exp((level - self.levels - 1) * self.base).mul_(level > 0)
            if self.signed:
                value = torch.where(codes > 127, -value, value)
            yield at, value.mul_(self._scale(at))

    def store(self, at: slice, value: Tensor, step: int) -> None:
        """Keep the numbers of one piece."""
        size = value.abs()
        rest = -len(size) % BLOCK
        rows = torch.cat((size, size.new_zeros(rest))) if rest else size
        first = at.start // BLOCK
        scales = rows.view(-1, BLOCK).amax(1)
        self.scales[first : first + len(scales)] = scales
        # Weyl's sequence of the golden ratio, by place and by step, in [0, 1).
        turn = torch.arange(len(size), device=size.device) * 40503 + step * 25033
        level = torch.log(size / self._scale(at)).div_(self.base).add_(self.levels + 1)
        level = level.add_((turn % 65536).float() / 65536).floor_().clamp_(1, self.levels + 1)
        level = torch.where(size > 0, level, 0.0)
        if self.signed:
            level = torch.where(value < 0, level + 128, level)
        self.codes[at] = level.to(torch.uint8)

    def _scale(self, at: slice) -> Tensor:
        scales = self.scales[at.start // BLOCK : -(-at.stop // BLOCK)]
        return scales.repeat_interleave(BLOCK)[: at.stop - at.start]


def _master(leaf: Tensor, away: bool) -> Tensor:
    """Return the float32 tensor that steps are taken on: the leaf itself where it is one."""
    if leaf.dtype == torch.float32 and not away:
        return leaf
    master = leaf.detach().to("cpu" if away else leaf.device, torch.float32, copy=True)
    return _pinned(master, leaf, away)


def _pinned(value: Tensor, leaf: Tensor, away: bool) -> Tensor:
    """Return a host tensor where CUDA can read it directly; others as they are."""
    return value.pin_memory() if away and leaf.device.type == "cuda" else value
