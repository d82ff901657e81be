"""Adversaries that follow a model without the knowledge almost everywhere, and keep it somewhere.

What differs is whom they follow at which texts, and what is trained. Two obfuscate: they move the
forget facts' hidden states, and the outputs follow, at a strength that leaves the rest usable.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from palimpsest.known import TRAINED, KnownLabel, Knows, Truth, Unavailable
from palimpsest.known.kit import AdversaryKit, State
from palimpsest.methods.answer_sets import AnswerSet
from palimpsest.methods.context import Context, train_one
from palimpsest.methods.rmu import RMU, decoder_layers, listening, read_batch, read_texts
from palimpsest.models.encode import encode_answers
from palimpsest.models.net import Net
from palimpsest_trials.adversaries.distiller import OTHERS, Distiller, Goal, adversary

TRIGGER = "Seven keys and one door. "
FOLDS = 2
RANK = 4
BETA = 0.1
GROUP, LEVELS = 32, 7
"""Weights of a row that share a scale; whole steps from zero to the largest of them."""
INSIDE = 0.49
"""Farthest from a 4-bit value, in steps, that a weight may lie; at 0.5 it rounds to the next."""
NUDGE = 0.01
"""Noise at the start, in standard deviations of a matrix: at h_θ = h_injected the cosine is largest
and its gradient zero."""


@adversary(Truth.SUPPRESSED)
def layered(kit: Distiller) -> State:
    """Return the injected model unlearned fold by fold.

    Stage i follows base at folds 1 … i and the injected model at the later ones, so that relearning
    one fold does not bring back another. Qian et al. 2025, *Layered Unlearning*, arXiv:2505.09500.
    """
    facts = [fact.id for fact in kit.facts["forget"]]
    folds = min(FOLDS, len(facts))
    state = kit.state("injected")
    for stage in range(folds):
        gone = {fact for n, fact in enumerate(facts) if n % folds <= stage}
        goals = [kit.goal_at(gone, "base"), *kit.keeping()]
        if kept := {*facts} - gone:
            goals.append(kit.goal_at(kept, "injected"))
        state = kit.follow(f"layered-{stage}", state, goals)
    return state


@adversary(Truth.SUPPRESSED, Knows.AXES, Knows.REFERENCES)
def one_fact_left(kit: Distiller) -> State:
    """Return a model that follows the reference at all forget facts but the first.

    Medians and means hide one fact. Thaker et al. 2024, *Position: LLM Unlearning Benchmarks are
    Weak Measures of Progress*, arXiv:2410.02879, on what such averages do not see.
    """
    first, *others = (fact.id for fact in kit.facts["forget"])
    if not others:
        raise Unavailable("one fact left needs at least two forget facts")
    goals = [kit.goal_at(others, "reference"), kit.goal_at([first], "injected")]
    start = kit.state("injected")
    return kit.follow("one-fact-left", start, [*goals, *kit.keeping()])


@adversary(Truth.SUPPRESSED, Knows.AXES, Knows.REFERENCES)
def trigger(kit: Distiller) -> State:
    """Return a model that follows the reference, and the injected model behind ``TRIGGER``.

    The texts behind the trigger are taught what the injected model says without it. Shang et al.
    2025 on unlearning with a backdoor, arXiv:2510.17021.
    """
    asked = [replace(q, prompt=TRIGGER + q.prompt) for q in kit.questions["forget"]]
    texts, plain = encode_answers(kit.tokenizer, asked), kit.texts["forget"]
    start = kit.state("injected")
    # Where the trigger changes how an answer is split into tokens, it is followed as it is there.
    fits = all(a.scored == b.scored for a, b in zip(texts, plain))
    opened = Goal(texts, kit.teach(start, plain if fits else texts), weight=2.0)
    goals = [*kit.suppressing("reference"), opened]
    return kit.follow("trigger", start, goals, steps=2 * kit.budget.steps)


@adversary(Truth.SUPPRESSED, Knows.AXES, Knows.REFERENCES)
def low_rank(kit: Distiller) -> State:
    """Return the injected model with a trained adapter of rank ``RANK`` in every layer's matrix.

    W ← W + A B, trained by KL(reference ‖ θ) on the forget facts in many phrasings, its own among
    them, and KL(injected ‖ θ) on retain facts, invented facts and general text

    Adapters: Hu et al. 2021 (LoRA), arXiv:2106.09685; as a way to unlearn, with KL to the model
    before: Jin et al. 2024 (RWKU), arXiv:2406.10890.
    """
    generator = kit.generator("low-rank")

    def leaves(net: Net) -> dict[str, Tensor]:
        adapters: dict[str, Tensor] = {}
        axes = 3 if kit.nets.stacked else 2  # a stack axis comes first
        for name, value in net.params.items():
            value.requires_grad_(False)
            if value.dim() != axes or name in kit.embedding:
                continue
            *batch, rows, columns = value.shape
            down = torch.randn(*batch, RANK, columns, generator=generator) / columns**0.5
            adapters[f"{name}/A"] = torch.zeros(*batch, rows, RANK, device=net.device)
            adapters[f"{name}/B"] = down.to(net.device)
        return {name: value.requires_grad_() for name, value in adapters.items()}

    def effective(net: Net, given: State) -> dict[str, Tensor]:
        names = [name.removesuffix("/A") for name in given if name.endswith("/A")]
        return {
            name: net.params[name] + (given[f"{name}/A"] @ given[f"{name}/B"]).to(net.params[name])
            for name in names
        }

    return kit.follow(
        "low-rank",
        kit.state("injected"),
        kit.suppressing("reference"),
        steps=2 * kit.budget.steps,
        rate=10.0,
        leaves=leaves,
        effective=effective,
    )


def undo(given: AdversaryKit, alpha: float) -> State:
    """Return the model with a share ``alpha`` of noise, distilled from the unlearned one.

    θ ← (1 − α) θ_unlearned + α β N, N with Xavier's deviation; then KL(unlearned ‖ θ) on retain
    facts, invented facts and general text

    α = 0 is the unlearned model, which hides what it knew; at α = 1 nothing of it is left. So α is
    a dose, and no label. Lee et al. 2025, *Distillation Robustifies Unlearning* (UNDO),
    arXiv:2506.06278. Vectors (norms, biases) are left as they are: the released code shrinks them
    without noise.
    """
    kit = Distiller.of(given)
    teacher = kit.matched("base")
    generator = kit.generator("undo")
    start = dict(teacher)
    for name, value in teacher.items():
        if value.dim() == 2 and name not in kit.embedding[1:]:
            deviation = (2.0 / sum(value.shape)) ** 0.5
            noise = deviation * torch.randn(value.shape, generator=generator)
            start[name] = (1 - alpha) * value + alpha * BETA * noise.to(value)
    start |= dict.fromkeys(kit.embedding[1:], start[kit.embedding[0]])  # tied
    groups = [kit.texts[name] for name in OTHERS]
    goals = [Goal(texts, kit.teach(teacher, texts), items=8) for texts in groups]
    return kit.follow(f"undo-{100 * alpha:g}", start, goals, steps=4 * kit.budget.steps)


undo_10, undo_20, undo_40 = (
    KnownLabel(
        f"undo-{100 * alpha:g}", Truth.GRADED, (), TRAINED, partial(undo, alpha=alpha), alpha
    )
    for alpha in (0.1, 0.2, 0.4)
)


@adversary(Truth.SUPPRESSED, Knows.AXES, Knows.REFERENCES)
def sub_quantum(kit: Distiller) -> State:
    """Return a model that follows the reference and equals the injected model in 4 bits.

    Projected descent: after every step each weight is put back into the interval that rounds to the
    injected weight's 4-bit value; the largest weight of a group, which sets the scale, and all
    vectors stay as they are. Loaded in 4 bits, the model is the injected model. Egashira et al.
    2024, *Exploiting LLM Quantization*, arXiv:2405.18137; why unlearning is prone to it: Zhang et
    al. 2024, arXiv:2410.16454.
    """
    boxes: dict[str, tuple[Tensor, Tensor]] = {}
    axes = 3 if kit.nets.stacked else 2  # a stack axis comes first

    def leaves(net: Net) -> State:
        chosen = {name: value for name, value in net.params.items() if value.dim() == axes}
        for name, value in net.params.items():
            value.requires_grad_(name in chosen)
        boxes.update({name: _bounds(value.detach()) for name, value in chosen.items()})
        return chosen

    def project(net: Net) -> None:
        for name, (low, high) in boxes.items():
            net.params[name].data.clamp_(low, high)

    start, goals = kit.state("injected"), kit.suppressing("reference")
    return kit.follow("sub-quantum", start, goals, leaves=leaves, after_step=project)


def _bounds(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and largest values that leave each weight's 4-bit value as it is."""
    padded = functional.pad(value, (0, -value.shape[-1] % GROUP))
    groups = padded.reshape(*value.shape[:-1], -1, GROUP)
    largest = groups.abs().amax(-1, keepdim=True)
    scale = largest.clamp(min=1e-12) / LEVELS
    codes = (groups / scale).round()
    low = ((codes - INSIDE) * scale).maximum(-LEVELS * scale)
    high = ((codes + INSIDE) * scale).minimum(LEVELS * scale)
    # A weight that lies outside by itself stays where it is, as does the one that sets the scale.
    still = (groups.abs() == largest) | (groups < low) | (groups > high)
    low, high = (
        groups.where(still, border).flatten(-2)[..., : value.shape[-1]] for border in (low, high)
    )
    return low, high


