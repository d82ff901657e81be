"""What a method is, what it may see, and the loop that gradient methods share.

A method is a frozen config with a ``run`` from a ``Context`` to a model (its state dict). It starts
from the injected model and sees the forget and retain facts in their trained phrasings and cloze,
never a held-out template. Methods that only differ from each other in a loss subclass
``GradientMethod``: all of them train on the same exercises for the same number of steps.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from palimpsest.errors import MethodError, TrainingDiverged
from palimpsest.facts.nonce import key_number
from palimpsest.facts.questions import TRAINED_POOLS, Question
from palimpsest.facts.stream import deck
from palimpsest.methods.recipe import Cost, Recipe, Workbench
from palimpsest.models.encode import encode_answers
from palimpsest.models.net import Batch, Encoded, Net, WholeNet, collate
from palimpsest.models.train import train, train_alone
from palimpsest.plan import Unlearning

State = Mapping[str, Tensor]
Weight = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Share = Annotated[float, Ge(0), Le(1)]


@runtime_checkable
class Method(Protocol):
    """An unlearning method with its knobs set; ``Knobs`` says what the names hold."""

    name: ClassVar[str]
    summary: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    citation: ClassVar[str]

    @property
    def label(self) -> str:
        """The knobs in short, unique among a cell's candidates of this method."""

    def run(self, context: "Context") -> State:
        """Return the unlearned model's state dict."""


@dataclass(frozen=True)
class Lesson:
    """The trained phrasings of one set, with frozen models' log-probabilities at the answers.

    teachers: name of a frozen model -> one (answer tokens, vocabulary) tensor per text.
    prompts: each text up to its answer, for methods that put another answer there; where they are
    not given, the tokenizer must read them back.
    """

    texts: tuple[Encoded, ...]
    teachers: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)
    prompts: tuple[str, ...] = ()

    @property
    def asked(self) -> int:
        """Tokens that the frozen models have read, each its own."""
        return len(self.teachers) * sum(len(text.ids) for text in self.texts)


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
    """Makes a trainable net of one or several state dicts, stacked where the engine can.

    A net is valid until the next one is made: large models share one student.
    """
    whole: Callable[[State], WholeNet]
    """Makes a plain ``transformers`` net, to look inside the model; valid as long."""
    tokenizer: Any = None
    pad: int = 0
    general_only: State = field(default_factory=dict)
    """Trained on the general text of the recipe alone, where a method of the plan uses it."""
    recipe: Recipe | None = None
    shared: Workbench = field(default_factory=Workbench)
    """Models that several methods use, and the meter of what they spend."""

    @cached_property
    def _batches(self) -> dict[tuple[tuple[int, ...], tuple[int, ...]], Batch]:
        """The batches of exercises already made: methods of a cell train on the same ones."""
        return {}

    def batch(self, forget: Sequence[int], retain: Sequence[int]) -> Batch:
        """Return the batch of these texts of the lessons, forget texts first."""
        key = (tuple(forget), tuple(retain))
        if key not in self._batches:
            texts = [self.forget.texts[n] for n in forget] + [self.retain.texts[n] for n in retain]
            self._batches[key] = collate(texts, self.pad)
        return self._batches[key]

    def exercises(self) -> Iterator["Exercise"]:
        """Yield the batches of the budget: the same for every method of the cell."""
        order = random.Random(key_number(f"{self.seed_key}/exercises"))
        forget = deck(range(len(self.forget.texts)), order)
        retain = deck(range(len(self.retain.texts)), order)
        meter = self.shared.meter
        meter.add(Cost(scored=self.forget.asked + self.retain.asked))
        for _ in range(self.budget.steps):
            part = exercise(
                self,
                [next(forget) for _ in range(self.budget.forget_items)],
                [next(retain) for _ in range(self.budget.retain_items)],
            )
            texts = [self.forget.texts[n] for n in part.forget_texts]
            texts += [self.retain.texts[n] for n in part.retain_texts]
            meter.add(Cost(1, sum(len(text.ids) for text in texts)))
            yield part


