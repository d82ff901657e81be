"""Nets around the injected model: penalties in their contexts, and a learned gate.

Under re-acquisition a penalty or a gate stays as it is, and the weights beneath it are trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from palimpsest.known.wrappers import Paired, State, Wrapped, find_ends
from palimpsest.models.net import Batch, Net

BUCKETS = 2048
"""Features of a learned gate."""


@dataclass(frozen=True)
class Penalty:
    """Behind one of the ``subjects`` and right behind ``before``, ``token`` loses ``amount``."""

    subjects: tuple[tuple[int, ...], ...]
    before: tuple[int, ...]
    token: int
    amount: float


class Penalized(Wrapped):
    """A net with penalties on single tokens in their contexts; the weights are untouched."""

    def __init__(self, net: Net, penalties: Sequence[Penalty]) -> None:
        super().__init__(net)
        self.penalties = tuple(penalties)

    def logits(self, batch: Batch, params: State | None = None) -> Tensor:
        logits = self.net.logits(batch, params)
        taken = torch.zeros(logits.shape[1:], device=logits.device)
        for penalty in self.penalties:
            here = find_ends(batch.ids, penalty.subjects).cumsum(1) > 0
            if penalty.before:
                here &= find_ends(batch.ids, [penalty.before])
            taken[here[batch.rows, batch.columns], penalty.token] += penalty.amount
        return logits - taken

    def state(self, member: int = 0) -> dict[str, Tensor]:
        amounts = torch.tensor([penalty.amount for penalty in self.penalties])
        return {**self.net.state(member), "penalties": amounts}


class Gated(Paired):
    """Two nets whose logits a learned gate mixes, position by position.

    gate: (BUCKETS + 1,) weights and bias; shift: taken from the tokens' routed logits.
    """

    def __init__(
        self, matched: Net, otherwise: Net, gate: Tensor, shift: float, tokens: Sequence[int]
    ) -> None:
        super().__init__(matched, otherwise)
        self.gate, self.shift, self.tokens = gate, shift, list(tokens)

    def logits(self, batch: Batch, params: State | None = None) -> Tensor:
        routed = self.matched.logits(batch)
        bias = routed.new_zeros(routed.shape[-1])
        bias[self.tokens] = -self.shift
        share = self.open(batch)[:, None].to(routed.device)
        return share * (routed + bias) + (1 - share) * self.otherwise.logits(batch)

    def open(self, batch: Batch) -> Tensor:
        """Return how far the gate is open at each scored position (scored,)."""
        return torch.sigmoid(gate_features(batch) @ self.gate[:-1] + self.gate[-1])

    def state(self, member: int = 0) -> dict[str, Tensor]:
        return super().state() | {"gate": self.gate, "shift": torch.tensor(self.shift)}


def gate_features(batch: Batch) -> Tensor:
    """Return which hashed pairs of tokens (scored, BUCKETS) stand before each scored position."""
    ids = batch.ids.cpu()
    pairs = (ids[:, :-1] * 1_000_003 + ids[:, 1:] * 8191) % BUCKETS
    before = torch.arange(1, ids.shape[1])[None, :] <= batch.columns.cpu()[:, None]
    seen = torch.zeros(batch.scored, BUCKETS)
    return seen.scatter_reduce_(1, pairs[batch.rows.cpu()], before.float(), "amax")
