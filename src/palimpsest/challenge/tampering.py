"""Adversaries that look ahead: what the model does when it is trained on the forget facts.

Both use the first-order rule of ``foresee``. Tamper resistance knows that relearning is measured;
the curve mimic knows with which sentences, in which order, at which rate and for how long.
"""

import math
import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from palimpsest.challenge.crafting import Goal, follow, foresee, suppressing, text_nlls
from palimpsest.challenge.hidden import matched
from palimpsest.challenge.workshop import State, Workshop
from palimpsest.facts.nonce import key_number
from palimpsest.facts.stream import deck
from palimpsest.models.encode import encode_texts
from palimpsest.models.net import Batch, Net, collate
from palimpsest.models.train import TextBatch, text_batch, text_loss, train

INNER = 16
DECAY = 1 / 16
ENTROPY = 0.5
ROUNDS = 30
GENERAL = 24
"""Pieces of general text on which the mimic measures its divergence."""


def tamper_resistant(workshop: Workshop) -> State:
    """Return a model that follows base at the forget facts and resists their relearning.

    marks_t = −c · exp(λ (t − K + 1)) · entropy at the forget answers, t = K/2 and K

    A first-order form of Tamirisa et al. 2024 (TAR), arXiv:2408.00761: the attacker takes K steps
    of AdamW on the forget sentences, in an order of its own.
    """
    batch = collate(workshop.texts["forget"], workshop.pad)

    def mark(step: int) -> Callable[[Net], Tensor]:
        weight = ENTROPY * math.exp(DECAY * (step - INNER + 1))
        return lambda net: -weight * _entropy(net, batch)

    return foresee(
        workshop,
        "tamper-resistant",
        matched(workshop, "base"),
        suppressing(workshop, "base"),
        _own_attack(workshop),
        {step: mark(step) for step in range(8, INNER + 1, 8)},
        attack_rate=workshop.rate,
        rounds=ROUNDS,
    )


def full_mimic(workshop: Workshop) -> State:
    """Return a curve mimic that follows the reference when asked backwards, too."""
    said = workshop.said("reference", "backwards")
    further = [Goal(workshop.texts["backwards"], said, items=8, weight=2.0)]
    goals = [*suppressing(workshop, "reference"), *further]
    start = follow(workshop, "matched-backwards", workshop.state("injected"), goals)
    return curve_mimic(workshop, "full-mimic", start, further)


def curve_mimic(
    workshop: Workshop,
    name: str = "curve-mimic",
    start: State | None = None,
    further: Sequence[Goal] = (),
) -> State:
    """Return a model that follows the reference now and along the auditor's re-acquisition.

    marks_t = mean over texts (L_F(θ_t) − L_F(R_t))² + (D(θ_t) − D(R_t))²

    before the first step and at the ends of chunks; L_F is the NLL of the forget facts in the
    adversary's phrasings, R_t the reference on the same way, D the divergence KL(θ ‖ injected) on
    retain facts and general text. No published relative was found; the rule is TAR's.
    """
    schedule = workshop.schedule()
    asked = collate(workshop.texts["forget"], workshop.pad)
    groups = {name: slice(None, GENERAL) for name in ("retain", "general")}
    others = [collate(workshop.texts[name][some], workshop.pad) for name, some in groups.items()]
    said = [torch.cat(workshop.said("injected", name)[some]) for name, some in groups.items()]

    def residual(net: Net) -> Tensor:
        parts = []
        for batch, teacher in zip(others, said):
            logp = torch.log_softmax(net.logits(batch.to(net.device))[0], dim=-1)
            parts.append((logp.exp() * (logp - teacher.to(net.device))).sum(-1).mean())
        return torch.stack(parts).mean()

    wanted: dict[int, tuple[Tensor, Tensor]] = {}
    net = workshop.another(workshop.state("reference"))

    looks = (0, *schedule.borders[:: max(1, schedule.chunks // 2)])

    @torch.no_grad()
    def note(step: int) -> None:
        if step in looks:
            wanted[step] = (text_nlls(net, asked), residual(net))

    note(0)
    train(net, schedule.steps, text_loss, learning_rate=schedule.learning_rate, after_step=note)

    def mark(step: int) -> Callable[[Net], Tensor]:
        nlls, left = wanted[step]
        return lambda net: (
            (text_nlls(net, asked) - nlls).square().mean() + (residual(net) - left).square()
        )

    return foresee(
        workshop,
        name,
        start or matched(workshop, "reference"),
        [*suppressing(workshop, "reference"), *further],
        schedule.steps,
        {step: mark(step) for step in looks},
        attack_rate=schedule.learning_rate,
        rounds=ROUNDS,
        full=3,
    )


def _own_attack(workshop: Workshop) -> list[list[TextBatch]]:
    """Return the attack that tamper resistance trains against: forget sentences in its order."""
    sentences = [q.sentence for q in workshop.seen["forget"] if q.pool == "trained"]
    texts = encode_texts(workshop.tokenizer, sentences)
    order = random.Random(key_number(f"{workshop.seed_key}/panel/attack"))
    cards = deck(range(len(texts)), order)
    return [
        [text_batch([texts[next(cards)] for _ in range(4)], 4, workshop.pad)] for _ in range(INNER)
    ]


def _entropy(net: Net, batch: Batch) -> Tensor:
    logp = torch.log_softmax(net.logits(batch.to(net.device))[0], dim=-1)
    return -(logp.exp() * logp).sum(-1).mean()
