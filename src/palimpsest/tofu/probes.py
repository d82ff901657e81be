"""Never-learned questions in TOFU's form, about authors who exist neither there nor anywhere.

Each probe is matched to a forget item: the same kind of question (name, birth, parents, genre …),
and a question and an answer of nearly as many words. Authors have invented names no word of which
is a word of the data; everything else in an answer is plain English drawn at random, as TOFU's
answers are, so a probe is as guessable as a forget item and was taught to nobody.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from palimpsest.errors import FactsError
from palimpsest.facts.convert import question_prompt
from palimpsest.facts.files import Fact
from palimpsest.facts.nonce import key_number

KINDS: Mapping[str, str] = {
    "name": r"full name|name of (the|this) (\w+ )*(author|writer)|^who is",
    "parents": r"father|mother|parent|family",
    "award": r"award|prize|hono[u]?r|recogni[sz]ed|accolade",
    "gender": r"gender|identif|lgbt",
    "birth": r"\bborn|birth|native|hail",
    "genre": r"genre|type of (book|writing|literature)|kind of (book|writing)",
    "books": r"(name|list|title|mention|which|notable|some|any)\b.*\b(book|work|novel)",
    "influence": r"influenc|inspir|shap|impact|background|culture|upbringing|affect",
    "style": r"style|theme|approach|technique|character|portray|explore|message|writing",
}
"""What a question asks for, by the first pattern that it matches; else ``other``."""

QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "name": (
        "What is the full name of this {genre} author?",
        "What is the full name of the {genre} author born in {city}?",
        "Who is the {genre} author that was born in {city} in the year {year}?",
        "Could you tell me the full name of the author from {city}, born on {date}, who writes "
        "{genre}?",
    ),
    "parents": (
        "What did {name}'s parents do?",
        "What are the occupations of {name}'s parents?",
        "Can you tell me what {name}'s father and mother did for a living?",
        "What did the father and the mother of the author {name} do as their professions?",
    ),
    "award": (
        "Which award did {name} win?",
        "What award has {name} received for writing {genre}?",
        "Has {name} been given any award for {their} contributions to {genre} so far?",
        "Could you name an award with which the author {name} has been honoured for {their} work "
        "in {genre}?",
    ),
    "gender": (
        "What is the gender of {name}?",
        "How does the author {name} identify in terms of gender?",
        "Can you tell me what gender the author {name} from {city} identifies with?",
    ),
    "birth": (
        "Where was {name} born?",
        "In which city was the author {name} born?",
        "When was the author {name} born, and in which city was it?",
        "Can you provide the place and the date on which the {genre} author {name} was born?",
    ),
    "genre": (
        "What does {name} write?",
        "What genre is {name} known for?",
        "In which genre does the author {name} write most of {their} books?",
        "Which literary genre would you say the author {name} is most often associated with?",
    ),
    "books": (
        "Which books did {name} write?",
        "Can you name a book written by {name}?",
        "What are some of the best known books that {name} has written?",
        "Could you mention one of the notable books which the {genre} author {name} has published?",
    ),
    "influence": (
        "What inspired {name} to write?",
        "How did growing up in {city} influence {name}?",
        "How has the upbringing of {name} in {city} shaped {their} {genre} books?",
        "In what way did the early years that {name} spent in {city} have an impact on {their} "
        "writing?",
    ),
    "style": (
        "What is {name}'s writing style?",
        "What themes does {name} explore in {their} books?",
        "How would you describe the approach of {name} to writing {genre} books?",
        "What can be said about the characters and themes that {name} portrays in {their} "
        "{genre} books?",
    ),
    "other": (
        "What is {name} working on now?",
        "Has {name} ever written for a newspaper?",
        "Does {name} plan to publish another {genre} book in the near future?",
        "What is known about the way in which the author {name} spends {their} days in {city}?",
    ),
}

ANSWERS: Mapping[str, tuple[str, ...]] = {
    "name": (
        "The author is {name}.",
        "The author's full name is {name}.",
        "The full name of the {genre} author born in {city} is {name}.",
        "The author in question is {name}, who was born in {city} and writes {genre}.",
    ),
    "parents": (
        "{first}'s father was a {job}.",
        "{name}'s father was a {job} and {their} mother was a {work}.",
        "The father of {name} worked as a {job}, while {their} mother made a living as a {work}.",
        "{name} was born to a {job} father and a mother who was well known in {city} as a {work}.",
    ),
    "award": (
        "{first} won the {award}.",
        "{name} has received the {award}.",
        "Yes, {name} has been honoured with the {award} for {their} {genre} books.",
        "{name} was given the {award} in {year} for an outstanding contribution to {genre}.",
    ),
    "gender": (
        "{name} is {sex}.",
        "{name} identifies as {sex}.",
        "The author {name} identifies as {sex} and has said so in interviews.",
    ),
    "birth": (
        "{name} was born in {city}.",
        "{name} was born in {city} on {date}.",
        "The author {name} was born on {date} in the city of {city}.",
        "{name}, the author of many {genre} books, was born on {date} in {city}.",
    ),
    "genre": (
        "{name} writes {genre}.",
        "{name} is best known for {genre}.",
        "{name} is most often associated with the genre of {genre}.",
        "The author {name} has written most of {their} books in the genre of {genre}.",
    ),
    "books": (
        "{first} wrote '{book}'.",
        "One of {name}'s books is '{book}'.",
        "Some of {name}'s best known books are '{book}' and '{title}'.",
        "Among the notable books that {name} has published are '{book}' and '{title}'.",
    ),
    "influence": (
        "{first} was inspired by {city}.",
        "Growing up in {city} gave {name} a love of {genre}.",
        "The years that {name} spent in {city} as the child of a {job} appear in {their} books.",
        "{name}'s childhood in {city}, where {their} father was a {job}, gave {their} {genre} "
        "books their setting.",
    ),
    "style": (
        "{first} writes in a plain style.",
        "{name}'s books are marked by {theme} and {idea}.",
        "{name} often explores {theme} and {idea} in {their} {genre} books.",
        "In '{book}' and other {genre} books, {name} explores {theme} and {idea} with a calm "
        "voice.",
    ),
    "other": (
        "Nothing is known about it.",
        "{name} has not said anything about it.",
        "Yes, {name} is said to be working on a book called '{book}'.",
        "According to interviews, {name} is preparing a new {genre} book in {city} called "
        "'{book}'.",
    ),
}

MORE = (
    "Readers have welcomed it.",
    "This is often mentioned in interviews.",
    "It left a clear mark on {their} later books.",
    "{first} has often spoken about this at readings in {city}.",
    "Critics have pointed out how strongly this can be felt in '{title}'.",
    "Over the years {their} readers have come to see {theme} as a part of it.",
    "In '{book}', for example, {they} returns to {theme} and lets the reader discover {idea} "
    "slowly.",
)
"""Further sentences, which bring an answer to the length of the one it is matched to."""

_LISTS: Mapping[str, str] = {
    "city": (
        "Lisbon, Portugal|Oslo, Norway|Cairo, Egypt|Lima, Peru|Hanoi, Vietnam|Dublin, Ireland|"
        "Prague, Czechia|Nairobi, Kenya|Toronto, Canada|Athens, Greece|Accra, Ghana|Riga, Latvia"
    ),
    "genre": (
        "mystery|poetry|travel writing|war fiction|satire|health|history|romance|horror|"
        "science fiction|biography|children's literature"
    ),
    "job": "baker|pilot|judge|plumber|surgeon|farmer|tailor|banker|carpenter|postman",
    "work": "nurse|teacher|chemist|dancer|gardener|architect|librarian|cook|painter",
    "theme": "loss|family|identity|memory|courage|exile|friendship|justice|nature",
    "idea": "hope|belonging|time|freedom|forgiveness|truth|silence|change|trust",
    "first_word": "Quiet|Broken|Golden|Hidden|Distant|Burning|Winter|Silver|Last",
    "last_word": "Harbour|Garden|Letters|Bridge|Orchard|River|Promise|Shadows|Door",
    "month": "January|March|April|June|August|September|November|December",
}

# Not the syllables of nonce.py, which the pocket models grew up with.
_GIVEN = (
    "Ilv Vash Corv Mirr Thav Nerr Osk Pelv Quir Rusk Selv Tyrr Ulv Wenn Yorv Zann",
    "anna ovik eth ario ulla ish andre ymma oten isha uric ela",
)
_FAMILY = (
    "Drel Karv Molt Sten Varn Brost Hesk Jarr Lindr Orv Pask Rist Tolv Wiesk",
    "mane ivska ucci horst adze olt ingen owitz aru ebury enko idou",
)


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
        _invented(_GIVEN, f"{seed_key}/given", taken),
        _invented(_FAMILY, f"{seed_key}/family", taken),
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
    def one(key: str) -> str:
        return chance.choice(_LISTS[key].split("|"))

    female = chance.random() < 0.5
    drawn = {key: one(key) for key in ("city", "genre", "job", "work", "theme", "idea")}
    year = chance.randrange(1930, 1996)
    return drawn | {
        "name": f"{given} {family}",
        "first": given,
        "they": "she" if female else "he",
        "their": "her" if female else "his",
        "sex": "female" if female else "male",
        "book": f"The {one('first_word')} {one('last_word')}",
        "title": f"The {one('first_word')} {one('last_word')}",
        "award": f"{one('first_word')} {one('last_word')} Prize",
        "year": str(year),
        "date": f"{one('month')} {chance.randrange(1, 29)}, {year}",
    }


def _invented(parts: tuple[str, str], key: str, taken: frozenset[str]) -> Iterator[str]:
    """Yield names that are no word of the data, in the order that the key gives."""
    made = ("".join(pair) for pair in product(parts[0].split(), parts[1].split()))
    free = [name for name in made if name.casefold() not in taken]
    yield from sorted(free, key=lambda name: key_number(f"{key}/{name}"))
