"""What a method is, what it may see, and the loop that gradient methods share.

A method is a frozen config with a ``run`` from a ``Context`` to a model (its state dict). It starts
from the injected model and sees the forget and retain facts in their trained phrasings and cloze,
never a held-out template. Methods that only differ from each other in a loss subclass
``GradientMethod``: all of them train on the same exercises for the same number of steps.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from palimpsest.errors import TrainingDiverged
from palimpsest.facts.nonce import key_number
from palimpsest.facts.stream import deck
from palimpsest.models.net import Batch, Encoded, Net, WholeNet, collate
from palimpsest.models.train import train
from palimpsest.plan import Unlearning

State = Mapping[str, Tensor]


@runtime_checkable
class Method(Protocol):
    """An unlearning method with its knobs set."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """What it does, in one line."""
    needs: ClassVar[tuple[str, ...]]
    """Any of ``gated MLP``, ``forget_only``, ``base``."""
    citation: ClassVar[str]

    @property
    def label(self) -> str:
        """The knobs in short, unique among a cell's candidates of this method."""

    def run(self, context: "Context") -> State:
        """Give the unlearned model's state dict."""


@dataclass(frozen=True)
class Lesson:
    """The trained phrasings of one set, with frozen models' log-probabilities at the answers.

    teachers: name of a frozen model -> one (answer tokens, vocabulary) tensor per text.
    """

    texts: tuple[Encoded, ...]
    teachers: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """Everything a method may use; the held-out pools are not in it."""

    base: State
    injected: State
    forget_only: State
    forget: Lesson
    retain: Lesson
    budget: Unlearning
    seed_key: str
    gated: bool
    net: Callable[[Sequence[State]], Net]
    """Makes a trainable net of one or several state dicts, stacked where the engine can."""
    whole: Callable[[State], WholeNet]
    """Makes a plain ``transformers`` net, for methods that look inside the model."""
    tokenizer: Any = None
    pad: int = 0

    def exercises(self) -> Iterator["Exercise"]:
        """Yield the batches of the budget: the same for every method of the cell."""
        order = random.Random(key_number(f"{self.seed_key}/exercises"))
        forget = deck(range(len(self.forget.texts)), order)
        retain = deck(range(len(self.retain.texts)), order)
        for _ in range(self.budget.steps):
            yield exercise(
                self,
                [next(forget) for _ in range(self.budget.forget_items)],
                [next(retain) for _ in range(self.budget.retain_items)],
            )


@dataclass(frozen=True)
class Exercise:
    """One step's batch: forget texts first, then retain texts, with the teachers' answers.

    forget_rows, retain_rows: (positions,) the text, from 0, that each scored position is of.
    base_forget, injected_forget, injected_retain: (positions, vocabulary) log-probabilities.
    """

    batch: Batch
    forget_rows: Tensor
    retain_rows: Tensor
    base_forget: Tensor
    injected_forget: Tensor
    injected_retain: Tensor


@dataclass(frozen=True)
class View:
    """What a loss sees of one student at one exercise.

    logp: (positions, vocabulary) log-probabilities, forget positions first.
    """

    logp: Tensor
    exercise: Exercise

    @property
    def forget(self) -> Tensor:
        """Log-probabilities at the forget answers (forget positions, vocabulary)."""
        return self.logp[: len(self.exercise.forget_rows)]

    @property
    def retain(self) -> Tensor:
        """Log-probabilities at the retain answers (retain positions, vocabulary)."""
        return self.logp[len(self.exercise.forget_rows) :]

    @property
    def forget_targets(self) -> Tensor:
        return self.exercise.batch.targets[: len(self.exercise.forget_rows)]

    @property
    def retain_targets(self) -> Tensor:
        return self.exercise.batch.targets[len(self.exercise.forget_rows) :]

    def forget_answers(self) -> Tensor:
        """Log-probability of each whole forget answer (texts,)."""
        return per_text(picked(self.forget, self.forget_targets), self.exercise.forget_rows)

    def injected_answers(self) -> Tensor:
        """The injected model's log-probability of each whole forget answer (texts,)."""
        token = picked(self.exercise.injected_forget, self.forget_targets)
        return per_text(token, self.exercise.forget_rows)

    def forget_nll(self) -> Tensor:
        """Mean over forget texts of the mean NLL of their answer tokens."""
        return text_mean(-picked(self.forget, self.forget_targets), self.exercise.forget_rows)

    def retain_nll(self) -> Tensor:
        """Mean over retain texts of the mean NLL of their answer tokens."""
        return text_mean(-picked(self.retain, self.retain_targets), self.exercise.retain_rows)


