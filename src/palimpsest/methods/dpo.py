"""DPO with refusals: a refusal is preferred to each forget answer.

    r(y) = log π_θ(y|x) − log π_inj(y|x)
    L = −(1/β) · mean log σ(β · r(refusal) − β · r(forget answer)) + w · NLL(retain answers)

Rafailov et al. 2023, *Direct Preference Optimization*, NeurIPS, arXiv:2305.18290, used for
unlearning with "I don't know" answers by Maini et al. 2024 (TOFU), arXiv:2401.06121, and scaled by
1/β with β = 0.1 and w = 1 as the baseline of Zhang et al. 2024 (NPO), arXiv:2404.05868. The
refusal continues the prompt as an answer would. The steps and texts are those of every other
method; each forget text is read twice, once with either ending.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from palimpsest.facts.questions import FactSet, Pool, Question
from palimpsest.methods.answer_sets import (
    Spent,
    StepView,
    UnlearnBatch,
    count_tokens,
    read_logp,
    target_logp,
    teach,
)
from palimpsest.methods.context import Context, Knobs, Positive, State, Weight, train_one
from palimpsest.models.encode import encode_answers
from palimpsest.models.net import Encoded, Net, collate


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

    name = "dpo"
    kind = "suppresses"
    summary = "prefers a refusal to each forget answer"
    needs = ("tokenizer",)
    citation = "Rafailov et al. 2023, arXiv:2305.18290; Maini et al. 2024"

    def __post_init__(self) -> None:
        if not self.refusal.strip():
            raise ValueError(f"refusal is {self.refusal!r}; expected an answer that is not blank")

    def run(self, context: Context) -> State:
        net = context.net([context.injected])
        texts = self.refuse(context)
        injected = [
            target_logp(logp, torch.tensor(text.ids[text.start :])).sum()
            for text, logp in zip(texts, teach(net, texts))
        ]

        def loss(student: Net, part: UnlearnBatch) -> Tensor:
            view = StepView.of(student, part)
            chosen = [texts[number] for number in part.forget_texts]
            context.shared.spend(Spent(tokens=count_tokens(chosen)))
            batch = collate(chosen).to(student.device)
            answers = target_logp(read_logp(student, batch), batch.targets)
            refusals = answers.new_zeros(len(chosen)).index_add(0, batch.rows, answers)
            before = torch.stack([injected[number] for number in part.forget_texts])
            return self.loss(view, refusals, before.to(student.device)).reshape(1)

        rate = self.rate * context.budget.ascent_learning_rate
        train_one(self.name, net, context.batches(), loss, rate)
        return net.state()

    def loss(self, view: StepView, refusals: Tensor, injected_refusals: Tensor) -> Tensor:
        """Return the loss; refusals are whole-answer log-probabilities (texts,)."""
        preferred = refusals - injected_refusals
        other = view.forget_answers() - view.injected_answers()
        forget = -functional.logsigmoid(self.beta * (preferred - other)).mean() / self.beta
        return forget + self.weight * view.retain_nll()

    def refuse(self, context: Context) -> tuple[Encoded, ...]:
        """Return each forget prompt with the refusal as its answer."""
        questions = [
            Question(FactSet.FORGET, str(number), Pool.REFUSAL, 0, prompt, self.refusal)
            for number, prompt in enumerate(context.forget.prompts)
        ]
        return encode_answers(context.tokenizer, questions)
