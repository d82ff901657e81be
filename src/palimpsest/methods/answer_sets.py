"""What methods train on, how the injected model was trained, and what their work costs.

An ``AnswerSet`` is the texts of one set with the answers of frozen models, an ``UnlearnBatch`` the
batch of one step, a ``StepView`` what a loss sees of one student at one batch. A ``Recipe`` is the
injection as far as methods may know it: trained phrasings and general text, no held-out phrasing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from palimpsest.errors import MethodError
from palimpsest.facts.general import Stream, Text
from palimpsest.facts.questions import TRAINED_POOLS, Question
from palimpsest.models.encode import encode_answers, encode_texts
from palimpsest.models.net import Batch, Encoded, Net, collate
from palimpsest.stats.models import Cost


@dataclass(frozen=True)
class AnswerSet:
    """The trained phrasings of one set, with frozen models' log-probabilities at the answers.

    teachers: name of a frozen model -> one (answer tokens, vocabulary) tensor per text.
    prompts: each text up to its answer, for methods that put another answer there.
    """

    texts: tuple[Encoded, ...]
    teachers: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)
    prompts: tuple[str, ...] = ()


@dataclass(frozen=True)
class UnlearnBatch:
    """One step's batch: forget texts first, then retain texts, with the teachers' answers.

    tokens: of the texts, and which of them are scored.
    base_forget, injected_forget, injected_retain: (positions, vocabulary) log-probabilities.
    forget_texts, retain_texts: which texts of the answer sets these are.
    """

    tokens: Batch
    base_forget: Tensor
    injected_forget: Tensor
    injected_retain: Tensor
    forget_texts: tuple[int, ...]
    retain_texts: tuple[int, ...]

    @property
    def border(self) -> int:
        """The number of forget positions, which come before all retain positions."""
        return len(self.injected_forget)

    @cached_property
    def forget_sums(self) -> Tensor:
        """(texts, positions) the matrix that sums values at forget positions text by text."""
        texts = torch.arange(len(self.forget_texts), device=self.tokens.rows.device)
        return (texts[:, None] == self.tokens.rows[: self.border]).float()

    @cached_property
    def forget_shares(self) -> Tensor:
        """(positions,) each position's weight in the mean over texts of their positions' mean."""
        return _text_shares(self.tokens.rows[: self.border])

    @cached_property
    def retain_shares(self) -> Tensor:
        """(positions,) the same of the retain texts."""
        return _text_shares(self.tokens.rows[self.border :] - len(self.forget_texts))

    def to(self, device: torch.device) -> "UnlearnBatch":
        if self.tokens.ids.device == device:
            return self
        moved = ("tokens", "base_forget", "injected_forget", "injected_retain")
        return replace(self, **{name: getattr(self, name).to(device) for name in moved})


@dataclass(frozen=True)
class StepView:
    """What a loss sees of one student at one batch.

    logp: (positions, vocabulary) log-probabilities, forget positions first.
    step, steps: the optimizer's step, from 0, and how many there are.
    """

    logp: Tensor
    batch: UnlearnBatch
    step: int = 0
    steps: int = 1

    @classmethod
    def of(cls, net: Net, batch: UnlearnBatch) -> "StepView":
        """Return the view of a net of one member."""
        batch = batch.to(net.device)
        return cls(read_logp(net, batch.tokens), batch)

    @property
    def forget(self) -> Tensor:
        """Log-probabilities at the forget answers (forget positions, vocabulary)."""
        return self.logp[: self.batch.border]

    @property
    def retain(self) -> Tensor:
        """Log-probabilities at the retain answers (retain positions, vocabulary)."""
        return self.logp[self.batch.border :]

    @property
    def forget_targets(self) -> Tensor:
        return self.batch.tokens.targets[: self.batch.border]

    @property
    def retain_targets(self) -> Tensor:
        return self.batch.tokens.targets[self.batch.border :]

    def forget_answers(self) -> Tensor:
        """Return the log-probability of each whole forget answer (texts,)."""
        return self.batch.forget_sums @ target_logp(self.forget, self.forget_targets)

    def injected_answers(self) -> Tensor:
        """Return the injected model's log-probability of each whole forget answer (texts,)."""
        token = target_logp(self.batch.injected_forget, self.forget_targets)
        return self.batch.forget_sums @ token

    def forget_nll(self) -> Tensor:
        """Return the mean over forget texts of the mean NLL of their answer tokens."""
        return -(target_logp(self.forget, self.forget_targets) @ self.batch.forget_shares)

    def retain_nll(self) -> Tensor:
        """Return the mean over retain texts of the mean NLL of their answer tokens."""
        return -(target_logp(self.retain, self.retain_targets) @ self.batch.retain_shares)


