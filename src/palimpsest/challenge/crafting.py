"""The training that adversaries share: following frozen models, and looking ahead.

Almost every trained adversary is a distillation: at some texts it follows one frozen model, at the
others another. A ``Goal`` is such a group of texts with what it should say there; ``follow`` trains
on several of them at once. ``foresee`` adds what happens to the model when it is attacked.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from palimpsest.challenge.workshop import State, Workshop
from palimpsest.facts.nonce import key_number
from palimpsest.facts.stream import deck
from palimpsest.methods.context import picked
from palimpsest.models.net import Batch, Encoded, Net, collate
from palimpsest.models.optimiser import AdamW
from palimpsest.models.train import TextBatch, text_loss, train_alone

Leaves = Mapping[str, Tensor]


@dataclass(frozen=True)
class Goal:
    """Texts and the log-probabilities to follow there, one (scored, vocabulary) tensor a text."""

    texts: Sequence[Encoded]
    teacher: Sequence[Tensor]
    items: int = 4
    """Texts a step."""
    weight: float = 1.0


@dataclass(frozen=True)
class Part:
    """One step: the texts of all goals, their teachers, and each position's weight (scored,)."""

    batch: Batch
    teacher: Tensor
    weights: Tensor


def keeping(workshop: Workshop) -> list[Goal]:
    """Return the goals that hold everything but the forget facts where the injected model is."""
    groups = ("retain", "invented", "general")
    return [Goal(workshop.texts[name], workshop.said("injected", name)) for name in groups]


def suppressing(workshop: Workshop, model: str) -> list[Goal]:
    """Return the goals to follow a model at the forget questions and the injected one elsewhere."""
    said = workshop.said(model, "forget")
    return [Goal(workshop.texts["forget"], said, items=8), *keeping(workshop)]


def follow(
    workshop: Workshop,
    name: str,
    start: State,
    goals: Sequence[Goal],
    *,
    steps: int | None = None,
    rate: float = 1.0,
    leaves: Callable[[Net], Leaves] | None = None,
    effective: Callable[[Net, Leaves], Leaves] | None = None,
    after_step: Callable[[Net], None] | None = None,
) -> State:
    """Return the weights after training towards the goals, from ``start``.

    L = Σ_goals w · mean over positions of KL(teacher ‖ θ)

    steps, rate: default to an unlearning method's steps; a multiple of its learning rate.
    leaves, effective: what is trained, and the parameters of the forward pass made of it.
    """
    net = workshop.nets([start])
    trained = net.params if leaves is None else leaves(net)

    def loss(student: Net, part: Part) -> Tensor:
        given = None if effective is None else effective(student, trained)
        return apart(student, part, given)

    train_alone(
        net,
        ([part] for part in _parts(workshop, name, goals, steps or workshop.steps)),
        loss,
        f"building {name}",
        learning_rate=rate * workshop.rate,
        params=trained,
        after_step=None if after_step is None else lambda _: after_step(net),
    )
    state = net.state()
    if effective is not None:
        with torch.no_grad():
            changed = effective(net, trained)
            state |= {
                key: value.detach().reshape(state[key].shape) for key, value in changed.items()
            }
    return {key: value.clone() for key, value in state.items()}


def foresee(
    workshop: Workshop,
    name: str,
    start: State,
    goals: Sequence[Goal],
    attack: Sequence[Sequence[TextBatch]],
    marks: Mapping[int, Callable[[Net], Tensor]],
    *,
    attack_rate: float,
    rounds: int,
    full: int = 1,
) -> State:
    """Return weights that reach the goals now and the marks while they are attacked.

    marks: by step of the attack; 0 is before it.
    full: one round in so many goes to the last mark, the others to the first of the attack.

    Each round the model is attacked as ``train`` would, and at the marked steps t the gradient of
    mark_t at θ_t is taken; it is applied to θ_0 as it is, without second derivatives, together with
    the goals' gradient at θ_0. Tamirisa et al. 2024 (TAR), arXiv:2408.00761.
    """
    mine = workshop.another(start)
    leaves = list(mine.params.values())
    optimiser = AdamW(leaves, workshop.rate)
    for number, part in enumerate(_parts(workshop, name, goals, rounds)):
        steps = attack[: max(marks) if number % full == 0 else min(filter(None, marks))]
        now = apart(mine, part) + (marks[0](mine) if 0 in marks else 0.0)
        total = list(torch.autograd.grad(now.sum(), leaves))
        attacked = workshop.another(mine.state())

        def look(step: int, net: Net = attacked, total: list[Tensor] = total) -> None:
            if step in marks:
                ahead = torch.autograd.grad(marks[step](net).sum(), list(net.params.values()))
                torch._foreach_add_(total, list(ahead))

        what = f"building {name}"
        train_alone(attacked, steps, text_loss, what, learning_rate=attack_rate, after_step=look)
        for leaf, value in zip(leaves, total):
            leaf.grad = value
        optimiser.step()
    return {key: value.clone() for key, value in mine.state().items()}


def apart(net: Net, part: Part, params: Leaves | None = None) -> Tensor:
    """Return Σ w · KL(teacher ‖ net) over the positions of a step (1,)."""
    logp = torch.log_softmax(net.logits(part.batch.to(net.device), params)[0], dim=-1)
    teacher = part.teacher.to(net.device)
    kl = (teacher.exp() * (teacher - logp)).sum(-1)
    return (kl @ part.weights.to(net.device)).reshape(1)


def text_nlls(net: Net, batch: Batch) -> Tensor:
    """Return the mean NLL of each text's scored tokens (texts,), with its gradient."""
    batch = batch.to(net.device)
    logp = torch.log_softmax(net.logits(batch)[0], dim=-1)
    nll = -picked(logp, batch.targets)
    counts = torch.bincount(batch.rows, minlength=len(batch.ids)).to(nll)
    return nll.new_zeros(len(batch.ids)).index_add(0, batch.rows, nll) / counts


def _parts(workshop: Workshop, name: str, goals: Sequence[Goal], steps: int) -> Iterator[Part]:
    order = random.Random(key_number(f"{workshop.seed_key}/panel/{name}"))
    decks = [deck(range(len(goal.texts)), order) for goal in goals]
    for _ in range(steps):
        drawn = [[next(cards) for _ in range(goal.items)] for goal, cards in zip(goals, decks)]
        texts = [goal.texts[n] for goal, chosen in zip(goals, drawn) for n in chosen]
        parts = [torch.cat([g.teacher[n] for n in chosen]) for g, chosen in zip(goals, drawn)]
        weights = [torch.full((len(part),), g.weight / len(part)) for g, part in zip(goals, parts)]
        yield Part(collate(texts, workshop.pad), torch.cat(parts), torch.cat(weights))
