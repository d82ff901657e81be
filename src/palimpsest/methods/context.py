"""What a method is, what it may see, and the loop that gradient methods share.

A method is a frozen config with a ``run`` from a ``Context`` to a model (its state dict). It starts
from the injected model and sees the forget and retain facts in their trained phrasings and cloze,
never a held-out template. Methods that only differ from each other in a loss subclass
``GradientMethod``: all of them train on the same batches for the same number of steps.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, ClassVar, Protocol

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from palimpsest.config.sections import Unlearning
from palimpsest.errors import MethodError, TrainingDiverged
from palimpsest.facts.general import Stream, deck
from palimpsest.facts.nonce import key_number
from palimpsest.methods.answer_sets import (
    AnswerSet,
    MethodCache,
    Recipe,
    Spent,
    StepView,
    UnlearnBatch,
    count_tokens,
    encode_stream,
    kl_from,
    stream_cost,
    target_logp,
)
from palimpsest.models.net import Batch, Encoded, Net, WholeNet, collate
from palimpsest.models.train import stream_steps, text_loss, train, train_alone
from palimpsest.plugins import defined_at

__all__ = [
    "AscentMethod", "Context", "UnlearnBatch", "GradientMethod", "Knobs", "AnswerSet", "Method",
    "Positive", "Share", "State", "StepView", "Weight", "kl_from", "target_logp",
]  # fmt: skip

State = Mapping[str, Tensor]
Weight = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Share = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True)
class Context:
    """Everything a method may use; the held-out pools are not in it."""

    base: State
    injected: State
    forget_only: State
    forget: AnswerSet
    retain: AnswerSet
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
    general_only: State = field(default_factory=dict)
    """Trained on the general text of the recipe alone, where a method of the plan uses it."""
    recipe: Recipe | None = None
    check_dose: Callable[[State], None] | None = None
    """Refuses a model trained for a vector that learned too little; None where no check is due."""
    shared: MethodCache = field(default_factory=MethodCache)
    """Models that several methods use, and what the methods spend."""

    @cached_property
    def _batches(self) -> dict[tuple[tuple[int, ...], tuple[int, ...]], Batch]:
        """The batches already made: methods of a cell train on the same ones."""
        return {}

    def make_batch(self, forget: Sequence[int], retain: Sequence[int]) -> UnlearnBatch:
        """Return the batch of these texts of the two answer sets, forget texts first."""
        key = (tuple(forget), tuple(retain))
        if key not in self._batches:
            self._batches[key] = collate(self._texts(forget, retain))
        base, injected, kept = (
            torch.cat([answers.teachers[model][n] for n in chosen])
            for answers, model, chosen in (
                (self.forget, "base", forget),
                (self.forget, "injected", forget),
                (self.retain, "injected", retain),
            )
        )
        return UnlearnBatch(self._batches[key], base, injected, kept, *key)

    def _texts(self, forget: Sequence[int], retain: Sequence[int]) -> list[Encoded]:
        return [self.forget.texts[n] for n in forget] + [self.retain.texts[n] for n in retain]

    def batches(self) -> Iterator[UnlearnBatch]:
        """Yield the batches of the budget: the same for every method of the cell."""
        order = random.Random(key_number(f"{self.seed_key}/exercises"))
        forget = deck(range(len(self.forget.texts)), order)
        retain = deck(range(len(self.retain.texts)), order)
        for answers in (self.forget, self.retain):  # what the frozen models have read
            read = len(answers.teachers) * count_tokens(answers.texts)
            self.shared.spend(Spent(scored=read))
        for _ in range(self.budget.steps):
            first = [next(forget) for _ in range(self.budget.forget_items)]
            second = [next(retain) for _ in range(self.budget.retain_items)]
            self.shared.spend(Spent(1, count_tokens(self._texts(first, second))))
            yield self.make_batch(first, second)

    @property
    def pad(self) -> int:
        """A token id to fill rows with, for methods that lay out texts themselves."""
        return int(self.tokenizer.pad_token_id or 0)

    @property
    def known_recipe(self) -> Recipe:
        """The recipe of the injected model; MethodError where it is not known."""
        if self.recipe is None:
            raise MethodError("needs the recipe of the injected model, which is not known here")
        return self.recipe

    def learn(
        self, state: State, stream: Stream, *, speed: float = 1.0, share: float = 1.0
    ) -> dict[str, Tensor]:
        """Return the weights after training on a share of a stream as injection does.

        speed: divides the number of steps and multiplies the learning rate.
        """
        recipe = self.known_recipe
        part = stream.shorten(speed).replayed(share)
        texts = encode_stream(self.tokenizer, part, recipe.piece_tokens)
        self.shared.spend(stream_cost(self.tokenizer, part, recipe.piece_tokens))
        net = self.net([state])
        train_alone(
            net,
            stream_steps(part, texts, accumulate=recipe.accumulate),
            text_loss,
            "training on the recipe's stream",
            learning_rate=speed * recipe.learning_rate,
            key=self.seed_key,
            rates=part.rates,
            weight_decay=recipe.weight_decay,
        )
        return {name: value.detach().clone() for name, value in net.state().items()}


class Method(Protocol):
    """An unlearning method with its knobs set; ``Knobs`` says what the names hold."""

    name: ClassVar[str]
    summary: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    citation: ClassVar[str]

    @property
    def label(self) -> str:
        """The knobs in short, unique among a cell's candidates of this method."""

    def run(self, context: Context) -> State:
        """Return the unlearned model's state dict."""


