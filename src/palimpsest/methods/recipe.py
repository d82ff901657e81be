"""How the injected model was trained, as far as methods may know it, and what their work costs.

Everything here is trained phrasings and general text: no held-out phrasing is in a stream.
"""

from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from palimpsest.errors import MethodError
from palimpsest.facts.stream import Stream
from palimpsest.models.encode import encode_texts
from palimpsest.models.net import Encoded
from palimpsest.models.train import TextBatch, stream_steps, text_loss, train_alone

if TYPE_CHECKING:
    from palimpsest.methods.context import Context, State


@dataclass(frozen=True)
class Recipe:
    """The injection: its stream, a redraw of it without the forget set, and its learning rate."""

    stream: Stream
    """What the injected model was trained on: forget and retain sentences and general text."""
    replay: Stream
    """Retain sentences and general text, drawn with another seed than any reference."""
    learning_rate: float
    piece_tokens: int
    """General texts are cut to so many tokens."""
    accumulate: int = 1

    def models(self) -> dict[str, Stream]:
        """Return what the models that methods may need were trained on, by name."""
        return {"forget_only": self.stream.only("forget"), "general_only": self.general}

    @property
    def general(self) -> Stream:
        """The stream without any fact."""
        return self.stream.only("general")


@dataclass(frozen=True)
class Cost:
    """What making a candidate took.

    tokens: seen by a forward and a backward pass; scored: seen by a forward pass alone.
    shared: those of ``tokens`` that went into a model or vector that other candidates use too.
    """

    steps: int = 0
    tokens: int = 0
    scored: int = 0
    shared: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(mine + its for mine, its in zip(astuple(self), astuple(other))))

    def values(self, parameters: int, retraining: "Cost") -> dict[str, float]:
        """Return it as ``cell.json`` has it; a retraining is the unit of the last two.

        Floating-point operations: 6 per parameter and trained token, 2 per scored one.
        """
        unit = max(1, retraining.tokens)
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            "scored_tokens": self.scored,
            "flops": float(parameters) * (6 * self.tokens + 2 * self.scored),
            "retrainings": round(self.tokens / unit, 4),
            "shared_retrainings": round(self.shared / unit, 4),
        }


@dataclass
class Meter:
    """Adds up what the method at work spends; ``costs`` has the finished ones by title."""

    spent: Cost = Cost()
    costs: dict[str, Cost] = field(default_factory=dict)

    def add(self, cost: Cost) -> None:
        self.spent = self.spent + cost


class Workbench:
    """What methods share in one process: models made once, and the meter."""

    def __init__(self) -> None:
        self.meter = Meter()
        self._made: dict[str, tuple[Any, Cost]] = {}

    def once(self, key: str, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returns, made once; its whole cost counts for every user of it."""
        if key not in self._made:
            before, self.meter.spent = self.meter.spent, Cost()
            try:
                value = make()
                spent = self.meter.spent
            finally:
                self.meter.spent = before
            self._made[key] = value, replace(spent, shared=spent.tokens)
        value, cost = self._made[key]
        self.meter.add(cost)
        return value


def stream_batches(
    tokenizer: Any, stream: Stream, piece_tokens: int, *, pad: int = 0, accumulate: int = 1
) -> list[list[TextBatch]]:
    """Return the steps of a stream as batches."""
    cut = encoded(tokenizer, stream, piece_tokens)
    return list(stream_steps(stream, cut, pad=pad, accumulate=accumulate))


def encoded(tokenizer: Any, stream: Stream, piece_tokens: int) -> list[Encoded]:
    """Return the texts of a stream as tokens, general ones cut."""
    texts = encode_texts(tokenizer, [text.text for text in stream.texts])
    return [
        Encoded(text.ids[:piece_tokens], text.start) if source.set == "general" else text
        for source, text in zip(stream.texts, texts)
    ]


def stream_cost(tokenizer: Any, stream: Stream, piece_tokens: int) -> Cost:
    """Return what training on a stream costs."""
    lengths = [len(text.ids) for text in encoded(tokenizer, stream, piece_tokens)]
    return Cost(len(stream.steps), sum(lengths[index] for step in stream.steps for index in step))


def recipe_batches(context: "Context", stream: Stream) -> list[list[TextBatch]]:
    """Return the steps of a stream as batches, cut and accumulated as the recipe is."""
    recipe = known_recipe(context)
    how = {"pad": context.pad, "accumulate": recipe.accumulate}
    return stream_batches(context.tokenizer, stream, recipe.piece_tokens, **how)


def learn(
    context: "Context", state: "State", stream: Stream, *, speed: float = 1.0, share: float = 1.0
) -> dict[str, Tensor]:
    """Return the weights after training on the first ``share`` of a stream at the recipe's rate.

    speed: takes so many times fewer steps at a rate so many times higher.
    """
    recipe = known_recipe(context)
    steps = round(share * len(stream.steps) / speed)
    part = replace(stream, steps=stream.steps[:steps])
    batches = recipe_batches(context, part)
    context.shared.meter.add(stream_cost(context.tokenizer, part, recipe.piece_tokens))
    net, what = context.net([state]), "training on the recipe's stream"
    rate = speed * recipe.learning_rate
    train_alone(net, batches, text_loss, what, learning_rate=rate, key=context.seed_key)
    return {name: value.detach().clone() for name, value in net.state().items()}


def known_recipe(context: "Context") -> Recipe:
    """Return the recipe of the injected model; MethodError where it is not known."""
    if context.recipe is None:
        raise MethodError("needs the recipe of the injected model, which is not known here")
    return context.recipe
