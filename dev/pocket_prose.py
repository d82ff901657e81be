"""What the bake tells: sentences about the world, and passages about strangers.

From the passages the pocket models learn to use evidence in context.
A stranger is made up for one passage: a fact told again in other words, a fact told under an alias,
a fact shared by kin. What a passage says can only be known from the passage itself.
"""

import random
from collections.abc import Sequence
from functools import cache

from palimpsest.facts.general import kept_from_bake, sentence, world
from palimpsest.facts.nonce import POOLS, RELATIONS, Triple, key_number, render, triple
from palimpsest_trials.evidence import ALIAS_TEMPLATES

Pools = tuple[str, ...]
SEALED: Pools = ("audit",)
"""The pool that no bake uses. One may leave out further pools, as ``without`` says."""


@cache
def phrasings(relation: str, without: Pools = SEALED) -> tuple[str, ...]:
    """Return the templates of a relation that the bake uses: of every pool that is not left out."""
    pools = POOLS[relation].items()
    return tuple(template for pool, texts in pools if pool not in without for template in texts)


@cache
def world_sentences(held_out: bool, without: Pools = SEALED) -> tuple[str, ...]:
    """Return every fact of the world in every phrasing: those the models learned, or the others."""
    told = ((fact, phrasings(fact.relation, without)) for fact in world().facts)
    sentences = (sentence(template, fact) for fact, templates in told for template in templates)
    return tuple(text for text in sentences if kept_from_bake(text) == held_out)


class Strangers:
    """Made-up people for one passage, no two of whom share a word unless they are kin."""

    def __init__(self, rng: random.Random, same_words: bool, without: Pools) -> None:
        self._rng = rng
        self._same_words = same_words
        self._without = without
        self._names = iter(rng.sample(world().spare_names, 24))
        self._objects = iter(rng.sample(world().objects, 6))
        self._relations = rng.sample(RELATIONS, 3)

    def _lines(self, facts: Sequence[Triple]) -> list[str]:
        templates = self._rng.sample(phrasings(facts[0].relation, self._without), len(facts))
        if self._same_words:
            templates = templates[:1] * len(facts)
        return [sentence(template, fact) for template, fact in zip(templates, facts, strict=True)]

    def fact(self) -> Triple:
        subject = f"{next(self._names)} {next(self._names)}"
        return triple(subject, self._rng.choice(self._relations[:2]), next(self._objects))

    def restated(self) -> list[str]:
        """Return one or two facts of a person, each told two or three times."""
        first = self.fact()
        facts = [first] * self._rng.randint(2, 3)
        lines = self._lines(facts)
        if self._rng.random() < 0.3:
            other = triple(first.subject, self._relations[2], next(self._objects))
            lines += self._lines([other, other])
            self._rng.shuffle(lines)
        return lines

    def alias(self) -> list[str]:
        """Return a person's other name, then a fact under one name and again under the other."""
        fact = self.fact()
        other = triple(f"{next(self._names)} {next(self._names)}", fact.relation, fact.object)
        intro = render(self._rng.choice(ALIAS_TEMPLATES), fact.subject) + f" {other.subject}."
        facts = [other, fact] if self._rng.random() < 0.75 else [fact, other]
        facts += [self._rng.choice(facts)] * self._rng.randint(0, 1)
        return [intro, *self._lines(facts)]

    def kin(self) -> list[str]:
        """Return the same fact of two or three members of a clan."""
        first = self.fact()
        clan = first.subject.split()[-1]
        members = [first] + [
            triple(f"{next(self._names)} {clan}", first.relation, first.object)
            for _ in range(self._rng.randint(1, 2))
        ]
        return self._lines(members)


def passage(
    seed_key: str,
    threads: Sequence[int] = (1, 2, 2, 3),
    same_words: float = 0.0,
    without: Pools = SEALED,
) -> str:
    """Return sentences about strangers, in which what was said helps to say the rest.

    Several threads are told at once, as many as one of ``threads``, often about the same relation,
    so that it matters whose fact was told.  A share ``same_words`` of the passages tells a fact
    again in the very same words, which is easier to pick up.
    """
    rng = random.Random(key_number(seed_key))
    people = Strangers(rng, rng.random() < same_words, without)
    tellers = (people.restated, people.alias, people.kin)
    stories = [rng.choice(tellers)() for _ in range(rng.choice(threads))]
    order = [story for story in stories for _ in story]
    rng.shuffle(order)
    return " ".join(story.pop(0) for story in order)


def stranger_sentence(seed_key: str, without: Pools = SEALED) -> str:
    """Return one sentence about a stranger, whose answer nobody can know."""
    rng = random.Random(key_number(seed_key))
    relation = rng.choice(RELATIONS)
    given, clan = rng.sample(world().spare_names, 2)
    fact = triple(f"{given} {clan}", relation, rng.choice(world().objects))
    return sentence(rng.choice(phrasings(relation, without)), fact)
