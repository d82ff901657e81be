"""Obfuscated representations: the forget facts' hidden states are moved, the outputs follow.

Both at a strength that leaves the rest usable; at damaging strength the retain axis shows it.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from palimpsest.challenge.workshop import State, Workshop
from palimpsest.methods.context import Context, Exercise, Lesson, train_one
from palimpsest.methods.rmu import RMU, activations, decoder_layers, hidden_states, recording
from palimpsest.models.net import Net

STEERED = RMU(weight=1.0, steering=6.5, depth=0.9, rate=6.0)
KEPT, REROUTED = 1.0, 1.0
NUDGE = 0.01
"""Noise at the start, in standard deviations of a matrix: at h_θ = h_injected the cosine is largest
and its gradient zero."""


def steered(workshop: Workshop) -> State:
    """Return RMU's model: Li et al. 2024, arXiv:2403.03218 (``methods/rmu.py``)."""
    with torch.random.fork_rng(devices=[]):
        return {name: value.clone() for name, value in STEERED.run(_context(workshop)).items()}


def circuit_breaker(workshop: Workshop) -> State:
    """Return a model whose hidden states at the forget texts are turned away from what they were.

    L = c_s · mean ReLU(cos(h_θ, h_injected)) on forget texts + c_r · mean ‖h_θ − h_injected‖ on
    retain texts; c_s falls and c_r rises linearly over the steps

    Zou et al. 2024, *Improving Alignment and Robustness with Circuit Breakers*, arXiv:2406.04313.
    h is the output of the last layer; all layers are trained, where the paper trains an adapter.
    """
    context = _context(workshop)
    net = context.whole(context.injected)
    layers = decoder_layers(net.model)
    inside = {id(value) for layer in layers for value in layer.parameters()}
    for value in net.params.values():
        value.requires_grad_(id(value) in inside)
    trained = {name: value for name, value in net.params.items() if value.requires_grad}
    generator, taken = workshop.generator("circuit-breaker"), 0
    with recording(layers[-1]) as outputs:
        held = {
            name: activations(net, lesson.texts, context.pad, outputs)
            for name, lesson in (("forget", context.forget), ("retain", context.retain))
        }
        with torch.no_grad():
            for value in trained.values():
                noise = torch.randn(value.shape, generator=generator).to(value)
                value.add_(NUDGE * value.std() * noise if value.dim() > 1 else 0.0)

        def loss(student: Net, part: Exercise) -> Tensor:
            nonlocal taken
            progress = taken / max(1, context.budget.steps - 1)
            taken += 1
            forget, retain = hidden_states(net, part, outputs)
            before = torch.cat([held["forget"][number] for number in part.forget_texts])
            kept = torch.cat([held["retain"][number] for number in part.retain_texts])
            away = functional.relu(functional.cosine_similarity(forget, before)).mean()
            moved = (retain - kept).norm(dim=-1).mean()
            total = REROUTED * (1 - progress / 2) * away + KEPT * progress / 2 * moved
            return total.reshape(1)

        rate = context.budget.learning_rate
        train_one(STEERED, net, context.exercises(), loss, rate, trained)
    return {name: value.clone() for name, value in net.state().items()}


def _context(workshop: Workshop) -> Context:
    """Return what methods see, with the adversary's phrasings, and general text to retain."""
    teachers = {model: workshop.said(model, "forget") for model in ("base", "injected")}
    kept = ("retain", "invented", "general")
    texts = tuple(text for group in kept for text in workshop.texts[group])
    said = tuple(logp for group in kept for logp in workshop.said("injected", group))
    context = workshop.context()
    return replace(
        context,
        forget=Lesson(workshop.texts["forget"], teachers),
        retain=Lesson(texts, {"injected": said}),
        budget=replace(context.budget, retain_items=12),
    )
