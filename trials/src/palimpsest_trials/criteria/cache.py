"""What the measures of one cell share: the questions, and what the frozen models say to it.

Every measure is turned so that **larger means less restored**; what they mean, where they come from
and what they cost is in the catalogue. They are taken of pocket-sized models, whose passes a stack
shares.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palimpsest.errors import ModelError
from palimpsest.facts.nonce import key_number
from palimpsest.methods.answer_sets import target_logp
from palimpsest.models.fast import HEAD, Forward, Scored, StackedNet, watched
from palimpsest.models.net import Batch, Encoded, Net, collate
from palimpsest_trials.criteria.questionnaire import Floats, Questionnaire, Tokens
from palimpsest_trials.criteria.whitebox import probe_auc

Values = dict[str, float]
"""By the name of the measure."""


class CriteriaCache:
    """The questions of a cell; what base, injected model and reference say is taken once."""

    def __init__(self, questionnaire: Questionnaire) -> None:
        self.questionnaire, self.cell = questionnaire, questionnaire.cell

    # -- frozen models ---------------------------------------------------------------------------

    def state(self, role: str) -> Mapping[str, Tensor]:
        """Return the weights of base, injected model or reference, read once."""
        return self.cell.state(self.cell.reference if role == "reference" else role)

    def frozen(self, role: str) -> Net:
        return self.cell.net([self.state(role)])

    @cached_property
    def base(self) -> Tokens:
        return self.questionnaire.read(self.frozen("base"))[0]

    @cached_property
    def reference(self) -> Tokens:
        return self.questionnaire.read(self.frozen("reference"))[0]

    @cached_property
    def random(self) -> Tokens:
        """What a randomly initialized model of the same shape says."""
        seed = key_number(f"{self.cell.seed_key}/random") % 2**63
        generator = torch.Generator().manual_seed(seed)

        def start(value: Tensor, name: str) -> Tensor:
            if value.dim() > 1:
                return torch.randn(value.shape, generator=generator) * 0.02
            return torch.zeros_like(value) if name.endswith("bias") else torch.ones_like(value)

        state = {name: start(v, name) for name, v in sorted(self.state("base").items())}
        return self.questionnaire.read(self.cell.net([state]))[0]

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
        names = ("injected", "reference")
        return {
            name: self.inner_states(self.frozen(name), self.questionnaire.heldout)[0]
            for name in names
        }

    @cached_property
    def frozen_fisher(self) -> dict[str, dict[str, Tensor]]:
        names = ("injected", "reference")
        return {name: self.gradients(self.frozen(name))[1][0] for name in names}

    @cached_property
    def reference_probe(self) -> float:
        return self.probe(self.frozen("reference"))[0]

    # -- pieces ----------------------------------------------------------------------------------

    @cached_property
    def heldout(self) -> Batch:
        """The forget facts' held-out questions, one a row."""
        return collate(self.questionnaire.heldout)

    def nll(self, tokens: Tokens) -> Floats:
        """Return the mean token NLL of every question, (questions,)."""
        count = np.array(self.questionnaire.sheet.tokens, np.float64)
        return -np.bincount(self.questionnaire.owners, tokens.logp, len(count)) / count

    @torch.no_grad()
    def heldout_nll(self, net: Net, logits: Tensor | None = None) -> Floats:
        """Return each member's NLL of every held-out forget question, (stack, questions)."""
        logp = torch.log_softmax(net.logits(self.heldout) if logits is None else logits, -1)
        answers, owners = _answers(logp, self.heldout).numpy(), self.heldout.rows.numpy()
        counts = np.bincount(owners).astype(np.float64)
        return np.stack([-np.bincount(owners, row) / counts for row in answers])

    def answer_means(self, logp: Tensor) -> Floats:
        """Return the mean over answers of the mean log-probability of their tokens.

        logp: (…, scored, vocabulary) at the held-out forget answers.
        """
        counts, owners = np.bincount(self.heldout.rows.numpy()), self.heldout.rows.numpy()
        weights = 1.0 / counts[owners] / len(counts)
        return np.asarray(_answers(logp, self.heldout).numpy() @ weights)

    def plain_names(self, net: Net) -> dict[str, str]:
        """Return the parameters of a net by their names in a plain checkpoint.

        A net made of several checkpoints is represented by the last of them, the one that answers
        when nothing special is asked for; empty where none has all names.
        """
        prefixes = ["", *(f"{name.split('.')[0]}." for name in reversed(net.params))]
        for prefix in dict.fromkeys(prefixes):
            found = {name: prefix + name for name in self.injected.params}
            if all(inner in net.params for inner in found.values()):
                return found
        return {}

    def weights(self, net: Net) -> dict[str, Tensor]:
        """Return the parameters of a net under their plain names; empty where it has none such.

        A head that was tied and is no more has its own name.
        """
        found = {name: net.params[inner].detach() for name, inner in self.plain_names(net).items()}
        return found | ({HEAD: net.params[HEAD].detach()} if found and HEAD in net.params else {})

    @torch.no_grad()
    def inner_states(self, net: Net, texts: Sequence[Encoded]) -> Tensor:
        """Return the states (stack, layers, scored, width) of a net at the scored positions.

        A model that is more than one checkpoint is asked text by text: what it delivers for a text
        are the states of the part that answers it.
        """
        groups = [texts] if isinstance(net, StackedNet) else [[text] for text in texts]
        found = []
        for group in groups:
            seen: dict[int, Tensor] = {}

            def look(at: int, value: Tensor, scored: Scored, seen: Any = seen) -> Tensor:
                seen[at] = value if scored is None else value.index_select(1, scored)
                return value

            with watched(look):
                net.logits(collate(group))
            found.append(torch.stack([seen[at] for at in sorted(seen)], dim=1))
        return torch.cat(found, dim=2)

    def probe(self, net: Net) -> list[float]:
        """Return the best layer's AUC of a probe for true statements, of each member."""
        texts, true, about = self.questionnaire.statements
        left = [fact.id for fact in self.cell.facts.forget]
        found = self.inner_states(net, texts)
        return [max(probe_auc(layer, true, about, left) for layer in some) for some in found]

    def gradients(self, net: Net) -> tuple[dict[str, Floats], list[dict[str, Tensor]]]:
        """Return the mean norm of the gradient over parameter tensors, by set (stack, texts), and
        each member's squared gradients of the forget answers, under plain names."""
        names = self.plain_names(net)
        norms: dict[str, list[list[float]]] = {name: [] for name in self.questionnaire.cloze}
        squares = [
            {n: torch.zeros_like(v[0]) for n, v in self.injected.params.items()}
            for _ in range(net.stack)
        ]
        for kind, texts in self.questionnaire.cloze.items():
            for text in texts:
                batch = collate([text])
                logp = torch.log_softmax(net.logits(batch), -1)
                (-target_logp(logp, batch.targets.expand(net.stack, -1)).mean(1).sum()).backward()
                grads = {n: leaf.grad for n, leaf in net.params.items() if leaf.grad is not None}
                each = [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in grads.values()]
                norms[kind].append(torch.stack(each).double().mean(0).tolist())
                for name, inner in names.items() if kind == "forget" else ():
                    for own, grad in zip(squares, grads.get(inner, ())):
                        own[name] += grad.square() / len(texts)
                for leaf in net.params.values():
                    leaf.grad = None
        return {kind: np.array(rows).T for kind, rows in norms.items()}, squares if names else []


def _answers(logp: Tensor, batch: Batch) -> Tensor:
    """Return the log-probability of each scored token (…, scored)."""
    return target_logp(logp, batch.targets.expand(*logp.shape[:-1])).double()
