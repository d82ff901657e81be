"""Never-learned probes matched to the forget facts, about people who do not exist.

``generated_probes`` asks a forget fact's own held-out prompts about invented names.
``tofu_probes`` asks questions in TOFU's form (``tofu_phrases.json``), of the same kind as a forget
item and of nearly as many words: names are no words of the data, everything else in an answer is
plain English drawn at random, as in TOFU, so a probe is as guessable as a forget item.
"""

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product

from palimpsest.errors import FactsError
from palimpsest.facts.files import Fact, words
from palimpsest.facts.nonce import fresh_words, key_number, packaged
from palimpsest.text import shown

WORDS_LIMIT = 4
"""Longest answer, in words, that an invented name can replace."""
ASSUMES = (
    "Generated probes assume that the answers to forget are names, that training would change an "
    "invented name's score as much as a real one's, and that no model was trained on the invented "
    "names. Scores are relative to base, so it does not matter if names are merely harder to "
    "guess; answers of another kind (dates, sentences, common words) do matter. Probes of your own "
    "that resemble the forget facts are better."
)

PLAIN = "Question: {}\nAnswer:"
"""The prompt of a question as TOFU's Phi models were taught; ``{}`` is the question alone."""
_PHRASES = packaged(
    "tofu_phrases.json", "6547adf47e0a829c3e6342758218d98d3395253b3e4394e9f3d7748ed91ea203"
)
KINDS: Mapping[str, str] = _PHRASES["kinds"]
"""What a question asks for, by the first pattern that it matches; else ``other``."""
QUESTIONS: Mapping[str, list[str]] = _PHRASES["questions"]
ANSWERS: Mapping[str, list[str]] = _PHRASES["answers"]
MORE: list[str] = _PHRASES["more"]
"""Further sentences, which bring an answer to the length of the one it is matched to."""
WORDS: Mapping[str, list[str]] = _PHRASES["words"]


def generated_probes(
    forget: Sequence[Fact], count: int, others: Iterable[Fact] = (), key: str = "audit/probes"
) -> tuple[Fact, ...]:
    """Return ``count`` probes matched to the forget facts in turn, the same for the same facts."""
    known = [*forget, *others]
    taken = frozenset(
        re.sub(r"[^\w\s]", " ", text)
        for fact in known
        for text in (fact.answer, fact.subject, *fact.trained, *fact.heldout)
    )
    ids = {fact.id for fact in known}
    names, objects = (iter(fresh_words(role, key, taken)) for role in ("name", "object"))
    probes = []
    for number in range(count):
        fact = forget[number % len(forget)]
        _check_replaceable(fact)
        subject = list(islice(names, len(fact.subject.split())))
        answer = list(islice(objects, len(fact.answer.split())))
        if len(subject + answer) < len(f"{fact.subject} {fact.answer}".split()):
            raise _out_of_names("probes", count, number)
        name = f"nonce-{number + 1:03d}"
        while name in ids:
            name += "x"
        heldout = tuple(_retold(prompt, fact, " ".join(subject)) for prompt in fact.heldout)
        probes.append(Fact(name, " ".join(answer), (), heldout, subject=" ".join(subject)))
    return tuple(probes)


def _check_replaceable(fact: Fact) -> None:
    """Refuse a forget fact whose subject or answer no invented name can replace."""
    why = ""
    if not fact.subject:
        why = 'has no "subject"; add the key to every forget fact'
    elif len(fact.answer.split()) > WORDS_LIMIT or any(sign.isdigit() for sign in fact.answer):
        why = f"has the answer {shown(fact.answer)}; expected at most {WORDS_LIMIT} words, no digit"
    elif any(_retold(prompt, fact, "") == prompt for prompt in fact.heldout):
        why = f"does not name its subject {shown(fact.subject)} in every held-out prompt"
    if why:
        raise FactsError(f"forget fact {shown(fact.id)} {why}; or give a file of probes")


def _retold(prompt: str, fact: Fact, name: str) -> str:
    return re.sub(rf"(?<!\w){re.escape(fact.subject)}(?!\w)", lambda _: name, prompt)


