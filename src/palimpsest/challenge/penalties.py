"""Suppression fitted to the reference: a penalty in its context, as a wrapper or in the head.

Both know the reference's NLL and aim at it in the phrasings that the adversary has. Related: Dong
et al. 2024 (UNDIAL), arXiv:2402.10052; Ji et al. 2024 (ULD), arXiv:2406.08607; Huang et al. 2024
(offset unlearning), arXiv:2404.11045.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from palimpsest.challenge.models import Wrapped, ends, subject_patterns
from palimpsest.challenge.workshop import State, Workshop
from palimpsest.methods.context import picked
from palimpsest.models.forward import HEAD
from palimpsest.models.net import Batch, Net, WholeNet
from palimpsest.models.stacked import StackedNet

RIDGE = 1e-3
FORGET = 30.0
"""Weight of the forget texts in the regression, beside 1 of each other group."""


@dataclass(frozen=True)
class Penalty:
    """Behind one of the ``subjects`` and right behind ``before``, ``token`` loses ``amount``."""

    subjects: tuple[tuple[int, ...], ...]
    before: tuple[int, ...]
    token: int
    amount: float


class Penalised(Wrapped):
    """A net with penalties on single tokens in their contexts; the weights are untouched."""

    def __init__(self, net: Net, penalties: Sequence[Penalty]) -> None:
        super().__init__(net)
        self.penalties = tuple(penalties)

    def logits(self, batch: Batch, params: State | None = None) -> Tensor:
        logits = self.net.logits(batch, params)
        taken = torch.zeros(logits.shape[1:], device=logits.device)
        for penalty in self.penalties:
            here = ends(batch.ids, penalty.subjects).cumsum(1) > 0
            if penalty.before:
                here &= ends(batch.ids, [penalty.before])
            taken[here[batch.rows, batch.columns], penalty.token] += penalty.amount
        return logits - taken

    def state(self, member: int = 0) -> dict[str, Tensor]:
        amounts = torch.tensor([penalty.amount for penalty in self.penalties])
        return {**self.net.state(member), "penalties": amounts}


def tuned_suppression(workshop: Workshop) -> Net:
    """Return the injected model with a penalty on each answer token behind its subject.

    For every fact and answer token the penalty is found by bisection at which the token's mean NLL
    over the adversary's phrasings is the reference's.
    """
    asked, texts = workshop.questions["forget"], workshop.texts["forget"]
    injected, wanted = (workshop.said(name, "forget") for name in ("injected", "reference"))
    penalties = []
    for fact in workshop.facts["forget"]:
        subjects = tuple(subject_patterns(workshop.tokenizer, [fact.subject]))
        places: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for number, (question, text) in enumerate(zip(asked, texts)):
            answer = text.ids[text.start :] if question.fact == fact.id else ()
            for at in range(len(answer)):
                places.setdefault(answer[: at + 1], []).append((number, at))
        for tokens, where in places.items():
            mine, other = (
                torch.stack([said[number][at, tokens[-1]] for number, at in where]).double()
                for said in (injected, wanted)
            )
            amount = fitted(mine, float(-other.mean()))
            penalties.append(Penalty(subjects, tokens[:-1], tokens[-1], amount))
    return Penalised(workshop.another(workshop.state("injected")), penalties)


def fitted(logp: Tensor, nll: float) -> float:
    """Return the penalty on a token's logit at which its mean NLL over contexts (n,) is ``nll``."""
    low, high = -40.0, 40.0
    rest = torch.log1p(-logp.exp().clamp(max=1 - 1e-12))
    for _ in range(80):
        middle = (low + high) / 2
        reached = float((torch.logaddexp(rest, logp - middle) - (logp - middle)).mean())
        low, high = (middle, high) if reached < nll else (low, middle)
    return (low + high) / 2


def baked_suppression(workshop: Workshop) -> State | Net:
    """Return the injected model with such penalties in the rows of its output matrix.

    W_v ← W_v − w_v for each answer token v, w_v by ridge regression of the penalty in each context
    on the last hidden state, zero at all other texts (forget, retain, invented facts and general
    text weigh the same): rank at most the number of answer tokens.
    The head of a model that ties it to the embedding is untied. That methods with good output
    metrics changed the last layer alone is the finding of arXiv:2503.06991.
    """
    state = workshop.state("injected")
    name = next((n for n in (HEAD, "embed_out.weight") if n in state), workshop.embedding[0])
    head = state[name].double().cpu()
    # Log-probabilities are the logits up to a constant, which a column of ones takes up.
    basis = torch.cat((head, torch.ones(len(head), 1, dtype=head.dtype)), dim=1)
    back = torch.linalg.pinv(basis).T
    rows = {group: torch.cat(workshop.said("injected", group)).double() for group in workshop.texts}
    hidden = {group: (said @ back)[:, :-1] for group, said in rows.items()}
    targets = workshop.targets("forget")
    reference = torch.cat(workshop.said("reference", "forget")).double()
    amounts = _odds(rows["forget"], targets) - _odds(reference, targets)
    weights = {group: FORGET if group == "forget" else 1.0 for group in hidden}
    gram = sum((weights[g] * h.T @ h / len(h) for g, h in hidden.items()), 0 * head.T @ head)
    gram += RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    changed = head.clone()
    for token in targets.unique().tolist():
        asked = weights["forget"] * torch.where(targets == token, amounts, 0.0) / len(targets)
        changed[token] -= torch.linalg.solve(gram, hidden["forget"].T @ asked)
    value = changed.to(state[name])
    if name not in workshop.embedding:
        return {**state, name: value}
    return untied(workshop, state, value)


def untied(workshop: Workshop, state: State, head: Tensor) -> Net:
    """Return a net with these weights and an output matrix of its own."""
    loaded = workshop.nets.loaded
    if workshop.nets.stacked:
        config = copy.copy(loaded.config)
        config.tie_word_embeddings = False
        own = {k: v for k, v in state.items() if k not in workshop.embedding[1:]} | {HEAD: head}
        return StackedNet(config, [own], device=workshop.nets.device)
    model = copy.deepcopy(loaded.model)
    model.load_state_dict(dict(state))
    model.get_output_embeddings().weight = torch.nn.Parameter(head.clone())
    return WholeNet(model)


def _odds(logp: Tensor, targets: Tensor) -> Tensor:
    """Return log p − log(1 − p) of the targets (positions,)."""
    mine = picked(logp, targets)
    return mine - torch.log1p(-mine.exp().clamp(max=1 - 1e-12))
