"""How the injected model was trained, as far as methods may know it, and what their work costs.

Everything here is trained phrasings and general text: no held-out phrasing is in a stream.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from palimpsest.facts.general import Stream, Text
from palimpsest.facts.questions import Question
from palimpsest.models.encode import encode_answers, encode_texts
from palimpsest.models.net import Encoded
from palimpsest.models.train import TextBatch, stream_steps


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

    def models(self) -> dict[str, Stream]:
        """Return what the models that methods may need were trained on, by name."""
        sets = {"forget_only": "forget", "general_only": "general"}
        return {model: self.stream.only(name) for model, name in sets.items()}


@dataclass(frozen=True)
class CandidateCost:
    """A candidate's cost as stored: the last two in units of one retraining."""

    steps: int
    tokens: int
    scored_tokens: int
    flops: float
    retrainings: float
    shared_retrainings: float


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

    def in_retrainings(self, parameters: int, retraining: "Cost") -> CandidateCost:
        """Return the cost as it is stored, given the model's size and the cost of a retraining."""
        # Floating-point operations: 6 per parameter and trained token, 2 per scored one.
        work = (self.tokens + self.scored / 3, self.shared)
        flops = 6.0 * parameters * work[0]
        shares = [round(part / max(1, retraining.tokens), 4) for part in work]
        return CandidateCost(self.steps, self.tokens, self.scored, flops, *shares)


@dataclass(frozen=True)
class CostPlan:
    """What a method's cost is counted from before anything is trained."""

    recipe: Recipe
    tokenizer: Any
    exercises: Cost
    """Of all steps of a gradient method, with what the frozen models read."""

    def stream(self, stream: Stream) -> Cost:
        """Return what training on a stream of the recipe costs."""
        return stream_cost(self.tokenizer, stream, self.recipe.piece_tokens)

    def models(self, used: Collection[str]) -> Cost:
        """Return what the models cost that a method uses and others may use too."""
        return sum(
            (self.stream(stream) for name, stream in self.recipe.models().items() if name in used),
            Cost(),
        )

    def texts(self) -> list[Encoded]:
        """Return the texts of the injection's stream as tokens."""
        return encode_stream(self.tokenizer, self.recipe.stream, self.recipe.piece_tokens)


class Workbench:
    """What methods share in one process: models made once, and what the work costs."""

    def __init__(self) -> None:
        self.spent = Cost()
        """By the method at work."""
        self.costs: dict[str, Cost] = {}
        """Of finished candidates, by title."""
        self._made: dict[str, tuple[Any, Cost]] = {}

    def spend(self, cost: Cost) -> None:
        self.spent = self.spent + cost

    def once(self, key: str, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returns, made once; its whole cost counts for every user of it."""
        if key not in self._made:
            before, self.spent = self.spent, Cost()
            try:
                value = make()
                self._made[key] = value, replace(self.spent, shared=self.spent.tokens)
            finally:
                self.spent = before
        value, cost = self._made[key]
        self.spend(cost)
        return value


def stream_batches(
    tokenizer: Any, stream: Stream, piece_tokens: int, *, pad: int = 0, accumulate: int = 1
) -> list[list[TextBatch]]:
    """Return the steps of a stream as batches."""
    texts = encode_stream(tokenizer, stream, piece_tokens)
    return list(stream_steps(stream, texts, pad=pad, accumulate=accumulate))


def stream_cost(tokenizer: Any, stream: Stream, piece_tokens: int) -> Cost:
    """Return what training on a stream costs."""
    lengths = [len(text.ids) for text in encode_stream(tokenizer, stream, piece_tokens)]
    return Cost(len(stream.steps), sum(lengths[index] for step in stream.steps for index in step))


def encode_stream(tokenizer: Any, stream: Stream, piece_tokens: int) -> list[Encoded]:
    """Return the texts of a stream as tokens; general ones cut, but not a user's examples."""
    texts = encode_items(tokenizer, stream.texts)
    if stream.drawn:
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
