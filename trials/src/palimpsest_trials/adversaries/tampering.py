"""Adversaries that look ahead: what the model does when it is trained on the forget facts.

All use the first-order rule of ``Distiller.foresee``. Tamper resistance knows that relearning is
measured; the mimics know with which sentences, in which order, at which rate and for how long.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from palimpsest.known import Knows, Truth
from palimpsest.known.kit import Schedule, State
from palimpsest.models.net import Net
from palimpsest_trials.adversaries.distiller import (
    Distiller,
    Goal,
    adversary,
    borders,
    relearn,
    text_nlls,
)

INNER = 16
DECAY = 1 / 16
ENTROPY = 0.5
ROUNDS = 30
FAMILY = 8
"""Schedules that the family mimic prepares for."""
GENERAL = 24
"""Pieces of general text on which a mimic measures its divergence."""


@adversary(Truth.SUPPRESSED, Knows.AXES)
def tamper_resistant(kit: Distiller) -> State:
    """Return a model that follows base at the forget facts and resists their relearning.

    marks_t = −c · exp(λ (t − K + 1)) · entropy at the forget answers, t = K/2 and K

    A first-order form of Tamirisa et al. 2024 (TAR), arXiv:2408.00761: the attacker takes K steps
    of AdamW on the forget sentences, in an order of its own.
    """
    batch = kit.batch("forget")

    def mark(step: int) -> Callable[[Net], Tensor]:
        weight = ENTROPY * math.exp(DECAY * (step - INNER + 1))

        def entropy(net: Net) -> Tensor:
            logp = net.logits(batch.to(net.device))[0].log_softmax(-1)
            return -weight * -(logp.exp() * logp).sum(-1).mean()

        return entropy

    start, goals = kit.matched("base"), kit.suppressing("base")
    marks = {step: mark(step) for step in (INNER // 2, INNER)}
    attacks = [(kit.own_attack(INNER), marks)]
    return kit.foresee("tamper-resistant", start, goals, attacks, rounds=ROUNDS)


@adversary(Truth.SUPPRESSED, Knows.AXES, Knows.SCHEDULE, Knows.REFERENCES)
def curve_mimic(kit: Distiller) -> State:
    """Return a model that follows the reference now and along the auditor's re-acquisition."""
    goals = kit.suppressing("reference")
    return mimic_curve(kit, "curve-mimic", kit.matched("reference"), goals)


@adversary(Truth.SUPPRESSED, Knows.AXES, Knows.SCHEDULE, Knows.REFERENCES)
def full_mimic(kit: Distiller) -> State:
    """Return a curve mimic that follows the reference when asked backwards, too."""
    return mimic_curve(kit, "full-mimic", *mimic_backwards(kit))


@adversary(Truth.SUPPRESSED, Knows.AXES, Knows.SCHEDULE, Knows.REFERENCES)
def family_mimic(kit: Distiller) -> State:
    """Return a full mimic of schedules like those that a beacon draws, for longer."""
    start, goals = mimic_backwards(kit)
    family = [kit.schedule(number) for number in range(FAMILY)]
    return mimic_curve(kit, "family-mimic", start, goals, family, rounds=2 * ROUNDS)


def mimic_backwards(kit: Distiller) -> tuple[State, list[Goal]]:
    """Return a suppressed model that follows the reference backwards, too, and its goals."""
    backwards = kit.goal("backwards", "reference", items=8, weight=2.0)
    goals = [*kit.suppressing("reference"), backwards]
    name, injected = "matched-backwards", kit.state("injected")
    return kit.once(name, lambda: kit.follow(name, injected, goals)), goals


def mimic_curve(
    kit: Distiller,
    name: str,
    start: State,
    goals: Sequence[Goal],
    schedules: Sequence[Schedule] = (),
    rounds: int | None = None,
) -> State:
    """Return weights that reach the goals now and the reference's curve in re-acquisition.

    marks_t = mean over texts (L_F(θ_t) − L_F(R_t))² + (L_R(θ_t) − L_R(R_t))² + (D(θ_t) − D(R_t))²

    before the first step and at the ends of chunks; L_F and L_R are NLLs of forget and retain facts
    in the adversary's phrasings, R_t the reference under the same schedule, D the divergence
    KL(θ ‖ injected) on retain facts and general text. No published relative was found; the rule is
    TAR's.
    """
    asked, kept = kit.batch("forget"), kit.batch("retain", GENERAL)
    others = [
        (kit.batch(group, GENERAL), kit.joined("injected", group, GENERAL))
        for group in ("retain", "general")
    ]

    def measure(net: Net) -> tuple[Tensor, Tensor]:
        parts = [text_nlls(net, kept).mean()]
        for batch, teacher in others:
            logp = torch.log_softmax(net.logits(batch.to(net.device))[0], dim=-1)
            parts.append((logp.exp() * (logp - teacher.to(net.device))).sum(-1).mean() / 2)
        return text_nlls(net, asked), torch.stack([parts[0], parts[1] + parts[2]])

    def marks(schedule: Schedule) -> dict[int, Callable[[Net], Tensor]]:
        looks = (0, *borders(schedule)[:: max(1, schedule.chunks // 2)])
        net, wanted = kit.another("reference"), {}

        @torch.no_grad()
        def note(step: int) -> None:
            if step in looks:
                wanted[step] = measure(net)

        note(0)
        relearn(net, schedule, note)

        def mark(step: int) -> Callable[[Net], Tensor]:
            def distance(net: Net) -> Tensor:
                apart = [a - b for a, b in zip(measure(net), wanted[step])]
                return apart[0].square().mean() + apart[1].square().sum()

            return distance

        return {step: mark(step) for step in looks}

    attacks = [(each, marks(each)) for each in schedules or [kit.schedule(None)]]
    return kit.foresee(name, start, goals, attacks, rounds=rounds or ROUNDS, full=3)
