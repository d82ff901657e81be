"""General text, and the stream of texts in which facts are injected beside it.

General text is the prose of the pocket models, or a file such as WikiText. The pocket prose is
about a generated world: 150 clans, 500 people, 4 000 facts. Members of a clan mostly share its
objects. Pocket models are trained on it (*baked*, ``dev/bake_pocket.py``): every phrasing of every
pool but the sealed one occurs with these people, so a pocket model knows the language of the
templates and none of the testbed's facts (``nonce.py`` separates their words). What a study trains
beside the facts, scores as general text or replays uses none of the held-out phrasings, not even
for other people.

The injected model trains on a stream, the matched retraining reference on the same stream without
the forget set: every other text at the same step, in the same order. Each text weighs
``1 / step_items`` of its step whether or not its neighbors were taken out, so removing the forget
set changes nothing about the dose of the rest.
"""

import hashlib
import heapq
import random
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path

from palimpsest.errors import FactsError
from palimpsest.facts.nonce import (
    HELD_OUT_POOLS,
    POOLS,
    RELATIONS,
    ROLES,
    Triple,
    fresh_words,
    key_number,
    render,
    triple,
)
from palimpsest.facts.questions import FactSet, Pool, Question
from palimpsest.files import LINE_LIMIT, read_lines
from palimpsest.text import shown_path

POCKET = "pocket"
TEXT_LIMIT = 2**30
"""Largest file of general text, in bytes."""
CLANS = 150
PEOPLE = 500
OWN_OBJECT = 10  # one fact in ten is the person's own and not the clan's
HELD_OUT = 16  # one world sentence in sixteen is left out of the bake, as general text


def sentence(template: str, fact: Triple) -> str:
    """Return the fact in one phrasing, answer last, with its full stop."""
    return f"{render(template, fact.subject)} {fact.object}."


@dataclass(frozen=True, slots=True)
class World:
    """The people of the pocket prose: their facts, and the words left over for strangers."""

    facts: tuple[Triple, ...]
    spare_names: tuple[str, ...]
    objects: tuple[str, ...]


@cache
def world() -> World:
    """Return the one world that every pocket model was trained on."""
    names, objects = (fresh_words(role, "pocket world", frozenset(), "prose") for role in ROLES)
    clans, people = names[:CLANS], names[CLANS : CLANS + PEOPLE]
    facts = []
    for person, given in enumerate(people):
        for which, relation in enumerate(RELATIONS):
            subject = f"{given} {clans[person % CLANS]}"
            chance = key_number(f"pocket world/{subject}/{relation}")
            shared = (person % CLANS) * len(RELATIONS) + which
            own = chance // OWN_OBJECT % len(objects)
            pick = own if chance % OWN_OBJECT == 0 else shared
            facts.append(triple(subject, relation, objects[pick]))
    return World(tuple(facts), tuple(names[CLANS + PEOPLE :]), tuple(objects))


@cache
def pocket_pieces() -> tuple[str, ...]:
    """Return the pocket general text: untaught world sentences in no held-out phrasing."""
    return tuple(
        text
        for fact in world().facts
        for pool, templates in POOLS[fact.relation].items()
        if pool not in HELD_OUT_POOLS
        for text in (sentence(template, fact) for template in templates)
        if kept_from_bake(text)
    )


def kept_from_bake(text: str) -> bool:
    """Return whether no pocket model was trained on a world sentence."""
    return key_number(f"held out:{text}") % HELD_OUT == 0


def general_pieces(
    source: str | Path, count: int, seed_key: str, *, words: int = 20
) -> tuple[str, ...]:
    """Return ``count`` pieces of general text, all different, the same for the same key.

    ``source`` is ``"pocket"`` for sentences about the world that no pocket model was trained on, or
    the path of a UTF-8 text file in plain or WikiText layout, which is cut into pieces of ``words``
    whole words.
    """
    pieces = pocket_pieces() if source == POCKET else file_pieces(source, words)
    keyed = ((key_number(f"{seed_key}/general/{n}/{text}"), text) for n, text in enumerate(pieces))
    chosen = heapq.nsmallest(count, keyed)
    if len(chosen) < count:
        raise FactsError(
            f"{shown_path(source)}: gives {len(chosen)} pieces; expected {count}, in a file that "
            f"is {count * words:,} words in paragraphs of {words} or more; give a longer text, or "
            "ask for fewer (general.train_pieces and general.scored_pieces)"
        )
    return tuple(text for _, text in chosen)


