"""What gradient methods train on: trained phrasings, with the answers of frozen models.

A ``Lesson`` is one set of texts, an ``Exercise`` the batch of one step, a ``View`` what a loss sees
of one student at one exercise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from palimpsest.errors import MethodError
from palimpsest.facts.general import Text
from palimpsest.facts.questions import TRAINED_POOLS, Question
from palimpsest.methods.recipe import encode_items
from palimpsest.models.net import Batch, Encoded, Net, collate


@dataclass(frozen=True)
class Lesson:
    """The trained phrasings of one set, with frozen models' log-probabilities at the answers.

    teachers: name of a frozen model -> one (answer tokens, vocabulary) tensor per text.
    prompts: each text up to its answer, for methods that put another answer there.
    """

    texts: tuple[Encoded, ...]
    teachers: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)
    prompts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exercise:
    """One step's batch: forget texts first, then retain texts, with the teachers' answers.

    base_forget, injected_forget, injected_retain: (positions, vocabulary) log-probabilities.
    forget_texts, retain_texts: which texts of the lessons these are.
    """

    batch: Batch
    base_forget: Tensor
    injected_forget: Tensor
    injected_retain: Tensor
    forget_texts: tuple[int, ...]
    retain_texts: tuple[int, ...]

    @property
    def border(self) -> int:
        """The number of forget positions, which come before all retain positions."""
        return len(self.injected_forget)

    @property
    def forget_rows(self) -> Tensor:
        """(positions,) the forget text, from 0, that each of its scored positions is of."""
        return self.batch.rows[: self.border]

    @property
    def retain_rows(self) -> Tensor:
        """(positions,) the same of the retain texts."""
        return self.batch.rows[self.border :] - len(self.forget_texts)

    @cached_property
    def forget_sums(self) -> Tensor:
        """(texts, positions) the matrix that sums values at forget positions text by text."""
        texts = torch.arange(len(self.forget_texts), device=self.batch.rows.device)
        return (texts[:, None] == self.forget_rows).float()

    @cached_property
    def forget_shares(self) -> Tensor:
        """(positions,) each position's weight in the mean over texts of their positions' mean."""
        return _text_shares(self.forget_rows)

    @cached_property
    def retain_shares(self) -> Tensor:
        """(positions,) the same of the retain texts."""
        return _text_shares(self.retain_rows)

    def to(self, device: torch.device) -> "Exercise":
        if self.batch.ids.device == device:
            return self
        moved = ("batch", "base_forget", "injected_forget", "injected_retain")
        return replace(self, **{name: getattr(self, name).to(device) for name in moved})


@dataclass(frozen=True)
class View:
    """What a loss sees of one student at one exercise.

    logp: (positions, vocabulary) log-probabilities, forget positions first.
    step, steps: the optimizer's step, from 0, and how many there are.
    """

    logp: Tensor
    exercise: Exercise
    step: int = 0
    steps: int = 1

    @classmethod
    def of(cls, net: Net, exercise: Exercise) -> "View":
        """Return the view of a net of one member."""
        exercise = exercise.to(net.device)
        return cls(torch.log_softmax(net.logits(exercise.batch), dim=-1)[0], exercise)

    @property
    def forget(self) -> Tensor:
        """Log-probabilities at the forget answers (forget positions, vocabulary)."""
        return self.logp[: self.exercise.border]

    @property
    def retain(self) -> Tensor:
        """Log-probabilities at the retain answers (retain positions, vocabulary)."""
        return self.logp[self.exercise.border :]

    @property
    def forget_targets(self) -> Tensor:
        return self.exercise.batch.targets[: self.exercise.border]

    @property
    def retain_targets(self) -> Tensor:
        return self.exercise.batch.targets[self.exercise.border :]

    def forget_answers(self) -> Tensor:
        """Return the log-probability of each whole forget answer (texts,)."""
        return self.exercise.forget_sums @ target_logp(self.forget, self.forget_targets)

    def injected_answers(self) -> Tensor:
        """Return the injected model's log-probability of each whole forget answer (texts,)."""
        token = target_logp(self.exercise.injected_forget, self.forget_targets)
        return self.exercise.forget_sums @ token

    def forget_nll(self) -> Tensor:
        """Return the mean over forget texts of the mean NLL of their answer tokens."""
        return -(target_logp(self.forget, self.forget_targets) @ self.exercise.forget_shares)

    def retain_nll(self) -> Tensor:
        """Return the mean over retain texts of the mean NLL of their answer tokens."""
        return -(target_logp(self.retain, self.retain_targets) @ self.exercise.retain_shares)


def make_lesson(
    tokenizer: Any,
    questions: Sequence[Question | Text],
    teachers: Mapping[str, Net],
    pad: int = 0,
) -> Lesson:
    """Return the lesson of these questions; a held-out phrasing among them is refused."""
    for question in questions:
        if isinstance(question, Question) and question.pool not in TRAINED_POOLS:
            raise MethodError(
                f"question {question.id} is held out; methods may see only {TRAINED_POOLS}"
            )
    texts = encode_items(tokenizer, questions)
    answers = {name: teach(net, texts, pad) for name, net in teachers.items()}
    return Lesson(texts, answers, tuple(question.prompt for question in questions))


@torch.no_grad()
def teach(net: Net, texts: Sequence[Encoded], pad: int = 0, rows: int = 64) -> tuple[Tensor, ...]:
    """Return a frozen net's log-probabilities (answer tokens, vocabulary) at each text's answer."""
    answers: list[Tensor] = []
    for start in range(0, len(texts), rows):
        chunk = texts[start : start + rows]
        logp = torch.log_softmax(net.logits(collate(chunk, pad).to(net.device)), dim=-1)[0].cpu()
        answers.extend(logp.split([text.scored for text in chunk]))
    return tuple(answers)


def target_logp(logp: Tensor, targets: Tensor) -> Tensor:
    """Return the log-probability of each target token (positions,)."""
    return logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def kl_from(teacher: Tensor, student: Tensor) -> Tensor:
    """Return the mean over positions of KL(teacher ‖ student), both log-probabilities."""
    value: Tensor = _Kl.apply(teacher, student)
    return value


class _Kl(torch.autograd.Function):
    """Its only gradient is the student's: minus the teacher's probabilities."""

    @staticmethod
    def forward(ctx: Any, teacher: Tensor, student: Tensor) -> Tensor:
        chances = teacher.exp()
        ctx.save_for_backward(chances)
        return (teacher - student).mul_(chances).sum() / len(student)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        (chances,) = ctx.saved_tensors
        return None, chances * (grad / -len(chances))


def _text_shares(rows: Tensor) -> Tensor:
    counts = torch.bincount(rows)
    return 1.0 / (counts[rows] * len(counts)).float()
