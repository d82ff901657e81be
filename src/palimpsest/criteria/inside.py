"""Measures of what a model holds within: states, gradients, weights."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from palimpsest.criteria import whitebox as white
from palimpsest.criteria.exam import Floats
from palimpsest.criteria.gauge import Gauge, Values
from palimpsest.criteria.likelihood import auc
from palimpsest.models.fast import Forward, Scored, StackedNet, watched
from palimpsest.models.net import Batch, Net


def read_lens(forward: Forward, params: Mapping[str, Tensor], values: Tensor) -> Tensor:
    """Return [37, 38] log-probabilities (stack, layers, scored, vocabulary) of states (…, width)
    read through the last norm and head of ``params``."""
    flat = values.flatten(1, 2)
    logits = forward.read_out(params, flat)
    return torch.log_softmax(logits, -1).unflatten(1, values.shape[1:3])


@torch.no_grad()
def patch_layer(net: Net, batch: Batch, layer: int, states: Tensor) -> Tensor:
    """Return [39] the logits when the states (stack, scored, width) of one layer are overwritten at
    the scored positions."""

    def overwrite(at: int, value: Tensor, scored: Scored) -> Tensor:
        if at != layer:
            return value
        return states if scored is None else value.index_copy(1, scored, states)

    with watched(overwrite):
        return net.logits(batch)


@torch.no_grad()
def ablate_direction(net: Net, batch: Batch, directions: Tensor) -> Tensor:
    """Return [57] the logits when a direction is projected out behind every layer.

    directions: (stack, layers, width), of length one or zero.
    """

    def project(at: int, value: Tensor, scored: Scored) -> Tensor:
        direction = directions[:, at].unsqueeze(-1)
        return value - (value @ direction) @ direction.mT

    with watched(project):
        return net.logits(batch)


@torch.no_grad()
def from_states(gauge: Gauge, net: Net) -> list[Values]:
    """Return what the states behind each layer say of each member."""
    injected, batch = gauge.injected, gauge.heldout
    found = gauge.inner_states(net, gauge.exam.heldout)
    own = gauge.weights(net)
    forward = Forward(net.config) if isinstance(net, StackedNet) else gauge.forward
    through_own = read_lens(forward, own, found) if own else None
    near, far = (gauge.frozen_states[name] for name in ("injected", "reference"))
    # Every layer's state read through the injected model's norm and head.
    shared = {name: value.expand(1, *value.shape[1:]) for name, value in injected.params.items()}

    def read(values: Tensor) -> Floats:
        flat = values.flatten(0, 1).unsqueeze(0)
        means = gauge.answer_means(read_lens(gauge.forward, shared, flat)[0])
        return means.reshape(values.shape[:2])

    at_injected, at_reference = read(torch.stack([near, far]))
    mine = read(found)
    whole = gauge.answer_means(torch.log_softmax(injected.logits(batch), -1))[0]

    def patch(states: Tensor) -> Floats:
        """Return the fall of the injected model's answers, (layers,), when patched with these."""
        falls = []
        for layer, values in enumerate(states):
            logits = patch_layer(injected, batch, layer, values.unsqueeze(0))
            falls.append(whole - gauge.answer_means(torch.log_softmax(logits, -1))[0])
        return np.array(falls)

    fall_reference = patch(far)
    gap = [1 - white.linear_cka(a, b) for a, b in zip(near, far)]
    values = []
    for member, states in enumerate(found):
        closed = [white.linear_cka(a, b) - (1 - g) for a, b, g in zip(states, far, gap)]
        shifts = [white.component_shift(a, b) for a, b in zip(states, far)]
        lens = white.closed_share(at_injected - at_reference, at_injected - mine[member])
        some: Values = {
            "lens_depth": 1 - lens,
            "uds": 1 - white.closed_share(fall_reference, patch(states)),
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
    return [{"linear_probe": value - gauge.reference_probe} for value in gauge.probe(net)]


def from_ablation(gauge: Gauge, net: Net) -> list[Values]:
    """Return how far the forget answers come back without the direction away from injected."""
    found = gauge.inner_states(net, gauge.exam.heldout)
    away = gauge.frozen_states["injected"].mean(1) - found.mean(2)
    length = torch.linalg.vector_norm(away, dim=-1, keepdim=True)
    unit = torch.where(length > 1e-6, away / length.clamp(min=1e-6), 0.0)
    after = gauge.heldout_nll(net, ablate_direction(net, gauge.heldout, unit))
    falls = (gauge.heldout_nll(net) - after).mean(1)
    return [{"direction_ablation": float(fall)} for fall in falls]


def from_gradients(gauge: Gauge, net: Net) -> list[Values]:
    """Return what gradients of single answers say of each member."""
    norms, squares = gauge.gradients(net)
    fisher = gauge.frozen_fisher
    values: list[Values] = [
        {"mia_gradnorm": auc(-mine, -others)}
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
    unit = white.weight_distance(reference, injected)
    values = []
    for member in range(net.stack):
        mine = {name: value[member] for name, value in weights.items()}
        moved = [mine[name] - injected[name] for name in injected if injected[name].dim() == 2]
        values.append(
            {
                "distance_injected": -white.weight_distance(mine, injected) / unit,
                "distance_reference": white.weight_distance(mine, reference) / unit,
                "update_rank": -float(np.mean([white.stable_rank(change) for change in moved])),
            }
        )
    return values
