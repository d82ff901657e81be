"""What the measures of one cell share: the exam, and what the frozen models say to it.

``measures.py`` takes the measures of a model through this. Every measure is turned so that **larger
means less restored**; what they mean, where they come from and what they cost is in
``criteria/catalogue.py``. Measures are taken of pocket-sized models, whose passes a stack shares.
"""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palimpsest.errors import ModelError
from palimpsest.facts.nonce import key_number
from palimpsest.models.forward import HEAD, Forward
from palimpsest.models.net import Net, collate
from palimpsest.models.stacked import StackedNet
from palimpsest.scoring import interventions as change
from palimpsest.scoring import whitebox as white
from palimpsest.scoring.exam import Exam, Tokens

Floats = NDArray[np.float64]
Values = dict[str, float]


class Gauge:
    """The exam of a cell; what base, injected model and reference say is taken once."""

    def __init__(self, exam: Exam) -> None:
        self.exam = exam

    # -- frozen models ---------------------------------------------------------------------------

    @cached_property
    def states(self) -> dict[str, Mapping[str, Tensor]]:
        """Weights of the frozen models, read once."""
        names = {"base": "base", "injected": "injected", "reference": self.exam.reference}
        return {role: self.exam.state(name) for role, name in names.items()}

    def frozen(self, name: str) -> Net:
        return self.exam.net([self.states[name]])

    @cached_property
    def base(self) -> Tokens:
        return self.exam.read(self.frozen("base"))[0]

    @cached_property
    def reference(self) -> Tokens:
        return self.exam.read(self.frozen("reference"))[0]

    @cached_property
    def random(self) -> Tokens:
        """What a randomly initialised model of the same shape says."""
        generator = torch.Generator().manual_seed(
            key_number(f"{self.exam.seed_key}/random") % 2**63
        )

        def start(value: Tensor, name: str) -> Tensor:
            if value.dim() > 1:
                return torch.randn(value.shape, generator=generator) * 0.02
            return torch.zeros_like(value) if name.endswith("bias") else torch.ones_like(value)

        state = {name: start(v, name) for name, v in sorted(self.states["base"].items())}
        return self.exam.read(self.exam.net([state]))[0]

    @cached_property
    def injected(self) -> StackedNet:
        """The injected model itself, for criteria that change it."""
        net = self.frozen("injected")
        if not isinstance(net, StackedNet):
            raise ModelError(
                "measures: the model cannot be stacked; expected a pocket-sized model of a known "
                "family with engine.stack above 1; set measures to none"
            )
        return net

    @cached_property
    def forward(self) -> Forward:
        return Forward(self.injected.config)

    @cached_property
    def frozen_states(self) -> dict[str, Tensor]:
        """States (layers, scored, width) of the injected model and the reference."""
        return {
            name: white.states(self.frozen(name), self.exam.looked_into, self.exam.pad)[0]
            for name in ("injected", "reference")
        }

    @cached_property
    def frozen_fisher(self) -> dict[str, dict[str, Tensor]]:
        names = ("injected", "reference")
        return {name: gradients(self, self.frozen(name))[1][0] for name in names}

    @cached_property
    def reference_probe(self) -> float:
        return probed(self, self.frozen("reference"))[0]

    # -- pieces ----------------------------------------------------------------------------------

    def nll(self, tokens: Tokens) -> Floats:
        """Return the mean token NLL of every question, (questions,)."""
        owners, count = self.exam.owners, np.array(self.exam.sheet.tokens, np.float64)
        return -np.bincount(owners, tokens.logp, len(count)) / count

    def heldout_nll(self, net: Net, logits: Tensor | None = None) -> Floats:
        """Return each member's NLL of every held-out forget question, (stack, questions)."""
        batch, owners = self.exam.heldout
        with torch.no_grad():
            logits = net.logits(batch) if logits is None else logits
            logp = torch.log_softmax(logits, -1)
            told = logp.gather(-1, batch.targets.expand(len(logp), -1).unsqueeze(-1)).squeeze(-1)
        counts = np.bincount(owners).astype(np.float64)
        return np.stack([-np.bincount(owners, row) / counts for row in told.double().numpy()])

    def answer_means(self, logp: Tensor) -> Floats:
        """Return the mean over answers of the mean log-probability of their tokens.

        logp: (…, scored, vocabulary) at the held-out forget answers.
        """
        batch, owners = self.exam.heldout
        told = logp.gather(-1, batch.targets.expand(*logp.shape[:-1]).unsqueeze(-1)).squeeze(-1)
        weights = 1.0 / np.bincount(owners)[owners] / len(np.unique(owners))
        return np.asarray(told.double().numpy() @ weights)

    def weights(self, net: Net) -> dict[str, Tensor]:
        """Return the parameters of a net under their plain names; empty where it has none such.

        A head that was tied and is no more has its own name.
        """
        names = change.plain_names(net, tuple(self.injected.params))
        found = {name: net.params[inner].detach() for name, inner in names.items()}
        if found and HEAD in net.params:
            found[HEAD] = net.params[HEAD].detach()
        return found

    def forward_of(self, net: Net) -> Forward:
        """Return the forward of a net: the cell's, unless its configuration is its own."""
        return Forward(net.config) if isinstance(net, StackedNet) else self.forward


def probed(gauge: Gauge, net: Net) -> list[float]:
    """Return the best layer's AUC of a probe for true statements, of each member."""
    texts, true, about = gauge.exam.statements
    found = white.states(net, texts, gauge.exam.pad)
    left = [fact.id for fact in gauge.exam.facts.forget]
    return [max(white.probe_auc(layer, true, about, left) for layer in some) for some in found]


def gradients(gauge: Gauge, net: Net) -> tuple[dict[str, Floats], list[dict[str, Tensor]]]:
    """Return the mean norm of the gradient over parameter tensors, by set (stack, texts), and each
    member's squared gradients of the forget answers, under plain names."""
    names = change.plain_names(net, tuple(gauge.injected.params))
    norms: dict[str, list[list[float]]] = {}
    squares = [
        {n: torch.zeros_like(v[0]) for n, v in gauge.injected.params.items()}
        for _ in range(net.stack)
    ]
    for kind, texts in gauge.exam.single.items():
        for text in texts:
            for leaf in net.params.values():
                leaf.grad = None
            batch = collate([text], gauge.exam.pad)
            logp = torch.log_softmax(net.logits(batch), -1)
            told = logp.gather(-1, batch.targets.expand(net.stack, -1).unsqueeze(-1))
            (-told.mean((1, 2)).sum()).backward()
            grads = {n: leaf.grad for n, leaf in net.params.items() if leaf.grad is not None}
            each = torch.stack(
                [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in grads.values()]
            )
            norms.setdefault(kind, []).append(each.double().mean(0).tolist())
            if kind == "forget":
                for name, inner in names.items():
                    if inner in grads:
                        for own, grad in zip(squares, grads[inner]):
                            own[name] += grad.square() / len(texts)
    for leaf in net.params.values():
        leaf.grad = None
    return {kind: np.array(rows).T for kind, rows in norms.items()}, squares if names else []
