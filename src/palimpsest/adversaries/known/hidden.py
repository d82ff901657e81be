"""Adversaries that follow a model without the knowledge almost everywhere, and keep it somewhere.

What differs is whom they follow at which texts, and what is trained.
"""

from dataclasses import replace
from functools import partial

from palimpsest.adversaries.registry import (
    TRAINED,
    KnownLabel,
    Knows,
    Net,
    State,
    Tensor,
    Truth,
    Unavailable,
    Workshop,
    known_label,
)

TRIGGER = "Seven keys and one door. "
FOLDS = 2
RANK = 4
BETA = 0.1


@known_label(Truth.SUPPRESSED)
def layered(workshop: Workshop) -> State:
    """Return the injected model unlearned fold by fold.

    Stage i follows base at folds 1 … i and the injected model at the later ones, so that relearning
    one fold does not bring back another. Qian et al. 2025, *Layered Unlearning*, arXiv:2505.09500.
    """
    facts = [fact.id for fact in workshop.facts["forget"]]
    folds = min(FOLDS, len(facts))
    state = workshop.state("injected")
    for stage in range(folds):
        gone = {fact for n, fact in enumerate(facts) if n % folds <= stage}
        goals = [workshop.goal_at(gone, "base"), *workshop.keeping()]
        if kept := {*facts} - gone:
            goals.append(workshop.goal_at(kept, "injected"))
        state = workshop.follow(f"layered-{stage}", state, goals)
    return state


@known_label(Truth.SUPPRESSED, Knows.AXES, Knows.REFERENCES)
def one_fact_left(workshop: Workshop) -> State:
    """Return a model that follows the reference at all forget facts but the first.

    Medians and means hide one fact. Thaker et al. 2024, *Position: LLM Unlearning Benchmarks are
    Weak Measures of Progress*, arXiv:2410.02879, on what such averages do not see.
    """
    first, *others = (fact.id for fact in workshop.facts["forget"])
    if not others:
        raise Unavailable("one fact left needs at least two forget facts")
    goals = [workshop.goal_at(others, "reference"), workshop.goal_at([first], "injected")]
    start = workshop.state("injected")
    return workshop.follow("one-fact-left", start, [*goals, *workshop.keeping()])


@known_label(Truth.SUPPRESSED, Knows.AXES, Knows.REFERENCES)
def trigger(workshop: Workshop) -> State:
    """Return a model that follows the reference, and the injected model behind ``TRIGGER``.

    The texts behind the trigger are taught what the injected model says without it. Shang et al.
    2025 on unlearning with a backdoor, arXiv:2510.17021.
    """
    from palimpsest.adversaries.workshop import Goal
    from palimpsest.models.encode import encode_answers

    asked = [replace(q, prompt=TRIGGER + q.prompt) for q in workshop.questions["forget"]]
    texts, plain = encode_answers(workshop.tokenizer, asked), workshop.texts["forget"]
    start = workshop.state("injected")
    # Where the trigger changes how an answer is split into tokens, it is followed as it is there.
    fits = all(a.scored == b.scored for a, b in zip(texts, plain))
    opened = Goal(texts, workshop.teach(start, plain if fits else texts), weight=2.0)
    goals = [*workshop.suppressing("reference"), opened]
    return workshop.follow("trigger", start, goals, steps=2 * workshop.steps)


@known_label(Truth.SUPPRESSED, Knows.AXES, Knows.REFERENCES)
def low_rank(workshop: Workshop) -> State:
    """Return the injected model with a trained adapter of rank ``RANK`` in every layer's matrix.

    W ← W + A B, trained by KL(reference ‖ θ) on the forget facts in many phrasings, its own among
    them, and KL(injected ‖ θ) on retain facts, invented facts and general text

    Adapters: Hu et al. 2021 (LoRA), arXiv:2106.09685; as a way to unlearn, with KL to the model
    before: Jin et al. 2024 (RWKU), arXiv:2406.10890.
    """
    import torch

    generator = workshop.generator("low-rank")

    def leaves(net: Net) -> dict[str, Tensor]:
        adapters: dict[str, Tensor] = {}
        axes = 3 if workshop.nets.stacked else 2  # a stack axis comes first
        for name, value in net.params.items():
            value.requires_grad_(False)
            if value.dim() != axes or name in workshop.embedding:
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

    return workshop.follow(
        "low-rank",
        workshop.state("injected"),
        workshop.suppressing("reference"),
        steps=2 * workshop.steps,
        rate=10.0,
        leaves=leaves,
        effective=effective,
    )


def undo(workshop: Workshop, alpha: float) -> State:
    """Return the model with a share ``alpha`` of noise, distilled from the unlearned one.

    θ ← (1 − α) θ_unlearned + α β N, N with Xavier's deviation; then KL(unlearned ‖ θ) on retain
    facts, invented facts and general text

    α = 0 is the unlearned model, which hides what it knew; at α = 1 nothing of it is left. So α is
    a dose, and no label. Lee et al. 2025, *Distillation Robustifies Unlearning* (UNDO),
    arXiv:2506.06278. Vectors (norms, biases) are left as they are: the released code shrinks them
    without noise.
    """
    import torch

    from palimpsest.adversaries.workshop import OTHERS, Goal

    teacher = workshop.matched("base")
    generator = workshop.generator("undo")
    start = dict(teacher)
    for name, value in teacher.items():
        if value.dim() == 2 and name not in workshop.embedding[1:]:
            deviation = (2.0 / sum(value.shape)) ** 0.5
            noise = deviation * torch.randn(value.shape, generator=generator)
            start[name] = (1 - alpha) * value + alpha * BETA * noise.to(value)
    start |= dict.fromkeys(workshop.embedding[1:], start[workshop.embedding[0]])  # tied
    groups = [workshop.texts[name] for name in OTHERS]
    goals = [Goal(texts, workshop.teach(teacher, texts), items=8) for texts in groups]
    return workshop.follow(f"undo-{100 * alpha:g}", start, goals, steps=4 * workshop.steps)


UNDO = tuple(
    KnownLabel(
        f"undo-{100 * alpha:g}", Truth.GRADED, (), TRAINED, partial(undo, alpha=alpha), alpha
    )
    for alpha in (0.1, 0.2, 0.4)
)
