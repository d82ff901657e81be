"""Selective synaptic dampening: shrink the weights that matter for the forget set alone.

    I_S[i] = mean over texts of S of (∂ NLL(answer) / ∂ θ_i)²
    θ_i ← min(λ · I_R[i] / I_F[i], 1) · θ_i   wherever   I_F[i] > α · I_R[i]

I is the diagonal of the empirical Fisher matrix, F the forget set and R the retain set.

Foster, Schoepf and Brintrup 2024, *Fast Machine Unlearning without Retraining through Selective
Synaptic Dampening*, AAAI, arXiv:2308.07707; α = 10 and λ = 1 are its settings for ResNet18. There
the second importance is taken over the whole training set; forget and retain facts being equally
many here, that would cap the ratio at 2, so the retain texts stand for it, as in the adaptation to
language models of Li et al. 2024 (WMDP), arXiv:2403.03218. One forward and backward pass for each
text and no optimizer step: far below the budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from palimpsest.methods.answer_sets import Spent, count_tokens, read_logp, target_logp
from palimpsest.methods.context import Context, Knobs, Positive, State, Weight
from palimpsest.models.net import Encoded, Net, collate


@dataclass(frozen=True)
class SSD(Knobs):
    alpha: Positive = 10.0
    """How many times more important a weight must be to forget than to retain; the paper's."""
    dampening: Weight = 1.0
    """λ, the paper's."""

    name = "ssd"
    kind = "other"
    summary = "shrinks the weights whose Fisher information is mostly the forget set's"
    citation = "Foster et al. 2024, arXiv:2308.07707"

    def run(self, context: Context) -> State:
        net = context.net([context.injected])
        read = count_tokens((*context.forget.texts, *context.retain.texts))
        context.shared.spend(Spent(tokens=read))
        forget = importance(net, context.forget.texts)
        retain = importance(net, context.retain.texts)
        with torch.no_grad():
            for name, value in net.params.items():
                value.mul_(self.factor(forget[name], retain[name]).to(value.dtype))
        return net.state()

    def factor(self, forget: Tensor, retain: Tensor) -> Tensor:
        """Return what each weight is multiplied by, from its two importances."""
        chosen = forget > self.alpha * retain
        kept = (self.dampening * retain / forget.where(chosen, 1.0)).clamp(max=1.0)
        return kept.where(chosen, 1.0)


def importance(net: Net, texts: Sequence[Encoded]) -> dict[str, Tensor]:
    """Return, for each parameter, the mean over texts of its squared gradient."""
    total = {n: torch.zeros_like(v, dtype=torch.float32) for n, v in net.params.items()}
    for text in texts:
        batch = collate([text]).to(net.device)
        nll = -target_logp(read_logp(net, batch), batch.targets).mean()
        gradients = torch.autograd.grad(nll, list(net.params.values()), allow_unused=True)
        for name, gradient in zip(total, gradients):
            if gradient is not None:
                total[name].add_(gradient.float().square())
    return {name: value / len(texts) for name, value in total.items()}
