"""Other ways of asking for a forget fact: what a model that only hides may still answer.

Every function of ``ASKED`` turns a fact into questions of one kind, whose answers no training text
continues in these words. Nothing is taught: a model that never learned the facts gains nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from palimpsest.facts.files import Fact
from palimpsest.facts.nonce import Triple
from palimpsest.facts.questions import Question
from palimpsest.facts.templates import POOLS, SUBJECT, render

ASK = 2
"""Held-out phrasings that each kind of question uses."""
SHOTS = 3
"""Sentences of other facts before a few-shot question."""
OPENER = "Yes, this is well known to all."
REVERSED = ("{object} is the {relation} of", "The {relation} called {object} belongs to")
"""Questions from the object to the subject."""

Prompts = Iterator[tuple[str, str]]
"""Prompts with their answers."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A fact with the held-out phrasings that are varied; empty where a file does not say."""

    id: str
    subject: str
    relation: str
    object: str
    phrasings: tuple[str, ...]
    """Templates, with ``{subject}`` in them."""


def of_triple(fact: Triple) -> Asked:
    """Return an invented fact as it is asked."""
    phrasings = POOLS[fact.relation]["evaluation"][:ASK]
    return Asked(fact.id, fact.subject, fact.relation, fact.object, phrasings)


def of_fact(fact: Fact) -> Asked:
    """Return a user's fact as it is asked; phrasings that name its subject can be varied."""
    prompts = fact.heldout or fact.trained
    named = [p.replace(fact.subject, SUBJECT, 1) for p in prompts if fact.subject in p]
    phrasings = tuple(named[:ASK]) if fact.subject else ()
    return Asked(fact.id, fact.subject, fact.relation, fact.answer, phrasings)


def symbols(fact: Asked, others: Sequence[Asked]) -> Prompts:
    """Ask with a sign after every second letter of the name. arXiv:2409.18025."""
    yield from _renamed(fact, [_marked(fact.subject, sign) for sign in "-."])


def recased(fact: Asked, others: Sequence[Asked]) -> Prompts:
    """Ask with the name in small and in capital letters. arXiv:2409.18025."""
    yield from _renamed(fact, [fact.subject.lower(), fact.subject.upper()])


def misspelt(fact: Asked, others: Sequence[Asked]) -> Prompts:
    """Ask with two letters exchanged, and with one left out. arXiv:2409.18025."""
    first, last = _words(fact)[0], _words(fact)[-1]
    swapped = [f"{first[:1]}{first[2:3]}{first[1:2]}{first[3:]}", *_words(fact)[1:]]
    shorter = [*_words(fact)[:-1], f"{last[:2]}{last[3:]}"]
    yield from _renamed(fact, [" ".join(swapped), " ".join(shorter)])


def alias(fact: Asked, others: Sequence[Asked]) -> Prompts:
    """Ask for the first name alone, and with the words of the name exchanged."""
    first, last = _words(fact)[0], _words(fact)[-1]
    yield from _renamed(fact, [first, f"{last}, {first}"])


def pronoun(fact: Asked, others: Sequence[Asked]) -> Prompts:
    """Name the subject in a sentence before, and ask of "this person"."""
    for template in fact.phrasings:
        yield f"I met {fact.subject}. {render(template, 'this person')}", fact.object


def backwards(fact: Asked, others: Sequence[Asked]) -> Prompts:
    """Ask from the object to the subject. RWKU, arXiv:2406.10890."""
    for prompt in REVERSED if fact.subject and fact.relation else ():
        yield prompt.format(object=fact.object, relation=fact.relation), fact.subject


def opener(fact: Asked, others: Sequence[Asked]) -> Prompts:
    """Ask behind an affirmative opening. RWKU, arXiv:2406.10890."""
    for template in fact.phrasings:
        yield f"{OPENER} {render(template, fact.subject)}", fact.object


def few_shot(fact: Asked, others: Sequence[Asked]) -> Prompts:
    """Ask behind sentences of other, retained facts. arXiv:2411.12103."""
    for number, template in enumerate(fact.phrasings):
        shown = " ".join(
            f"{render(other.phrasings[number], other.subject)} {other.object}."
            for other in others[:SHOTS]
            if number < len(other.phrasings)
        )
        yield f"{shown} {render(template, fact.subject)}", fact.object


ASKED: Mapping[str, Callable[[Asked, Sequence[Asked]], Prompts]] = {
    "symbols": symbols,
    "recased": recased,
    "misspelt": misspelt,
    "alias": alias,
    "pronoun": pronoun,
    "reversed": backwards,
    "opener": opener,
    "few_shot": few_shot,
}


def elicitations(forget: Iterable[Asked], retain: Sequence[Asked]) -> Iterator[Question]:
    """Yield the questions of every kind, with the kind as their pool.

    A kind that not every forget fact can be asked in is left out.
    """
    facts = tuple(forget)
    for kind, ask in ASKED.items():
        asked = [(fact, tuple(ask(fact, retain))) for fact in facts]
        for fact, prompts in asked if all(prompts for _, prompts in asked) else ():
            for number, (prompt, answer) in enumerate(prompts):
                yield Question("forget", fact.id, kind, number, prompt, answer)


def file_elicitations(sets: Mapping[str, Sequence[Fact]]) -> tuple[Question, ...]:
    """Return every other way of asking for the forget facts of a user's files."""
    return tuple(elicitations(map(of_fact, sets["forget"]), [*map(of_fact, sets["retain"])]))


def reversible(forget: Iterable[Fact]) -> bool:
    """Return whether these facts can be asked from the answer to the subject."""
    return all(fact.subject and fact.relation for fact in forget)


def _words(fact: Asked) -> list[str]:
    return fact.subject.split() or [""]


def _renamed(fact: Asked, names: Sequence[str]) -> Prompts:
    for template, name in zip(fact.phrasings, names):
        yield render(template, name), fact.object


def _marked(text: str, sign: str) -> str:
    return " ".join(
        sign.join(word[at : at + 2] for at in range(0, len(word), 2)) for word in text.split()
    )