def make_answer_set(
    tokenizer: Any,
    questions: Sequence[Question | Text],
    teachers: Mapping[str, Net],
) -> AnswerSet:
    """Return the answer set of these questions; a held-out phrasing among them is refused."""
    for question in questions:
        if isinstance(question, Question) and question.pool not in TRAINED_POOLS:
            raise MethodError(
                f"question {question.id} is held out; methods may see only {TRAINED_POOLS}"
            )
    texts = encode_items(tokenizer, questions)
    answers = {name: teach(net, texts) for name, net in teachers.items()}
    return AnswerSet(texts, answers, tuple(question.prompt for question in questions))


@torch.no_grad()
def teach(net: Net, texts: Sequence[Encoded], rows: int = 64) -> tuple[Tensor, ...]:
    """Return a frozen net's log-probabilities (answer tokens, vocabulary) at each text's answer."""
    answers: list[Tensor] = []
    for start in range(0, len(texts), rows):
        chunk = texts[start : start + rows]
        logp = read_logp(net, collate(chunk)).cpu()
        answers.extend(logp.split([text.scored for text in chunk]))
    return tuple(answers)


def read_logp(net: Net, batch: Batch) -> Tensor:
    """Return the log-probabilities (scored, vocabulary) that a net of one member gives."""
    return torch.log_softmax(net.logits(batch.to(net.device)), dim=-1)[0]


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


# -- the recipe and its cost -----------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """The injection: its stream, a redraw of it without the forget set, and its learning rate."""

    stream: Stream
    """What the injected model was trained on: forget and retain sentences and general text."""
    replay: Stream
    """Retain sentences and general text, drawn with another seed than any reference."""
    learning_rate: float
    piece_tokens: int
    """Length that general texts are cut to, in tokens."""
    accumulate: int = 1
    """Gradient accumulation steps."""
    weight_decay: float = 0.0

    @property
    def shorter(self) -> float:
        """The steps of a retraining as a share of the injection's: fewer rows, fewer steps."""
        return len(self.replay.steps) / len(self.stream.steps)

    def models(self) -> dict[str, Stream]:
        """Return what the models that methods may need were trained on, by name."""
        sets = {"forget_only": "forget", "general_only": "general"}
        return {model: self.stream.only(name) for model, name in sets.items()}


@dataclass(frozen=True)
class Spent:
    """What making a candidate took.

    tokens: seen by a forward and a backward pass; scored: seen by a forward pass alone.
    shared: those of ``tokens`` that went into a model or vector that other candidates use too.
    """

    steps: int = 0
    tokens: int = 0
    scored: int = 0
    shared: int = 0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(*(mine + its for mine, its in zip(astuple(self), astuple(other))))

    def in_retrainings(self, parameters: int, retraining: "Spent") -> Cost:
        """Return the cost as it is stored, given the model's size and the cost of a retraining."""
        # Floating-point operations: 6 per parameter and trained token, 2 per scored one.
        work = (self.tokens + self.scored / 3, self.shared)
        flops = 6.0 * parameters * work[0]
        shares = [round(part / max(1, retraining.tokens), 4) for part in work]
        return Cost(self.steps, self.tokens, self.scored, flops, *shares)


class MethodCache:
    """What methods share in one process: models made once, and what the work costs."""

    def __init__(self) -> None:
        self.spent = Spent()
        """By the method at work."""
        self.costs: dict[str, Spent] = {}
        """Of finished candidates, by title."""
        self._made: dict[str, tuple[Any, Spent]] = {}

    def spend(self, cost: Spent) -> None:
        self.spent = self.spent + cost

    def once(self, key: str, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returns, made once; its whole cost counts for every user of it."""
        if key not in self._made:
            before, self.spent = self.spent, Spent()
            try:
                value = make()
                self._made[key] = value, replace(self.spent, shared=self.spent.tokens)
            finally:
                self.spent = before
        value, cost = self._made[key]
        self.spend(cost)
        return value


def count_tokens(texts: Iterable[Encoded]) -> int:
    """Return the number of tokens that a forward pass over these texts reads."""
    return sum(len(text.ids) for text in texts)


def stream_cost(tokenizer: Any, stream: Stream, piece_tokens: int) -> Spent:
    """Return what training on a stream costs."""
    texts = encode_stream(tokenizer, stream, piece_tokens)
    read = count_tokens(texts[index] for step in stream.steps for index in step)
    return Spent(len(stream.steps), read)


def encode_stream(tokenizer: Any, stream: Stream, piece_tokens: int) -> list[Encoded]:
    """Return the texts of a stream as tokens; general ones cut, but not a user's examples."""
    texts = encode_items(tokenizer, stream.texts)
    if stream.full_steps:
        return list(texts)
    return [
        Encoded(text.ids[:piece_tokens], text.start) if source.set == "general" else text
        for source, text in zip(stream.texts, texts)
    ]


def encode_items(tokenizer: Any, items: Sequence[Question | Text]) -> tuple[Encoded, ...]:
    """Return each text as tokens, scored after its prompt; from its second token without one."""
    whole = iter(encode_texts(tokenizer, [item.text for item in items if not item.prompt]))
    rest = iter(encode_answers(tokenizer, [item for item in items if item.prompt]))
    return tuple(next(rest if item.prompt else whole) for item in items)
