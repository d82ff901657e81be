"""Measures of what a model holds within: states, gradients, weights."""

import numpy as np
import torch
from torch import Tensor

from palimpsest.models.net import Net
from palimpsest.scoring import interventions as change
from palimpsest.scoring import membership as member_of
from palimpsest.scoring import whitebox as white
from palimpsest.scoring.gauge import Floats, Gauge, Values, gradients, probed


@torch.no_grad()
def from_states(gauge: Gauge, net: Net) -> list[Values]:
    """Return what the states behind each layer say of each member."""
    exam, injected, forward = gauge.exam, gauge.injected, gauge.forward
    found = white.states(net, exam.looked_into, exam.pad)
    own = gauge.weights(net)
    through_own = white.lens(gauge.forward_of(net), own, found) if own else None
    target = gauge.frozen_states
    batch, _ = exam.heldout
    # Every layer's state read through the injected model's norm and head.
    shared = {name: value.expand(1, *value.shape[1:]) for name, value in injected.params.items()}
    both = torch.stack([target["injected"], target["reference"]])

    def read(values: Tensor) -> Floats:
        flat = values.flatten(0, 1).unsqueeze(0)
        return gauge.answer_means(white.lens(forward, shared, flat)[0]).reshape(values.shape[:2])

    at_injected, at_reference = read(both)
    mine = read(found)
    whole = gauge.answer_means(torch.log_softmax(injected.logits(batch), -1))[0]

    def dropped(states: Tensor) -> Floats:
        """Return the fall of the injected model's answers, (layers,), when patched with these."""
        falls = []
        for layer in range(states.shape[0]):
            logits = change.patched(injected, batch, layer, states[layer].unsqueeze(0))
            falls.append(whole - gauge.answer_means(torch.log_softmax(logits, -1))[0])
        return np.array(falls)

    drop_reference = dropped(target["reference"])
    values = []
    for member in range(net.stack):
        states, layers = found[member], range(found.shape[1])
        gap = [1 - white.linear_cka(target["injected"][n], target["reference"][n]) for n in layers]
        near = [white.linear_cka(states[n], target["reference"][n]) for n in layers]
        shifts = [white.component_shift(states[n], target["reference"][n]) for n in layers]
        closed = [c - (1 - g) for c, g in zip(near, gap)]
        some: Values = {
            "lens_depth": 1
            - white.closed_share(at_injected - at_reference, at_injected - mine[member]),
            "uds": 1 - white.closed_share(drop_reference, dropped(states)),
            "cka": 1 - white.closed_share(gap, closed, 0.0),
            "pca_similarity": 1 - float(np.mean([similar for similar, _ in shifts])),
            "pca_shift": float(np.mean([moved for _, moved in shifts])),
        }
        if through_own is not None:
            logp = through_own[member]
            right = (logp.argmax(-1) == batch.targets).double().mean(-1)
            some["lens_accuracy"] = float(right.max())
            some["lens_best"] = float(gauge.answer_means(logp).max())
        values.append(some)
    return values


def from_probe(gauge: Gauge, net: Net) -> list[Values]:
    """Return how much better than in the reference a probe finds what is true."""
    return [{"linear_probe": value - gauge.reference_probe} for value in probed(gauge, net)]


def from_ablation(gauge: Gauge, net: Net) -> list[Values]:
    """Return how far the forget answers come back without the direction away from injected."""
    found = white.states(net, gauge.exam.looked_into, gauge.exam.pad)
    away = gauge.frozen_states["injected"].mean(1) - found.mean(2)
    length = torch.linalg.vector_norm(away, dim=-1, keepdim=True)
    unit = torch.where(length > 1e-6, away / length.clamp(min=1e-6), 0.0)
    batch, _ = gauge.exam.heldout
    after = gauge.heldout_nll(net, change.without_direction(net, batch, unit))
    falls = (gauge.heldout_nll(net) - after).mean(1)
    return [{"direction_ablation": float(fall)} for fall in falls]


def from_gradients(gauge: Gauge, net: Net) -> list[Values]:
    """Return what gradients of single answers say of each member."""
    norms, squares = gradients(gauge, net)
    fisher = gauge.frozen_fisher
    values: list[Values] = [
        {"mia_gradnorm": member_of.auc(-mine, -others)}
        for mine, others in zip(norms["forget"], norms["probe"])
    ]
    for some, own in zip(values, squares):
        closed = white.masked_fisher(own, fisher["reference"], fisher["injected"])
        some["masked_fisher"] = 1 - closed
    return values


def from_weights(gauge: Gauge, net: Net) -> list[Values]:
    """Return where the weights lie between those of the injected model and the reference."""
    weights = gauge.weights(net)
    if not weights:
        return [{} for _ in range(net.stack)]
    injected, reference = (
        {name: gauge.states[model][name] for name in weights} for model in ("injected", "reference")
    )
    unit = white.distance(reference, injected)
    values = []
    for member in range(net.stack):
        mine = {name: value[member] for name, value in weights.items()}
        moved = [mine[name] - injected[name] for name in injected if injected[name].dim() == 2]
        values.append(
            {
                "distance_injected": -white.distance(mine, injected) / unit,
                "distance_reference": white.distance(mine, reference) / unit,
                "update_rank": -float(np.mean([white.stable_rank(change) for change in moved])),
            }
        )
    return values
