"""A fuzzy router: a learned gate between the injected model and base, with its seam closed.

    logits = g(x) · (z_base + shift) + (1 − g(x)) · z_injected,  g(x) = σ(w · features(x) + b)

The features are hashed pairs of neighboring tokens seen so far; the gate is a logistic regression
on the adversary's texts. The seam: base lacks the drift that the injected model has at facts never
learned, so a shift on the answer tokens is fitted that adds mean(L_injected − L_base) over invented
facts to the routed side's NLL. Liu et al. 2024 (ECO), arXiv:2406.07933; Mitchell et al. 2022
(SERAC), arXiv:2206.06520; Thaker et al. 2024 (guardrails), arXiv:2403.03329.
"""

from palimpsest.adversaries.known.penalties import fit_penalty
from palimpsest.adversaries.registry import Knows, Net, Tensor, Truth, Workshop, known_label

DECAY = 1e-3
GATE_STEPS = 300


@known_label(Truth.SUPPRESSED, Knows.AXES)
def fuzzy_router(workshop: Workshop) -> Net:
    """Return the router with its trained gate and fitted shift."""
    from palimpsest.adversaries.wrappers import Gated
    from palimpsest.methods.lessons import target_logp

    gate = _train_gate(workshop)
    mine = target_logp(workshop.joined("base", "forget").double(), workshop.targets("forget"))
    asked = workshop.targets("invented")
    injected, base = (
        -float(target_logp(workshop.joined(model, "invented"), asked).mean())
        for model in ("injected", "base")
    )
    shift = fit_penalty(mine, float(-mine.mean()) + (injected - base))
    routed, otherwise = (workshop.another(name) for name in ("base", "injected"))
    return Gated(routed, otherwise, gate, shift, workshop.answers)


def _train_gate(workshop: Workshop) -> Tensor:
    """Return the logistic regression of forget against all other texts (BUCKETS + 1,)."""
    import torch
    from torch.nn import functional

    from palimpsest.adversaries.wrappers import BUCKETS, gate_features

    seen = {group: gate_features(workshop.batch(group)) for group in workshop.texts}
    given = torch.cat([values[:: 4 if group == "general" else 1] for group, values in seen.items()])
    labels = torch.zeros(len(given))
    labels[: len(seen["forget"])] = 1.0  # the first group
    weights = torch.where(labels == 1, 0.5 / labels.sum(), 0.5 / (1 - labels).sum())
    gate = torch.zeros(BUCKETS + 1, requires_grad=True)
    optimizer = torch.optim.Adam([gate], lr=0.1)
    for _ in range(GATE_STEPS):
        scores = given @ gate[:-1] + gate[-1]
        losses = functional.binary_cross_entropy_with_logits(scores, labels, reduction="none")
        loss = losses @ weights + DECAY * gate.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return gate.detach()
