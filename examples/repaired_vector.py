"""A method that is not a loss: a task vector, then its damage to retain answers is repaired.

    θ₀ = θ_injected − c · (θ_forget_only − θ_base)
    then AdamW on KL(injected ‖ θ) at retain answers, upper half of the layers only

Run it with ``--method repaired_vector:RepairedVector`` from this folder.
"""

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import torch

from palimpsest.methods.context import Context, Knobs, Share, State, StepView, kl_from


@dataclass(frozen=True)
class RepairedVector(Knobs):
    coefficient: float = 1.0
    """How many times the forget-only update is taken away."""
    share: Share = 0.5
    """Share of the budget's steps that repair."""

    name: ClassVar[str] = "repaired_vector"
    kind: ClassVar[str] = "restores"
    summary: ClassVar[str] = "a task vector whose damage to retain answers is repaired"
    needs: ClassVar[tuple[str, ...]] = ("base", "forget_only")
    citation: ClassVar[str] = "an example; the vector is of Ilharco et al. 2023, arXiv:2212.04089"

    def run(self, context: Context) -> State:
        start = {
            name: injected - self.coefficient * (context.forget_only[name] - context.base[name])
            if injected.is_floating_point()
            else injected
            for name, injected in context.injected.items()
        }
        net = context.whole(start)  # net.model is the transformers module
        half = net.model.config.num_hidden_layers // 2
        upper = [value for name, value in net.params.items() if layer_of(name) >= half]
        optimizer = torch.optim.AdamW(upper, lr=context.budget.learning_rate, weight_decay=0.0)
        steps = round(self.share * context.budget.steps)
        for step, drawn in enumerate(islice(context.batches(), steps)):
            batch = drawn.to(net.device)
            logp = torch.log_softmax(net.logits(batch.tokens), dim=-1)[0]
            view = StepView(logp, batch, step, steps)
            optimizer.zero_grad()
            kl_from(batch.injected_retain, view.retain).backward()
            optimizer.step()
        return net.state()


def layer_of(name: str) -> int:
    """Return the number of the layer a parameter belongs to, -1 if to none."""
    return next((int(part) for part in name.split(".") if part.isdigit()), -1)