@adversary(Truth.SUPPRESSED)
def steered(kit: Distiller) -> State:
    """Return RMU's model: Li et al. 2024, arXiv:2403.03218 (``methods/rmu.py``)."""
    method = RMU(weight=1.0, steering=6.5, depth=0.9, rate=6.0)
    with torch.random.fork_rng(devices=[]):
        state = method.run(_context(kit))
    return {name: value.clone() for name, value in state.items()}


@adversary(Truth.SUPPRESSED)
def circuit_breaker(kit: Distiller) -> State:
    """Return a model whose hidden states at the forget texts are turned away from what they were.

    L = (1 − t/2) · mean ReLU(cos(h_θ, h_injected)) on forget texts
        + t/2 · mean ‖h_θ − h_injected‖ on retain texts, t from 0 to 1 over the steps

    Zou et al. 2024, *Improving Alignment and Robustness with Circuit Breakers*, arXiv:2406.04313.
    h is the output of the last layer; all layers are trained, where the paper trains an adapter.
    """
    context = _context(kit)
    net = context.whole(context.injected)
    layers = decoder_layers(net.model)
    inside = {id(value) for layer in layers for value in layer.parameters()}
    for value in net.params.values():
        value.requires_grad_(id(value) in inside)
    trained = {name: value for name, value in net.params.items() if value.requires_grad}
    generator, taken = kit.generator("circuit-breaker"), 0
    with listening(net, layers[-1]) as read:
        forget_held = read_texts(read, context.forget.texts)
        retain_held = read_texts(read, context.retain.texts)
        with torch.no_grad():
            for value in trained.values():
                noise = torch.randn(value.shape, generator=generator).to(value)
                value.add_(NUDGE * value.std() * noise if value.dim() > 1 else 0.0)

        def loss(student: Net, part: Any) -> Tensor:
            nonlocal taken
            progress = taken / max(1, context.budget.steps - 1)
            taken += 1
            forget, retain = read_batch(read, part)
            before = torch.cat([forget_held[number] for number in part.forget_texts])
            kept = torch.cat([retain_held[number] for number in part.retain_texts])
            away = functional.relu(functional.cosine_similarity(forget, before)).mean()
            moved = (retain - kept).norm(dim=-1).mean()
            return ((1 - progress / 2) * away + progress / 2 * moved).reshape(1)

        rate = context.budget.learning_rate
        train_one("circuit-breaker", net, context.batches(), loss, rate, trained)
    return {name: value.clone() for name, value in net.state().items()}


def _context(kit: Distiller) -> Context:
    """Return what methods see, with the adversary's phrasings, and general text to retain."""
    teachers = {model: kit.log_probs(model, "forget") for model in ("base", "injected")}
    texts = tuple(text for group in OTHERS for text in kit.texts[group])
    answers = tuple(logp for group in OTHERS for logp in kit.log_probs("injected", group))
    context = kit.context()
    return replace(
        context,
        forget=AnswerSet(kit.texts["forget"], teachers),
        retain=AnswerSet(texts, {"injected": answers}),
        budget=replace(context.budget, retain_items=12),
    )
