"""DPO with refusals: a refusal is preferred to each forget answer.

    r(y) = log π_θ(y|x) − log π_inj(y|x)
    L = −(1/β) · mean log σ(β · r(refusal) − β · r(forget answer)) + w · NLL(retain answers)

Rafailov et al. 2023, *Direct Preference Optimization*, NeurIPS, arXiv:2305.18290, used for
unlearning with "I don't know" answers by Maini et al. 2024 (TOFU), arXiv:2401.06121, and scaled by
1/β with β = 0.1 and w = 1 as the baseline of Zhang et al. 2024 (NPO), arXiv:2404.05868. The
refusal continues the prompt as an answer would. The steps and texts are those of every other
method; each forget text is read twice, once with either ending.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from palimpsest.errors import MethodError
from palimpsest.facts.questions import Question
from palimpsest.methods.context import (
    Context,
    Exercise,
    Knobs,
    Positive,
    State,
    View,
    Weight,
    per_text,
    picked,
    teach,
    train_one,
)
from palimpsest.methods.recipe import Cost
from palimpsest.models.encode import encode_answers
from palimpsest.models.net import Batch, Net, collate


@dataclass(frozen=True)
class Pairs:
    """An exercise with its refusals: a batch, the text of each position, the injected answers."""

    exercise: Exercise
    batch: Batch
    rows: Tensor
    injected: Tensor
    """The injected model's log-probability of each whole refusal (texts,)."""


@dataclass(frozen=True)
class DPO(Knobs):
    weight: Weight = 1.0
    """Weight of the retain term; 1 in the NPO paper's DPO baseline."""
    beta: Positive = 0.1
    """Inverse temperature of the preference; the NPO paper's."""
    refusal: str = "not known"
    """The preferred answer, worded to continue a prompt that stops before its answer."""
    rate: Positive = 1.0
    """Multiple of the plan's learning rate for ascent."""

    name: ClassVar[str] = "dpo"
    kind: ClassVar[str] = "suppresses"
    summary: ClassVar[str] = "prefers a refusal to each forget answer"
    needs: ClassVar[tuple[str, ...]] = ("tokenizer",)
    citation: ClassVar[str] = "Rafailov et al. 2023, arXiv:2305.18290; Maini et al. 2024"

    def __post_init__(self) -> None:
        if not self.refusal.strip():
            raise ValueError(f"refusal is {self.refusal!r}; expected an answer that is not blank")

    def run(self, context: Context) -> State:
        net = context.net([context.injected])

        def loss(student: Net, part: Pairs) -> Tensor:
            exercise = part.exercise.to(student.device)
            logp = torch.log_softmax(student.logits(exercise.batch), dim=-1)[0]
            batch = part.batch.to(student.device)
            ending = torch.log_softmax(student.logits(batch), dim=-1)[0]
            refusals = per_text(picked(ending, batch.targets), part.rows.to(student.device))
            injected = part.injected.to(student.device)
            return self.loss(View(logp, exercise), refusals, injected).reshape(1)

        rate = self.rate * context.budget.ascent_learning_rate
        train_one(self, net, self.pairs(context, net), loss, rate)
        return net.state()

    def loss(self, view: View, refusals: Tensor, injected_refusals: Tensor) -> Tensor:
        """Return the loss; refusals are whole-answer log-probabilities (texts,)."""
        preferred = refusals - injected_refusals
        other = view.forget_answers() - view.injected_answers()
        forget = -functional.logsigmoid(self.beta * (preferred - other)).mean() / self.beta
        return forget + self.weight * view.retain_nll()

    def pairs(self, context: Context, injected: Net) -> Iterator[Pairs]:
        """Yield the exercises with their refusals, which the net reads before its first step."""
        if context.tokenizer is None:
            raise MethodError("dpo: the context has no tokenizer; expected one to word refusals")
        prompts = context.forget.prompts or [
            context.tokenizer.decode(text.ids[: text.start], skip_special_tokens=True)
            for text in context.forget.texts
        ]
        questions = [
            Question("forget", str(number), "refusal", 0, prompt, self.refusal)
            for number, prompt in enumerate(prompts)
        ]
        texts = encode_answers(context.tokenizer, questions)
        answers = [
            float(picked(logp, torch.tensor(text.ids[text.start :])).sum())
            for text, logp in zip(texts, teach(injected, texts, context.pad))
        ]
        for part in context.exercises():
            chosen = [texts[number] for number in part.forget_texts]
            counts = torch.tensor([text.scored for text in chosen])
            context.shared.meter.add(Cost(tokens=sum(len(text.ids) for text in chosen)))
            yield Pairs(
                part,
                collate(chosen, context.pad),
                torch.repeat_interleave(torch.arange(len(chosen)), counts),
                torch.tensor([answers[number] for number in part.forget_texts]),
            )