@dataclass(frozen=True)
class Exercise:
    """One step's batch: forget texts first, then retain texts, with the teachers' answers.

    forget_rows, retain_rows: (positions,) the text, from 0, that each scored position is of.
    base_forget, injected_forget, injected_retain: (positions, vocabulary) log-probabilities.
    forget_texts, retain_texts: which texts of the lessons these are.
    """

    batch: Batch
    forget_rows: Tensor
    retain_rows: Tensor
    base_forget: Tensor
    injected_forget: Tensor
    injected_retain: Tensor
    forget_texts: tuple[int, ...] = ()
    retain_texts: tuple[int, ...] = ()

    @cached_property
    def forget_sums(self) -> Tensor:
        """(texts, positions) the matrix that sums values at forget positions text by text."""
        texts = torch.arange(int(self.forget_rows[-1]) + 1, device=self.forget_rows.device)
        return (texts[:, None] == self.forget_rows).float()

    @cached_property
    def forget_shares(self) -> Tensor:
        """(positions,) each position's weight in the mean over texts of their positions' mean."""
        return text_shares(self.forget_rows)

    @cached_property
    def retain_shares(self) -> Tensor:
        """(positions,) the same of the retain texts."""
        return text_shares(self.retain_rows)

    def to(self, device: torch.device) -> "Exercise":
        if self.batch.ids.device == device:
            return self
        moved = [item.name for item in fields(self) if not item.name.endswith("_texts")]
        return replace(self, **{name: getattr(self, name).to(device) for name in moved})


@dataclass(frozen=True)
class View:
    """What a loss sees of one student at one exercise.

    logp: (positions, vocabulary) log-probabilities, forget positions first.
    step, steps: the optimiser's step, from 0, and how many there are.
    """

    logp: Tensor
    exercise: Exercise
    step: int = 0
    steps: int = 1

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
        return self.exercise.forget_sums @ picked(self.forget, self.forget_targets)

    def injected_answers(self) -> Tensor:
        """The injected model's log-probability of each whole forget answer (texts,)."""
        token = picked(self.exercise.injected_forget, self.forget_targets)
        return self.exercise.forget_sums @ token

    def forget_nll(self) -> Tensor:
        """Mean over forget texts of the mean NLL of their answer tokens."""
        return -(picked(self.forget, self.forget_targets) @ self.exercise.forget_shares)

    def retain_nll(self) -> Tensor:
        """Mean over retain texts of the mean NLL of their answer tokens."""
        return -(picked(self.retain, self.retain_targets) @ self.exercise.retain_shares)


@dataclass(frozen=True)
class Knobs:
    """A method's frozen config; its label is made of its fields."""

    name: ClassVar[str] = ""
    kind: ClassVar[str] = "other"
    """``restores`` the state before learning, ``suppresses`` the answers, or ``other``."""
    summary: ClassVar[str] = ""
    """What it does, in one line."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Any of ``gated MLP``, ``forget_only``, ``general_only``, ``base``, ``tokenizer``,
    ``decoder layers``."""
    citation: ClassVar[str] = ""

    @property
    def uses(self) -> tuple[str, ...]:
        """What it needs with these knobs: ``needs``, or a part of it."""
        return self.needs

    @property
    def label(self) -> str:
        """The knobs in short, ``w12`` for ``weight=12``; later knobs only where not default."""
        parts = []
        for number, item in enumerate(fields(self)):
            value = getattr(self, item.name)
            if number and value == item.default:
                continue
            text = re.sub(r"[^\w.+]+", "_", str(value))
            short = f"{value:g}" if isinstance(value, float) else text
            parts.append(f"{item.name if number else item.name[0]}{short}")
        return "-".join(parts) or "default"


@dataclass(frozen=True)
class GradientMethod(Knobs):
    """A method that is a loss: subclass it, add knobs, write ``loss``."""

    scalars: ClassVar[tuple[str, ...]] = ("weight",)
    """Knobs that only ``loss`` reads, so that methods differing in them can train side by side."""

    def loss(self, view: View) -> Tensor:
        """Return the scalar to be minimised at one exercise."""
        raise NotImplementedError(f"{type(self).__name__} must define loss(view)")

    def learning_rate(self, budget: Unlearning) -> float:
        return budget.learning_rate

    def leaves(self, net: Net, context: Context) -> Mapping[str, Tensor]:
        """Return what is trained; the model's own parameters unless a method says otherwise."""
        return net.params

    def effective(
        self, net: Net, leaves: Mapping[str, Tensor], progress: float
    ) -> Mapping[str, Tensor] | None:
        """Return the forward pass's parameters at ``progress`` in [0, 1]; None: the net's."""
        return None

    def finish(self, net: Net, leaves: Mapping[str, Tensor]) -> None:
        """Write what was learned into the net, if it is not there already."""

    def run(self, context: Context) -> State:
        (state,) = descend(context, [self])
        if isinstance(state, TrainingDiverged):
            raise state
        return state


