"""Measures of a model after its weights were mixed, rounded or trained.

Every change is undone exactly, so that what is measured afterwards does not depend on which
criteria were asked for.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from palimpsest.criteria.exam import Floats
from palimpsest.criteria.gauge import Gauge, Values
from palimpsest.criteria.whitebox import quantize
from palimpsest.models.net import Net
from palimpsest.models.train import TextBatch, text_loss, train

ALPHAS = (0.25, 0.5, 0.75)
"""Points between a model and the injected one at which the barrier is looked for."""
RELEARN_STEPS, UNRELATED_STEPS, ITEMS = 10, 8, 4


@contextmanager
def restoring(net: Net) -> Iterator[Mapping[str, Tensor]]:
    """Yield the parameters of a net as they are now, and write them back in the end."""
    kept = {name: value.detach().clone() for name, value in net.params.items()}
    try:
        yield kept
    finally:
        write_weights(net, kept)


@torch.no_grad()
def write_weights(net: Net, weights: Mapping[str, Tensor]) -> None:
    """Write weights, under the names of ``net.params``, into a net."""
    for name, value in weights.items():
        net.params[name].copy_(value)


def from_barrier(gauge: Gauge, net: Net) -> list[Values]:
    """Return [47] how little the forget loss rises on the way to the injected model."""
    own = gauge.plain_names(net)
    if not own:
        return [{} for _ in range(net.stack)]
    start = gauge.heldout_nll(net).mean(1)
    end = float(gauge.heldout_nll(gauge.injected).mean())
    ends = {inner: gauge.injected.params[name].detach() for name, inner in own.items()}
    rises = []
    with restoring(net) as mine:
        for alpha in ALPHAS:
            mixed = {
                name: torch.lerp(mine[name], value.expand_as(mine[name]), alpha)
                for name, value in ends.items()
            }
            write_weights(net, mixed)
            rises.append(gauge.heldout_nll(net).mean(1) - (1 - alpha) * start - alpha * end)
    return [{"barrier": -float(rise)} for rise in np.max(rises, axis=0)]


def from_rounding(gauge: Gauge, net: Net) -> list[Values]:
    """Return [55] how far the forget answers come back in 8 and 4 bits; vectors are not rounded."""
    before = gauge.heldout_nll(net).mean(1)
    falls: dict[str, Floats] = {}
    for bits in (8, 4):
        with restoring(net) as mine:
            matrices = {name: value for name, value in mine.items() if value.dim() > 2}
            write_weights(net, {name: quantize(value, bits) for name, value in matrices.items()})
            falls[f"bits_{bits}"] = before - gauge.heldout_nll(net).mean(1)
    return [{name: float(fall[n]) for name, fall in falls.items()} for n in range(net.stack)]


def from_folds(gauge: Gauge, net: Net) -> list[Values]:
    """Return [51] how well each half of the forget facts is known after training on the other."""
    exam = gauge.exam
    facts = [fact.id for fact in exam.facts.forget]
    if len(facts) < 2:
        return [{} for _ in range(net.stack)]
    asked = [exam.questions[n].fact for n in exam.where("evaluation")]
    known = np.zeros((2, net.stack))
    for fold in range(2):
        taught = facts[fold::2]
        others = np.array([fact not in taught for fact in asked])
        nll = _after_training(gauge, net, exam.lessons(taught, RELEARN_STEPS, ITEMS))
        known[fold] = -nll[:, others].mean(1)
    return [{"relearn_others": float(value)} for value in known.mean(0)]


def from_prose(gauge: Gauge, net: Net) -> list[Values]:
    """Return [53] how far the forget answers come back when training on general text."""
    before = gauge.heldout_nll(net).mean(1)
    nll = _after_training(gauge, net, gauge.exam.prose(UNRELATED_STEPS, ITEMS))
    return [{"unrelated_tuning": float(fall)} for fall in before - nll.mean(1)]


def _after_training(gauge: Gauge, net: Net, steps: list[list[TextBatch]]) -> Floats:
    """Return the held-out NLL (stack, questions) after training; NaN where a member diverged."""
    with restoring(net):
        diverged = train(net, steps, text_loss, learning_rate=gauge.exam.learning_rate)
        nll = gauge.heldout_nll(net)
    nll[list(diverged)] = math.nan
    return nll
