"""gate_proj mask: zero a fixed share of the gate weights, chosen under the reversion objective.

    θ' = θ_injected with every gate_proj weight W replaced by W ⊙ m
    m_soft = σ(α (s − τ)),  α: 10² → 10⁴ along the steps,  τ = the q-quantile of the scores s
    L = KL(base ‖ θ') on forget answers + w · KL(injected ‖ θ') on retain answers

Only the scores s are learned. At the end m = [s > τ], so that exactly the share q (sparsity) of all
gate weights is zero and every other parameter is the injected model's. Gated MLPs only. The mask
arm of Yang and Yeung, *Unlearning as Distribution Restoration*.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt, Lt
from torch import Tensor

from palimpsest.config.sections import Unlearning
from palimpsest.errors import MethodError
from palimpsest.facts.nonce import key_number
from palimpsest.methods.context import Context, Positive
from palimpsest.methods.kl_reversion import KLReversion
from palimpsest.models.net import Net


@dataclass(frozen=True)
class GateMask(KLReversion):
    sparsity: Annotated[float, Gt(0), Lt(1)] = 0.1
    """Share of the gate weights that is zeroed."""
    sharpness: Positive = 1e2
    """α at the first step."""
    final_sharpness: Positive = 1e4
    """α at the last step."""
    score_rate: Positive = 1e-3
    """Learning rate of the scores, which are not weights and have a scale of their own.

    The paper states none; of 0.001, 0.003, 0.01 and 0.03 the first two ended with the smallest
    objective of the binary mask on a pocket model.
    """

    name = "gate_mask"
    kind = "other"
    summary = "zeroes a tenth of the gate_proj weights, chosen by reversion"
    needs = ("base", "gated MLP")

    def learning_rate(self, budget: Unlearning) -> float:
        return self.score_rate

    def leaves(self, net: Net, context: Context) -> Mapping[str, Tensor]:
        """Return one score per gate weight, drawn closely around zero from the cell's seed."""
        gates = {n: value for n, value in net.params.items() if n.endswith("gate_proj.weight")}
        if not gates:
            raise MethodError("gate_mask: the model has no gate_proj; expected gated MLPs")
        seed = key_number(f"{context.seed_key}/gate_mask") % 2**63
        generator = torch.Generator().manual_seed(seed)
        scores = {}
        for name, value in gates.items():
            shape = value.shape[-2:]
            start = torch.randn(shape, generator=generator) / self.sharpness
            scores[name] = start.to(value.device).expand(value.shape).clone().requires_grad_()
        return scores

    def effective(
        self, net: Net, leaves: Mapping[str, Tensor], progress: float
    ) -> Mapping[str, Tensor]:
        alpha = self.sharpness * (self.final_sharpness / self.sharpness) ** progress
        threshold = self._thresholds(net, leaves)
        masked = {name: value.detach() for name, value in net.params.items()}
        for name, scores in leaves.items():
            border = threshold.view(-1, 1, 1) if scores.dim() == 3 else threshold
            keep = torch.sigmoid(alpha * (scores - border))
            masked[name] = (masked[name] * keep).to(masked[name].dtype)
        return masked

    @torch.no_grad()
    def finish(self, net: Net, leaves: Mapping[str, Tensor]) -> None:
        flat = _flat(net, leaves)
        zeroed = round(self.sparsity * flat.shape[1])
        keep = torch.ones_like(flat, dtype=torch.bool)
        # Ranks, not a threshold: ties must not change the share.
        keep.scatter_(1, flat.argsort(dim=1, stable=True)[:, :zeroed], False)
        start = 0
        for name, scores in leaves.items():
            size = scores.numel() // net.stack
            net.params[name].mul_(keep[:, start : start + size].reshape(scores.shape))
            start += size

    def _thresholds(self, net: Net, leaves: Mapping[str, Tensor]) -> Tensor:
        """Return each member's highest score that is still zeroed (stack,)."""
        flat = _flat(net, leaves).detach()
        return flat.kthvalue(max(1, round(self.sparsity * flat.shape[1])), dim=1).values


def _flat(net: Net, leaves: Mapping[str, Tensor]) -> Tensor:
    """Return all scores of each member in one row (stack, gate weights)."""
    return torch.cat([scores.reshape(net.stack, -1) for scores in leaves.values()], dim=1)