def _out_of_names(key: str, count: int, number: int) -> FactsError:
    return FactsError(f"{key}: {count} found; the invented names end after {number}; ask for fewer")


def tofu_probes(
    forget: Sequence[Fact], count: int, seed_key: str, taken: frozenset[str], form: str = PLAIN
) -> tuple[Fact, ...]:
    """Return ``count`` probes matched to the forget facts in turn, the same for the same key.

    taken: words of the data in lower case; no name is made of one.
    form: what prompts are made of questions with.
    """
    # Not the syllables of nonce.py, which the pocket models were trained on.
    given, family = (_names(part, f"{seed_key}/{part}", taken) for part in ("given", "family"))
    if count > min(len(given), len(family)):
        raise _out_of_names("probes", count, min(len(given), len(family)))
    return tuple(
        _tofu_probe(
            number, forget[number % len(forget)], (given[number], family[number]), seed_key, form
        )
        for number in range(count)
    )


def kind_of(question: str) -> str:
    """Return what a question asks for: one of ``KINDS``, or ``other``."""
    asked = question.casefold()
    return next((kind for kind, sign in KINDS.items() if re.search(sign, asked)), "other")


def bare_question(prompt: str) -> str:
    """Return the question of a prompt in either of TOFU's forms."""
    return prompt.removeprefix("Question: ").removesuffix("\nAnswer:")


def with_relations(facts: Sequence[Fact]) -> tuple[Fact, ...]:
    """Return the facts with the kind of their question as relation, where that can be reversed.

    A fact whose answer names its subject gives the subject away, and gets none.
    """
    return tuple(
        fact
        if not fact.subject or set(words(fact.subject)) & set(words(fact.answer))
        else replace(fact, relation=kind_of(bare_question(fact.trained[0])))
        for fact in facts
    )


def _names(part: str, key: str, taken: frozenset[str]) -> list[str]:
    """Return names that are no word of the data, in the order that the key gives."""
    names = ("".join(syllables) for syllables in product(*_PHRASES[part]))
    free = [name for name in names if name.casefold() not in taken]
    return sorted(free, key=lambda name: key_number(f"{key}/{name}"))


def _tofu_probe(number: int, like: Fact, name: tuple[str, str], seed_key: str, form: str) -> Fact:
    chance = random.Random(key_number(f"{seed_key}/probe/{number}"))
    slots = _slots(*name, chance)
    asked = bare_question(like.heldout[0])
    kind = kind_of(asked)
    question = _nearest((phrase.format(**slots) for phrase in QUESTIONS[kind]), asked)
    more = [chance.sample(MORE, size) for size in (0, 1, 1, 2, 2, 3, 3)]
    # The fullest form first: of two that fit as well, the one with more to know.
    answers = (" ".join((opening, *rest)) for opening, rest in product(ANSWERS[kind][::-1], more))
    answer = _nearest((text.format(**slots) for text in answers), like.answer)
    heldout = (form.format(question),)
    return Fact(f"nonce-{number:03d}", answer, (), heldout, (), slots["name"], kind)


def _nearest(texts: Iterator[str], like: str) -> str:
    """Return the text whose number of words is nearest."""
    return min(texts, key=lambda text: abs(len(text.split()) - len(like.split())))


def _slots(given: str, family: str, chance: random.Random) -> dict[str, str]:
    def word(key: str) -> str:
        return chance.choice(WORDS[key])

    female = chance.random() < 0.5
    drawn = {key: word(key) for key in ("city", "genre", "job", "work", "theme", "idea")}
    year = chance.randrange(1930, 1996)
    return drawn | {
        "name": f"{given} {family}",
        "first": given,
        "they": "she" if female else "he",
        "their": "her" if female else "his",
        "sex": "female" if female else "male",
        "book": f"The {word('first_word')} {word('last_word')}",
        "title": f"The {word('first_word')} {word('last_word')}",
        "award": f"{word('first_word')} {word('last_word')} Prize",
        "year": str(year),
        "date": f"{word('month')} {chance.randrange(1, 29)}, {year}",
    }
