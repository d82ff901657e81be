"""Measures of a model after its weights were mixed, rounded or trained; all are put back."""

import math
from collections.abc import Mapping

import numpy as np
import torch

from palimpsest.models.net import Net
from palimpsest.models.train import TextBatch, text_loss, train
from palimpsest.scoring import interventions as change
from palimpsest.scoring.gauge import Gauge, Values

ALPHAS = (0.25, 0.5, 0.75)
"""Points between a model and the injected one at which the barrier is looked for."""
RELEARN_STEPS, UNRELATED_STEPS, ITEMS = 10, 8, 4


def from_barrier(gauge: Gauge, net: Net) -> list[Values]:
    """Return how little the forget loss rises on the way to the injected model."""
    own = change.plain_names(net, tuple(gauge.injected.params))
    if not own:
        return [{} for _ in range(net.stack)]
    start = gauge.heldout_nll(net).mean(1)
    end = float(gauge.heldout_nll(gauge.injected).mean())
    rises = []
    with change.restored(net):
        mine = {inner: net.params[inner].detach().clone() for inner in own.values()}
        for alpha in ALPHAS:
            mixed = {
                inner: torch.lerp(
                    mine[inner], gauge.injected.params[n].detach().expand_as(mine[inner]), alpha
                )
                for n, inner in own.items()
            }
            change.set_weights(net, mixed)
            rises.append(gauge.heldout_nll(net).mean(1) - (1 - alpha) * start - alpha * end)
    return [{"barrier": -float(rise)} for rise in np.max(rises, axis=0)]


def from_rounding(gauge: Gauge, net: Net) -> list[Values]:
    """Return how far the forget answers come back in 8 and 4 bits."""
    before = gauge.heldout_nll(net).mean(1)
    values: list[Values] = [{} for _ in range(net.stack)]
    for bits in (8, 4):
        with change.restored(net):
            change.quantise(net, bits)
            falls = before - gauge.heldout_nll(net).mean(1)
        for some, fall in zip(values, falls):
            some[f"bits_{bits}"] = float(fall)
    return values


def from_folds(gauge: Gauge, net: Net) -> list[Values]:
    """Return how well each half of the forget facts is known after training on the other."""
    exam = gauge.exam
    facts = [fact.id for fact in exam.facts.forget]
    if len(facts) < 2:
        return [{} for _ in range(net.stack)]
    asked = [q.fact for q in exam.facts.questions if (q.set, q.pool) == ("forget", "evaluation")]
    known = np.zeros((2, net.stack))
    for fold in range(2):
        taught = facts[fold::2]
        others = np.array([fact not in taught for fact in asked])
        with change.restored(net):
            diverged = _train(gauge, net, exam.lessons(taught, RELEARN_STEPS, ITEMS))
            known[fold] = -gauge.heldout_nll(net)[:, others].mean(1)
        known[fold, list(diverged)] = math.nan
    return [{"relearn_others": float(value)} for value in known.mean(0)]


def from_prose(gauge: Gauge, net: Net) -> list[Values]:
    """Return how far the forget answers come back when training on general text."""
    before = gauge.heldout_nll(net).mean(1)
    with change.restored(net):
        diverged = _train(gauge, net, gauge.exam.prose(UNRELATED_STEPS, ITEMS))
        falls = before - gauge.heldout_nll(net).mean(1)
    falls[list(diverged)] = math.nan
    return [{"unrelated_tuning": float(fall)} for fall in falls]


def _train(gauge: Gauge, net: Net, steps: list[list[TextBatch]]) -> Mapping[int, int]:
    return train(net, steps, text_loss, learning_rate=gauge.exam.learning_rate)