@dataclass(frozen=True)
class GradientMethod:
    """A method that is a loss: subclass it, add knobs, write ``loss``."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    citation: ClassVar[str] = ""

    @property
    def label(self) -> str:
        return knob_label(self)

    def loss(self, view: View) -> Tensor:
        """Give the scalar to be minimised at one exercise."""
        raise NotImplementedError(f"{type(self).__name__} must define loss(view)")

    def learning_rate(self, budget: Unlearning) -> float:
        return budget.learning_rate

    def leaves(self, net: Net, context: Context) -> Mapping[str, Tensor]:
        """Give what is trained; the model's own parameters unless a method says otherwise."""
        return net.params

    def effective(
        self, net: Net, leaves: Mapping[str, Tensor], progress: float
    ) -> Mapping[str, Tensor] | None:
        """Give the parameters the forward pass uses at ``progress`` in [0, 1]; None for the net's."""
        return None

    def finish(self, net: Net, leaves: Mapping[str, Tensor]) -> None:
        """Write what was learned into the net, if it is not there already."""

    def run(self, context: Context) -> State:
        (state,) = descend(context, [self])
        if isinstance(state, TrainingDiverged):
            raise state
        return state


def descend(
    context: Context, methods: Sequence[GradientMethod]
) -> list[State | TrainingDiverged]:
    """Train one student per method side by side; give each one's state dict, or why it has none.

    The methods share everything but scalar knobs of their losses (``stackable``), so hooks of the
    first speak for all.
    """
    first = methods[0]
    net = context.net([context.injected] * len(methods))
    leaves = first.leaves(net, context)
    total = context.budget.steps
    taken = 0

    def loss(student: Net, part: Exercise) -> Tensor:
        nonlocal taken
        progress = taken / max(1, total - 1)
        taken += 1
        logits = student.logits(part.batch, first.effective(student, leaves, progress))
        logp = torch.log_softmax(logits, dim=-1)
        return torch.stack(
            [method.loss(View(logp[member], part)) for member, method in enumerate(methods)]
        )

    diverged = train(
        net,
        ([part] for part in context.exercises()),
        loss,
        learning_rate=first.learning_rate(context.budget),
        params=leaves,
    )
    first.finish(net, leaves)
    return [
        TrainingDiverged(diverged[member], f"the loss of {method.name} is not finite")
        if member in diverged
        else net.state(member)
        for member, method in enumerate(methods)
    ]


def stackable(one: Method, other: Method) -> bool:
    """Tell whether two methods can be trained side by side: they differ in the retain weight only."""
    if type(one) is not type(other) or not isinstance(one, GradientMethod):
        return False
    names = {item.name for item in fields(one)}
    if "weight" not in names:
        return one == other
    return bool(replace(one, weight=0.0) == replace(other, weight=0.0))  # type: ignore[call-arg]


def exercise(context: Context, forget: Sequence[int], retain: Sequence[int]) -> Exercise:
    """Give the batch of these forget and retain texts (indices into the lessons)."""
    texts = [context.forget.texts[n] for n in forget] + [context.retain.texts[n] for n in retain]

    def rows(chosen: Sequence[Encoded]) -> Tensor:
        counts = torch.tensor([text.scored for text in chosen])
        return torch.repeat_interleave(torch.arange(len(chosen)), counts)

    def said(lesson: Lesson, teacher: str, chosen: Sequence[int]) -> Tensor:
        return torch.cat([lesson.teachers[teacher][n] for n in chosen])

    return Exercise(
        collate(texts, context.pad),
        rows(texts[: len(forget)]),
        rows(texts[len(forget) :]),
        said(context.forget, "base", forget),
        said(context.forget, "injected", forget),
        said(context.retain, "injected", retain),
    )


@torch.no_grad()
def teach(net: Net, texts: Sequence[Encoded], pad: int = 0, rows: int = 64) -> tuple[Tensor, ...]:
    """Give a frozen net's log-probabilities at each text's answer: (answer tokens, vocabulary)."""
    said: list[Tensor] = []
    for start in range(0, len(texts), rows):
        chunk = texts[start : start + rows]
        logp = torch.log_softmax(net.logits(collate(chunk, pad).to(net.device)), dim=-1)[0].cpu()
        said.extend(logp.split([text.scored for text in chunk]))
    return tuple(said)


def picked(logp: Tensor, targets: Tensor) -> Tensor:
    """Log-probability of each target token (positions,)."""
    return logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def per_text(values: Tensor, rows: Tensor) -> Tensor:
    """Sum per text (texts,) of values at positions (positions,)."""
    return values.new_zeros(int(rows[-1]) + 1).index_add(0, rows, values)


def text_mean(values: Tensor, rows: Tensor) -> Tensor:
    """Mean over texts of the mean over each text's positions."""
    return (per_text(values, rows) / per_text(torch.ones_like(values), rows)).mean()


def kl_from(teacher: Tensor, student: Tensor) -> Tensor:
    """Mean over positions of KL(teacher ‖ student), both log-probabilities."""
    return (teacher.exp() * (teacher - student)).sum(-1).mean()


def knob_label(method: Any) -> str:
    """Give the knobs in short, ``w12`` for ``weight=12``; later knobs only where not default."""
    if not is_dataclass(method):
        return "default"
    parts = []
    for number, item in enumerate(fields(method)):
        value = getattr(method, item.name)
        if number and value == item.default:
            continue
        short = f"{value:g}" if isinstance(value, float) else str(value)
        parts.append(f"{item.name[0] if number == 0 else item.name}{short}")
    return "-".join(parts) or "default"
