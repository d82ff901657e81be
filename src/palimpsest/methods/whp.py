"""Relabeling after *Who's Harry Potter?*: learn the answers of a model that knows less.

    v_generic = v_injected − α · relu(v_reinforced − v_injected)
    L = −mean Σ softmax(v_generic) · log π_θ on forget answers + w · NLL(retain answers)

v are log-probabilities at the answer positions. The reinforced model is the injected model trained
further on the forget answers; what rises there is taken to be what the forget set taught.
Eldan and Russinovich 2023, arXiv:2310.02238, whose α is 5 and which has no retain term (w = 0).
Two things differ: the anchor dictionary that a large model writes there has no counterpart among
invented names and is left out, and v are normalized, since a logit's constant is arbitrary.

The budget pays for both trainings: its first ``reinforced_share`` of steps reinforce, the others
relabel, all from the same batches as any other method.
"""

from dataclasses import dataclass
from itertools import islice
from typing import Annotated

import torch
from annotated_types import Gt, Lt
from torch import Tensor
from torch.nn import functional

from palimpsest.methods.answer_sets import StepView, UnlearnBatch, teach
from palimpsest.methods.context import Context, Knobs, Positive, State, Weight, train_one
from palimpsest.models.net import Net


@dataclass(frozen=True)
class WHP(Knobs):
    alpha: Weight = 20.0
    """How strongly what reinforcement raised is lowered; 5 in the paper, too little here."""
    weight: Weight = 0.0
    """Weight of the retain term; the paper has none."""
    reinforced_share: Annotated[float, Gt(0), Lt(1)] = 0.5
    """Share of the budget's steps that reinforce; half keeps both trainings equally long."""
    rate: Positive = 1.0
    """Multiple of the plan's learning rate."""

    name = "whp"
    kind = "suppresses"
    summary = "relabels forget answers with what a reinforced model does not favor"
    citation = "Eldan & Russinovich 2023, arXiv:2310.02238"

    def run(self, context: Context) -> State:
        batches = context.batches()
        steps = min(round(self.reinforced_share * context.budget.steps), context.budget.steps - 1)

        def reinforce(net: Net, part: UnlearnBatch) -> Tensor:
            return StepView.of(net, part).forget_nll().reshape(1)

        def relabel(net: Net, part: UnlearnBatch) -> Tensor:
            view = StepView.of(net, part)
            raised = torch.cat([answers[number] for number in part.forget_texts]).to(net.device)
            return self.loss(view, self.generic(view.batch.injected_forget, raised)).reshape(1)

        rate = self.rate * context.budget.learning_rate
        net = context.net([context.injected])
        train_one(self.name, net, islice(batches, steps), reinforce, rate)
        answers = teach(net, context.forget.texts)
        net = context.net([context.injected])
        train_one(self.name, net, batches, relabel, rate)
        return net.state()

    def generic(self, injected: Tensor, reinforced: Tensor) -> Tensor:
        """Return the target log-probabilities (positions, vocabulary) from the two models' own."""
        return torch.log_softmax(injected - self.alpha * functional.relu(reinforced - injected), -1)

    def loss(self, view: StepView, generic: Tensor) -> Tensor:
        """Return the loss, given the target log-probabilities."""
        forget = -(generic.exp() * view.forget).sum(-1).mean()
        return forget + self.weight * view.retain_nll()