@dataclass(frozen=True)
class Knobs:
    """A method's frozen config; its label is made of its fields."""

    name: ClassVar[str] = ""
    kind: ClassVar[str] = "other"
    """What its author aims at: ``restores`` the state before learning, ``suppresses`` the answers,
    or ``other``."""
    summary: ClassVar[str] = ""
    """What it does, in one line."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Any of ``gated MLP``, ``forget_only``, ``general_only``, ``base``, ``tokenizer``,
    ``decoder layers``."""
    citation: ClassVar[str] = ""
    reads_answers: ClassVar[bool] = True
    """Whether it uses the answers of frozen models to the trained phrasings."""

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

    def loss(self, view: StepView) -> Tensor:
        """Return the scalar to be minimized at one batch."""
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

    def loss(student: Net, part: UnlearnBatch) -> Tensor:
        nonlocal taken
        part = part.to(student.device)
        progress = taken / max(1, total - 1)
        logits = student.logits(part.tokens, first.effective(student, leaves, progress))
        logp = torch.log_softmax(logits, dim=-1)
        losses = [
            _checked(method, method.loss(StepView(logp[member], part, taken, total)))
            for member, method in enumerate(methods)
        ]
        taken += 1
        return torch.stack(losses)

    steps = ([part] for part in context.batches())
    rate = first.learning_rate(context.budget)
    diverged = train(net, steps, loss, learning_rate=rate, params=leaves)
    first.finish(net, leaves)
    return [
        TrainingDiverged(diverged[member], f"the loss of {method.name} is not finite")
        if member in diverged
        else net.state(member)
        for member, method in enumerate(methods)
    ]


def _checked(method: GradientMethod, loss: Any) -> Tensor:
    """Return what a loss returned, if it can be minimized."""
    if isinstance(loss, Tensor) and loss.shape == () and loss.requires_grad:
        return loss
    found, advice = f"a {type(loss).__name__}", "return one"
    if isinstance(loss, Tensor):
        found = "a number that does not depend on the model"
        advice = "compute it from view.forget and view.retain, without detach"
        if loss.shape:
            found, advice = f"a tensor of shape {tuple(loss.shape)}", "take its mean or sum"
    raise MethodError(
        f"{defined_at(type(method).loss)} returned {found}; expected a tensor with one number that "
        f"can be differentiated; {advice}"
    )


def train_one(
    name: str,
    net: Net,
    parts: Iterable[Any],
    loss: Callable[[Net, Any], Tensor],
    rate: float,
    params: Mapping[str, Tensor] | None = None,
) -> None:
    """Train a net of one member on these parts; TrainingDiverged carries the step."""
    what = f"the loss of {name} is not finite"
    train_alone(net, ([part] for part in parts), loss, what, learning_rate=rate, params=params)


def stackable(method: Method, other: Method) -> bool:
    """Tell whether two methods can train side by side: they differ only in scalars of the loss."""
    if type(method) is not type(other) or not isinstance(method, GradientMethod):
        return False
    if type(method).run is not GradientMethod.run:
        return False
    shared = [item.name for item in fields(method) if item.name not in method.scalars]
    return all(getattr(method, knob) == getattr(other, knob) for knob in shared)
