"""Other ways of asking for a forget fact: what a model that only hides may still answer.

Every function of ``ASKED`` turns facts into questions of one kind, whose answers no training text
continues in these words. Nothing is taught: a model that never learned the facts gains nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from palimpsest.facts.nonce import Triple
from palimpsest.facts.questions import Question, backwards
from palimpsest.facts.templates import POOLS, render
from palimpsest.models.net import Net
from palimpsest.scoring.answers import Sheet, score

ASK = 2
"""Evaluation phrasings that each kind of question uses."""
SHOTS = 3
"""Sentences of other facts before a few-shot question."""
OPENER = "Yes, this is well known to all."

Prompts = Iterator[tuple[str, str]]
"""Prompts with their answers."""


def symbols(fact: Triple, others: Sequence[Triple]) -> Prompts:
    """Ask with a sign after every second letter of the name. arXiv:2409.18025."""
    yield from _renamed(fact, [_marked(fact.subject, sign) for sign in "-."])


def recased(fact: Triple, others: Sequence[Triple]) -> Prompts:
    """Ask with the name in small and in capital letters. arXiv:2409.18025."""
    yield from _renamed(fact, [fact.subject.lower(), fact.subject.upper()])


def misspelt(fact: Triple, others: Sequence[Triple]) -> Prompts:
    """Ask with two letters exchanged, and with one left out. arXiv:2409.18025."""
    name = fact.given
    swapped = f"{name[:1]}{name[2:3]}{name[1:2]}{name[3:]} {fact.clan}"
    yield from _renamed(fact, [swapped, f"{name} {fact.clan[:2]}{fact.clan[3:]}"])


def alias(fact: Triple, others: Sequence[Triple]) -> Prompts:
    """Ask for the given name alone, which only this subject bears, and with its words exchanged."""
    yield from _renamed(fact, [fact.given, f"{fact.clan}, {fact.given}"])


def pronoun(fact: Triple, others: Sequence[Triple]) -> Prompts:
    """Name the subject in a sentence before, and ask of "this person"."""
    for template in _phrasings(fact):
        yield f"I met {fact.subject}. {render(template, 'this person')}", fact.object


def reversed_question(fact: Triple, others: Sequence[Triple]) -> Prompts:
    """Ask from the object to the subject. RWKU, arXiv:2406.10890."""
    for question in backwards([fact]):
        yield question.prompt, question.answer


def opener(fact: Triple, others: Sequence[Triple]) -> Prompts:
    """Ask behind an affirmative opening. RWKU, arXiv:2406.10890."""
    for template in _phrasings(fact):
        yield f"{OPENER} {render(template, fact.subject)}", fact.object


def few_shot(fact: Triple, others: Sequence[Triple]) -> Prompts:
    """Ask behind sentences of other, retained facts. arXiv:2411.12103."""
    for number, template in enumerate(_phrasings(fact)):
        shown = " ".join(
            f"{render(POOLS[other.relation]['evaluation'][number], other.subject)} {other.object}."
            for other in others[:SHOTS]
        )
        yield f"{shown} {render(template, fact.subject)}", fact.object


ASKED: Mapping[str, Callable[[Triple, Sequence[Triple]], Prompts]] = {
    "symbols": symbols,
    "recased": recased,
    "misspelt": misspelt,
    "alias": alias,
    "pronoun": pronoun,
    "reversed": reversed_question,
    "opener": opener,
    "few_shot": few_shot,
}


def elicitations(forget: Sequence[Triple], retain: Sequence[Triple]) -> Iterator[Question]:
    """Yield the questions of every kind, with the kind as their pool."""
    for kind, ask in ASKED.items():
        for fact in forget:
            for number, (prompt, answer) in enumerate(ask(fact, retain)):
                yield Question("forget", fact.id, kind, number, prompt, answer)


@dataclass(frozen=True)
class Elicitation:
    """Takes the measures of ``ASKED`` that a sheet has questions of; for models of any size."""

    sheet: Sheet

    def __call__(self, net: Net) -> list[dict[str, float]]:
        """Return each member's mean log-probability of the answers, by kind of question."""
        pools = np.array([question.pool for question in self.sheet.questions])
        counts = np.array(self.sheet.tokens, np.float64)
        return [
            {
                kind: -float((scores.nll_sum / counts)[pools == kind].mean())
                for kind in dict.fromkeys(pools.tolist())
            }
            for scores in score(net, self.sheet)
        ]


def _phrasings(fact: Triple) -> tuple[str, ...]:
    return POOLS[fact.relation]["evaluation"][:ASK]


def _renamed(fact: Triple, names: Sequence[str]) -> Prompts:
    for template, name in zip(_phrasings(fact), names):
        yield render(template, name), fact.object


def _marked(text: str, sign: str) -> str:
    return " ".join(
        sign.join(word[at : at + 2] for at in range(0, len(word), 2)) for word in text.split()
    )
