"""Obfuscated representations: the forget facts' hidden states are moved, the outputs follow.

Both at a strength that leaves the rest usable; at damaging strength the retain axis shows it.
"""

from dataclasses import replace
from typing import Any

from palimpsest.adversaries.registry import Net, State, Tensor, Truth, Workshop, known_label

NUDGE = 0.01
"""Noise at the start, in standard deviations of a matrix: at h_θ = h_injected the cosine is largest
and its gradient zero."""


@known_label(Truth.SUPPRESSED)
def steered(workshop: Workshop) -> State:
    """Return RMU's model: Li et al. 2024, arXiv:2403.03218 (``methods/rmu.py``)."""
    import torch

    from palimpsest.methods.rmu import RMU

    method = RMU(weight=1.0, steering=6.5, depth=0.9, rate=6.0)
    with torch.random.fork_rng(devices=[]):
        state = method.run(_context(workshop))
    return {name: value.clone() for name, value in state.items()}


@known_label(Truth.SUPPRESSED)
def circuit_breaker(workshop: Workshop) -> State:
    """Return a model whose hidden states at the forget texts are turned away from what they were.

    L = (1 − t/2) · mean ReLU(cos(h_θ, h_injected)) on forget texts
        + t/2 · mean ‖h_θ − h_injected‖ on retain texts, t from 0 to 1 over the steps

    Zou et al. 2024, *Improving Alignment and Robustness with Circuit Breakers*, arXiv:2406.04313.
    h is the output of the last layer; all layers are trained, where the paper trains an adapter.
    """
    import torch
    from torch.nn import functional

    from palimpsest.methods.context import train_one
    from palimpsest.methods.rmu import decoder_layers, listening, read_exercise, read_texts

    context = _context(workshop)
    net = context.whole(context.injected)
    layers = decoder_layers(net.model)
    inside = {id(value) for layer in layers for value in layer.parameters()}
    for value in net.params.values():
        value.requires_grad_(id(value) in inside)
    trained = {name: value for name, value in net.params.items() if value.requires_grad}
    generator, taken = workshop.generator("circuit-breaker"), 0
    with listening(net, layers[-1]) as read:
        forget_held = read_texts(read, context.forget.texts, context.pad)
        retain_held = read_texts(read, context.retain.texts, context.pad)
        with torch.no_grad():
            for value in trained.values():
                noise = torch.randn(value.shape, generator=generator).to(value)
                value.add_(NUDGE * value.std() * noise if value.dim() > 1 else 0.0)

        def loss(student: Net, part: Any) -> Tensor:
            nonlocal taken
            progress = taken / max(1, context.budget.steps - 1)
            taken += 1
            forget, retain = read_exercise(read, part)
            before = torch.cat([forget_held[number] for number in part.forget_texts])
            kept = torch.cat([retain_held[number] for number in part.retain_texts])
            away = functional.relu(functional.cosine_similarity(forget, before)).mean()
            moved = (retain - kept).norm(dim=-1).mean()
            return ((1 - progress / 2) * away + progress / 2 * moved).reshape(1)

        rate = context.budget.learning_rate
        train_one("circuit-breaker", net, context.exercises(), loss, rate, trained)
    return {name: value.clone() for name, value in net.state().items()}


def _context(workshop: Workshop) -> Any:
    """Return what methods see, with the adversary's phrasings, and general text to retain."""
    from palimpsest.adversaries.workshop import OTHERS
    from palimpsest.methods.lessons import Lesson

    teachers = {model: workshop.log_probs(model, "forget") for model in ("base", "injected")}
    texts = tuple(text for group in OTHERS for text in workshop.texts[group])
    answers = tuple(logp for group in OTHERS for logp in workshop.log_probs("injected", group))
    context = workshop.context()
    return replace(
        context,
        forget=Lesson(workshop.texts["forget"], teachers),
        retain=Lesson(texts, {"injected": answers}),
        budget=replace(context.budget, retain_items=12),
    )
