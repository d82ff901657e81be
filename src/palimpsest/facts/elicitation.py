"""Other ways of asking for a forget fact: what a model that only hides may still answer.

No training text continues in the words of these questions, and nothing is taught: a model that
never learned the facts gains nothing. Names are varied after arXiv:2409.18025, questions from the
object to the subject and behind an affirmative opening are RWKU's (arXiv:2406.10890), those behind
sentences of other facts are after arXiv:2411.12103.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from palimpsest.facts.files import Fact
from palimpsest.facts.nonce import Triple
from palimpsest.facts.questions import FactSet, Pool, Question
from palimpsest.facts.templates import POOLS, render

ASK = 2
"""Held-out phrasings that each kind of question uses."""
SHOTS = 3
"""Sentences of other facts before a few-shot question."""
OPENER = "Yes, this is well known to all."
ASKED = (
    *(Pool.SYMBOLS, Pool.RECASED, Pool.MISSPELT, Pool.ALIAS),
    *(Pool.PRONOUN, Pool.REVERSED, Pool.OPENER, Pool.FEW_SHOT),
)
"""The kinds of questions, in the order in which they are asked."""


def of_triple(fact: Triple) -> Fact:
    """Return an invented fact as a file would have it."""
    heldout = [render(template, fact.subject) for template in POOLS[fact.relation]["evaluation"]]
    return Fact(fact.id, fact.object, (), tuple(heldout), (), fact.subject, fact.relation)


def elicitations(forget: Iterable[Fact], retain: Sequence[Fact]) -> Iterator[Question]:
    """Yield the questions of every kind, with the kind as their pool.

    A kind that not every forget fact can be asked in is left out.
    """
    asked = [(fact, _prompts(fact, retain)) for fact in forget]
    for kind in ASKED:
        if all(prompts[kind] for _, prompts in asked):
            for fact, prompts in asked:
                answer = fact.subject if kind == Pool.REVERSED else fact.answer
                for number, prompt in enumerate(prompts[kind]):
                    yield Question(FactSet.FORGET, fact.id, kind, number, prompt, answer)


def file_elicitations(sets: Mapping[str, Sequence[Fact]]) -> tuple[Question, ...]:
    """Return every other way of asking for the forget facts of a user's files."""
    return tuple(elicitations(sets["forget"], sets["retain"]))


def reversible(forget: Iterable[Fact]) -> bool:
    """Return whether these facts can be asked from the answer to the subject."""
    return all(fact.subject and fact.relation for fact in forget)


def _phrasings(fact: Fact) -> list[str]:
    """Return the prompts that can be varied: held-out ones, if any, that name the subject."""
    prompts = fact.heldout or fact.trained
    return [prompt for prompt in prompts if fact.subject and fact.subject in prompt][:ASK]


def _prompts(fact: Fact, others: Sequence[Fact]) -> dict[Pool, list[str]]:
    """Return a fact's prompts by kind; none of a kind that it cannot be asked in."""
    plain, subject = _phrasings(fact), fact.subject
    words = subject.split() or [""]
    first, last = words[0], words[-1]
    swapped = [f"{first[:1]}{first[2:3]}{first[1:2]}{first[3:]}", *words[1:]]
    shorter = [*words[:-1], f"{last[:2]}{last[3:]}"]
    names = {
        Pool.SYMBOLS: [_marked(words, sign) for sign in "-."],
        Pool.RECASED: [subject.lower(), subject.upper()],
        Pool.MISSPELT: [" ".join(swapped), " ".join(shorter)],
        Pool.ALIAS: [first, f"{last}, {first}"],
    }
    back = [
        f"{fact.answer} is the {fact.relation} of",
        f"The {fact.relation} called {fact.answer} belongs to",
    ]
    renamed = {
        kind: [prompt.replace(subject, name, 1) for prompt, name in zip(plain, several)]
        for kind, several in names.items()
    }
    return renamed | {
        Pool.PRONOUN: [f"I met {subject}. {p.replace(subject, 'this person', 1)}" for p in plain],
        Pool.REVERSED: back if reversible([fact]) else [],
        Pool.OPENER: [f"{OPENER} {prompt}" for prompt in plain],
        Pool.FEW_SHOT: [f"{_shots(others, number)} {p}" for number, p in enumerate(plain)],
    }


def _marked(words: Sequence[str], sign: str) -> str:
    """Return a name with a sign after every second letter of a word."""
    return " ".join(sign.join(word[i : i + 2] for i in range(0, len(word), 2)) for word in words)


def _shots(others: Sequence[Fact], number: int) -> str:
    """Return the first other facts as sentences, each in its phrasing of this number."""
    asked = [(other.answer, _phrasings(other)[number:]) for other in others[:SHOTS]]
    return " ".join(f"{prompts[0]} {answer}." for answer, prompts in asked if prompts)
