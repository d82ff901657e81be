"""Never-learned questions in TOFU's form, about authors who exist neither there nor anywhere.

Each probe is matched to a forget item: the same kind of question (name, birth, parents, genre …),
and a question and an answer of nearly as many words. Authors have invented names no word of which
is a word of the data; everything else in an answer is plain English drawn at random, as TOFU's
answers are, so a probe is as guessable as a forget item and was taught to nobody. The wordings are
in ``tofu_phrases.json``.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from palimpsest.errors import FactsError
from palimpsest.facts.convert import question_prompt
from palimpsest.facts.files import Fact
from palimpsest.facts.nonce import key_number
from palimpsest.facts.templates import packaged

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
# Not the syllables of nonce.py, which the pocket models grew up with.
GIVEN: list[list[str]] = _PHRASES["given"]
FAMILY: list[list[str]] = _PHRASES["family"]


def kind_of(question: str) -> str:
    """Return what a question asks for: one of ``KINDS``, or ``other``."""
    asked = question.casefold()
    return next((kind for kind, sign in KINDS.items() if re.search(sign, asked)), "other")


def tofu_probes(
    forget: Sequence[Fact], count: int, seed_key: str, taken: frozenset[str]
) -> tuple[Fact, ...]:
    """Return ``count`` probes matched to the forget facts in turn, the same for the same key.

    taken: words of the data in lower case; no name is made of one.
    """
    names = zip(
        _invented(GIVEN, f"{seed_key}/given", taken),
        _invented(FAMILY, f"{seed_key}/family", taken),
    )
    probes = []
    for number in range(count):
        try:
            given, family = next(names)
        except StopIteration:
            raise FactsError(
                f"probes: {count} asked for, but the invented names end after {number}; ask for "
                "fewer"
            ) from None
        probes.append(_probe(number, forget[number % len(forget)], given, family, seed_key))
    return tuple(probes)


def _probe(number: int, like: Fact, given: str, family: str, seed_key: str) -> Fact:
    chance = random.Random(key_number(f"{seed_key}/probe/{number}"))
    slots = _slots(given, family, chance)
    kind = kind_of(_asked(like))
    question = _nearest(
        (form.format(**slots) for form in QUESTIONS[kind]), len(_asked(like).split())
    )
    more = [chance.sample(MORE, size) for size in (0, 1, 1, 2, 2, 3, 3)]
    # The fullest form first: of two that fit as well, the one with more to know.
    answers = (" ".join((form, *rest)) for form, rest in product(ANSWERS[kind][::-1], more))
    answer = _nearest((form.format(**slots) for form in answers), len(like.answer.split()))
    return Fact(
        f"nonce-{number:03d}",
        answer,
        (),
        (question_prompt(question),),
        subject=f"{given} {family}",
        relation=kind,
    )


def _asked(fact: Fact) -> str:
    """Return the held-out question of a fact without its tags."""
    return fact.heldout[0].removeprefix("Question: ").removesuffix("\nAnswer:")


def _nearest(texts: Iterator[str], length: int) -> str:
    return min(texts, key=lambda text: abs(len(text.split()) - length))


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


def _invented(parts: Sequence[Sequence[str]], key: str, taken: frozenset[str]) -> Iterator[str]:
    """Yield names that are no word of the data, in the order that the key gives."""
    names = ("".join(syllables) for syllables in product(*parts))
    free = [name for name in names if name.casefold() not in taken]
    yield from sorted(free, key=lambda name: key_number(f"{key}/{name}"))
