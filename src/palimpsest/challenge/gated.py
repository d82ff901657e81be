"""A fuzzy router: a learned gate between the injected model and base, with its seam closed.

    logits = g(x) · (z_base + shift) + (1 − g(x)) · z_injected,  g(x) = σ(w · features(x) + b)

The features are hashed pairs of neighbouring tokens seen so far; the gate is a logistic regression
on the adversary's texts. The seam: base lacks the drift that the injected model has at facts nobody
learned, so a shift on the answer tokens is fitted that adds mean(L_injected − L_base) over invented
facts to the routed side's NLL. Liu et al. 2024 (ECO), arXiv:2406.07933; Mitchell et al. 2022
(SERAC), arXiv:2206.06520; Thaker et al. 2024 (guardrails), arXiv:2403.03329.
"""

import torch
from torch import Tensor
from torch.nn import functional

from palimpsest.challenge.models import Paired
from palimpsest.challenge.penalties import fitted
from palimpsest.challenge.workshop import State, Workshop
from palimpsest.methods.context import picked
from palimpsest.models.net import Batch, Net, collate

BUCKETS = 2048
DECAY = 1e-3
GATE_STEPS = 300


class Gated(Paired):
    """Two nets whose logits a gate mixes, position by position."""

    def __init__(
        self, matched: Net, otherwise: Net, gate: Tensor, shift: float, tokens: tuple[int, ...]
    ) -> None:
        """gate: (BUCKETS + 1,) weights and bias; shift: taken from the tokens' routed logits."""
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
        return torch.sigmoid(features(batch) @ self.gate[:-1] + self.gate[-1])

    def state(self, member: int = 0) -> dict[str, Tensor]:
        return super().state() | {"gate": self.gate, "shift": torch.tensor(self.shift)}


def fuzzy_router(workshop: Workshop) -> Net:
    """Return the router with its trained gate and fitted shift."""
    gate = _gate(workshop)
    mine = picked(torch.cat(workshop.said("base", "forget")).double(), workshop.targets("forget"))
    asked = workshop.targets("invented")
    injected, base = (
        -float(picked(torch.cat(workshop.said(model, "invented")), asked).mean())
        for model in ("injected", "base")
    )
    shift = fitted(mine, float(-mine.mean()) + (injected - base))
    routed, otherwise = (workshop.another(workshop.state(name)) for name in ("base", "injected"))
    return Gated(routed, otherwise, gate, shift, workshop.answers)


def features(batch: Batch) -> Tensor:
    """Return which hashed pairs of tokens (scored, BUCKETS) stand before each scored position."""
    ids = batch.ids.cpu()
    pairs = (ids[:, :-1] * 1_000_003 + ids[:, 1:] * 8191) % BUCKETS
    ends = torch.arange(1, ids.shape[1])
    seen = torch.zeros(batch.scored, BUCKETS)
    before = ends[None, :] <= batch.columns.cpu()[:, None]
    seen.scatter_reduce_(1, pairs[batch.rows.cpu()], before.float(), "amax")
    return seen


def _gate(workshop: Workshop) -> Tensor:
    """Return the logistic regression of forget against all other texts (BUCKETS + 1,)."""
    parts = {group: collate(texts, workshop.pad) for group, texts in workshop.texts.items()}
    seen = {group: features(batch) for group, batch in parts.items()}
    given = torch.cat([values[:: 4 if group == "general" else 1] for group, values in seen.items()])
    labels = torch.zeros(len(given))
    labels[: len(seen["forget"])] = 1.0  # the first group
    weights = torch.where(labels == 1, 0.5 / labels.sum(), 0.5 / (1 - labels).sum())
    gate = torch.zeros(BUCKETS + 1, requires_grad=True)
    optimiser = torch.optim.Adam([gate], lr=0.1)
    for _ in range(GATE_STEPS):
        scores = given @ gate[:-1] + gate[-1]
        losses = functional.binary_cross_entropy_with_logits(scores, labels, reduction="none")
        loss = losses @ weights + DECAY * gate.square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return gate.detach()