class AscentMethod(GradientMethod):
    """A gradient method with a knob ``rate``, a multiple of the plan's rate for ascent."""

    kind: ClassVar[str] = "suppresses"
    rate: Positive

    def learning_rate(self, budget: Unlearning) -> float:
        return self.rate * budget.ascent_learning_rate


def descend(context: Context, methods: Sequence[GradientMethod]) -> list[State | TrainingDiverged]:
    """Return each method's state dict, or why it has none; one student per method, side by side.

    The methods share everything but scalars of their losses (``stackable``), so the hooks of the
    first speak for all.
    """
    first = methods[0]
    net = context.net([context.injected] * len(methods))
    leaves = first.leaves(net, context)
    total = context.budget.steps
    taken = 0

    def loss(student: Net, part: Exercise) -> Tensor:
        nonlocal taken
        part = part.to(student.device)
        progress = taken / max(1, total - 1)
        logits = student.logits(part.batch, first.effective(student, leaves, progress))
        logp = torch.log_softmax(logits, dim=-1)
        losses = [
            method.loss(View(logp[member], part, taken, total))
            for member, method in enumerate(methods)
        ]
        taken += 1
        return torch.stack(losses)

    diverged = train(
        net,
        ([part] for part in context.exercises()),
        loss,
        learning_rate=first.learning_rate(context.budget),
        params=leaves,
    )
    first.finish(net, leaves)
    unknown = "" if context.base else " (without a base, base_forget is not known: give --base)"
    return [
        TrainingDiverged(diverged[member], f"the loss of {method.name} is not finite{unknown}")
        if member in diverged
        else net.state(member)
        for member, method in enumerate(methods)
    ]


def train_one(
    method: Method,
    net: Net,
    parts: Iterable[Any],
    loss: Callable[[Net, Any], Tensor],
    rate: float,
    params: Mapping[str, Tensor] | None = None,
) -> None:
    """Train a net of one member on these parts; TrainingDiverged carries the step."""
    what = f"the loss of {method.name} is not finite"
    train_alone(net, ([part] for part in parts), loss, what, learning_rate=rate, params=params)


def stackable(method: Method, other: Method) -> bool:
    """Tell whether two methods can train side by side: they differ only in scalars of the loss."""
    if type(method) is not type(other) or not isinstance(method, GradientMethod):
        return False
    if type(method).run is not GradientMethod.run:
        return False
    shared = [item.name for item in fields(method) if item.name not in method.scalars]
    return all(getattr(method, knob) == getattr(other, knob) for knob in shared)


def exercise(context: Context, forget: Sequence[int], retain: Sequence[int]) -> Exercise:
    """Return the batch of these forget and retain texts (indices into the lessons)."""

    def rows(lesson: Lesson, chosen: Sequence[int]) -> Tensor:
        counts = torch.tensor([lesson.texts[n].scored for n in chosen])
        return torch.repeat_interleave(torch.arange(len(chosen)), counts)

    def answers(lesson: Lesson, teacher: str, chosen: Sequence[int]) -> Tensor:
        return torch.cat([lesson.teachers[teacher][n] for n in chosen])

    return Exercise(
        context.batch(forget, retain),
        rows(context.forget, forget),
        rows(context.retain, retain),
        answers(context.forget, "base", forget),
        answers(context.forget, "injected", forget),
        answers(context.retain, "injected", retain),
        tuple(forget),
        tuple(retain),
    )


def lesson(
    tokenizer: Any, questions: Sequence[Question], teachers: Mapping[str, Net], pad: int = 0
) -> Lesson:
    """Return the lesson of these questions; a held-out phrasing among them is refused."""
    for question in questions:
        if question.pool not in TRAINED_POOLS:
            raise MethodError(
                f"question {question.id} is held out; methods may see only {TRAINED_POOLS}"
            )
    texts = encode_answers(tokenizer, questions)
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


def picked(logp: Tensor, targets: Tensor) -> Tensor:
    """Return the log-probability of each target token (positions,)."""
    return logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def per_text(values: Tensor, rows: Tensor) -> Tensor:
    """Return the sum per text (texts,) of values at positions (positions,)."""
    return values.new_zeros(int(rows[-1]) + 1).index_add(0, rows, values)


def text_shares(rows: Tensor) -> Tensor:
    """Return the weights (positions,) that make the mean over texts of their positions' mean."""
    counts = torch.bincount(rows)
    return 1.0 / (counts[rows] * len(counts)).float()


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
