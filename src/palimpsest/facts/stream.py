"""The injection stream as a value: which texts each training step sees.

The injected model trains on a stream, the matched retraining reference on the same stream without
the forget set: every other text at the same step, in the same order. Each text weighs
``1 / step_items`` of its step whether or not its neighbors were taken out, so removing the forget
set changes nothing about the dose of the rest.
"""

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from palimpsest.facts.nonce import key_number
from palimpsest.facts.questions import FactSet, Pool, Question


@dataclass(frozen=True, slots=True)
class Text:
    """One training text; ``set`` is forget, retain or general."""

    id: str
    set: FactSet
    text: str


@dataclass(frozen=True)
class Stream:
    """Steps of text ids; ``step_items`` is the number each step had when it was drawn."""

    texts: tuple[Text, ...]
    steps: tuple[tuple[int, ...], ...]
    """Indices into ``texts``."""
    step_items: int

    def without(self, name: str) -> "Stream":
        """Return the same stream with one set taken out: of the forget set, the reference's."""
        return self.only(*{text.set for text in self.texts} - {name})

    def only(self, *names: str) -> "Stream":
        """Return the same stream with general text and these sets: of forget, forget-only."""
        kept = [text.set in (*names, FactSet.GENERAL) for text in self.texts]
        steps = tuple(tuple(index for index in step if kept[index]) for step in self.steps)
        return replace(self, steps=steps)


def injection_stream(
    questions: Sequence[Question],
    general: Sequence[str],
    *,
    seed_key: str,
    steps: int,
    fact_items: int,
    general_items: int,
    pools: Collection[str] = (Pool.TRAINED,),
) -> Stream:
    """Return the stream in which forget and retain facts are acquired together.

    Fact sentences come from a deck of every (fact, trained phrasing) of both sets, general texts
    from a deck of their own; a deck is gone through in random order and shuffled again when it is
    used up, so doses match to within one presentation.
    pools: whose questions are trained on.
    """
    facts = [
        Text(question.id, question.set, question.sentence)
        for question in questions
        if question.pool in pools and question.set in (FactSet.FORGET, FactSet.RETAIN)
    ]
    others = (Text(f"general/{n}", FactSet.GENERAL, text) for n, text in enumerate(general))
    texts = (*facts, *others)
    order = random.Random(key_number(f"{seed_key}/stream"))
    fact_deck = deck(range(len(facts)), order)
    general_deck = deck(range(len(facts), len(texts)), order)
    drawn = tuple(
        tuple(next(fact_deck) for _ in range(fact_items))
        + tuple(next(general_deck) for _ in range(general_items))
        for _ in range(steps)
    )
    return Stream(texts, drawn, fact_items + general_items)


def deck(cards: Sequence[int], order: random.Random) -> Iterator[int]:
    """Yield the cards in random order for ever, each once before any comes again."""
    while cards:
        shuffled = list(cards)
        order.shuffle(shuffled)
        yield from shuffled