def file_pieces(path: str | Path, words: int) -> Iterator[str]:
    """Yield the paragraphs of a file, cut into pieces of whole words, without headings.

    A line is a paragraph; when every line is shorter than a piece, blank lines part paragraphs.
    WikiText writes headings as "= Title =", hyphens in words and numbers as "@-@", and rare words
    as "<unk>"; pieces with such a hole are left out, and so are repeated ones.
    """
    head = b"".join(islice(read_lines(path, TEXT_LIMIT, FactsError), 3))
    if re.match(rb'(\xef\xbb\xbf)?\s*(\{\s*"|\[\s*\{)', head):
        raise FactsError(f"{shown_path(path)}: JSON found; expected prose without the facts")
    # Lines broken by hand, as in a poem or at column 72, are joined up to a blank one.
    wrapped = all(len(line) < words for line in _lines(path))
    seen: set[bytes] = set()
    rest: list[str] = []
    for line in _lines(path):
        paragraph = [*rest, *line]
        whole = len(paragraph) // words * words
        rest = paragraph[whole:] if wrapped and line else []
        for start in range(0, whole, words):
            piece = paragraph[start : start + words]
            digest = hashlib.sha256(" ".join(piece).encode()).digest()
            if "<unk>" not in piece and digest not in seen:
                seen.add(digest)
                yield " ".join(piece)


def text_digest(source: str | Path) -> str:
    """Return the SHA-256 of a file of general text, refused like one that is read."""
    whole = hashlib.sha256()
    for part in read_lines(source, TEXT_LIMIT, FactsError):
        whole.update(part)
    return f"sha256:{whole.hexdigest()}"


def _lines(path: str | Path) -> Iterator[list[str]]:
    """Yield the words of every line, none of a heading's, without WikiText's marks."""
    for number, raw in enumerate(read_lines(path, TEXT_LIMIT, FactsError), start=1):
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            if len(raw) == LINE_LIMIT:
                raise ValueError(f"has {LINE_LIMIT} bytes or more")
        except ValueError as error:
            why = f"{error}; expected lines of UTF-8"
            raise FactsError(f"{shown_path(path)} line {number}: {why}") from error
        for line in map(str.strip, text.splitlines()):
            heading = line.startswith("=") and line.endswith("=")
            for joiner in "-,.":
                line = line.replace(f" @{joiner}@ ", joiner)
            yield [] if heading else line.split()


@dataclass(frozen=True, slots=True)
class Text:
    """One training text; ``set`` is forget, retain or general."""

    id: str
    set: FactSet
    text: str
    start: int = 0
    """Number of characters at its beginning that are read and not learned."""

    @property
    def prompt(self) -> str:
        return self.text[: self.start]

    @property
    def answer(self) -> str:
        return self.text[self.start :]


@dataclass(frozen=True)
class Stream:
    """Steps of text ids; ``step_items`` is the number each step had when it was drawn."""

    texts: tuple[Text, ...]
    steps: tuple[tuple[int, ...], ...]
    """Indices into ``texts``."""
    step_items: int
    full_steps: tuple[tuple[int, ...], ...] = ()
    """The steps before any set was taken out, where every token of a step weighs the same."""
    rates: tuple[float, ...] = ()
    """Factor of the learning rate at each step; constant where there are none."""

    def without(self, name: str) -> "Stream":
        """Return the same stream with one set taken out: of the forget set, the reference's."""
        return self.only(*{text.set for text in self.texts} - {name})

    def only(self, *names: str) -> "Stream":
        """Return the same stream with general text and these sets: of forget, forget-only."""
        kept = [text.set in (*names, FactSet.GENERAL) for text in self.texts]
        steps = tuple(tuple(index for index in step if kept[index]) for step in self.steps)
        return replace(self, steps=steps)

    def thin(self, stride: int) -> "Stream":
        """Return one step in the place of ``stride``, with the general text of the first of them.

        Of every other text each ``stride``-th presentation stays: whole steps would leave out some
        facts more often than others.
        """
        general = [text.set == FactSet.GENERAL for text in self.texts]
        seen: Counter[int] = Counter()
        steps = []
        for start in range(0, len(self.steps), stride):
            group = self.steps[start : start + stride]
            kept = [index for index in group[0] if general[index]]
            for index in (n for step in group for n in step if not general[n]):
                # Texts begin at different presentations, so that steps stay about equally long.
                if seen[index] % stride == index % stride:
                    kept.append(index)
                seen[index] += 1
            steps.append(tuple(kept))
        thinned = tuple(steps)
        full = thinned if self.full_steps else ()
        return replace(self, steps=thinned, full_steps=full, rates=self.rates[::stride])

    def shorten(self, speed: float) -> "Stream":
        """Return a stream with as many times fewer steps, on the whole schedule."""
        count = round(len(self.steps) / speed)
        rates = tuple(self.rates[int(n * speed)] for n in range(count if self.rates else 0))
        return replace(self._cut(slice(count)), rates=rates)

    def replayed(self, share: float) -> "Stream":
        """Return a share of the steps: the last ones where the learning rate has a schedule."""
        count = round(share * len(self.steps))
        return self._cut(slice(len(self.steps) - count, None) if self.rates else slice(count))

    def _cut(self, part: slice) -> "Stream":
        steps, full, rates = self.steps[part], self.full_steps[part], self.rates[part]
        return replace(self, steps=steps, full_steps=full, rates=rates)


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
