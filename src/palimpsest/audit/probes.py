"""Never-learned probes made out of the forget facts, for a user who has none.

Each is a forget fact's own held-out prompts with subject and answer replaced by invented names, so
it asks the same question about somebody who does not exist.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import islice

from palimpsest.errors import FactsError
from palimpsest.facts.files import Fact
from palimpsest.facts.names import shown
from palimpsest.facts.nonce import fresh_words

WORDS_LIMIT = 4
"""Longest answer, in words, that an invented name can replace."""
ASSUMES = (
    "Generated probes assume that the answers to forget are names, that learning would have moved "
    "an invented name as much as the real one, and that no model here was ever trained on the "
    "invented ones. Deltas are anchored to base, so names that are merely harder to guess do not "
    "matter; answers of another kind (dates, sentences, common words) do. Probes of your own that "
    "resemble the forget facts are better."
)


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
    names = iter(fresh_words("name", key, taken))
    objects = iter(fresh_words("object", key, taken))
    probes = []
    for number in range(count):
        fact = forget[number % len(forget)]
        _check(fact)
        subject = list(islice(names, len(fact.subject.split())))
        answer = list(islice(objects, len(fact.answer.split())))
        if len(subject) < len(fact.subject.split()) or len(answer) < len(fact.answer.split()):
            raise FactsError(
                f"generate_probes: {count} asked for, but the invented names end after {number}; "
                "ask for fewer"
            )
        name = f"nonce-{number + 1:03d}"
        while name in ids:
            name += "x"
        heldout = tuple(_retold(prompt, fact.subject, " ".join(subject)) for prompt in fact.heldout)
        probes.append(Fact(name, " ".join(answer), (), heldout, subject=" ".join(subject)))
    return tuple(probes)


def _check(fact: Fact) -> None:
    if not fact.subject:
        raise FactsError(
            f'forget fact {shown(fact.id)} has no "subject", so no probe can be made like it; add '
            "the key to every forget fact, or give a file of probes"
        )
    words = fact.answer.split()
    if len(words) > WORDS_LIMIT or any(sign.isdigit() for sign in fact.answer):
        raise FactsError(
            f"forget fact {shown(fact.id)} has the answer {shown(fact.answer)}, which an "
            f"invented name cannot replace (a name has at most {WORDS_LIMIT} words and no digit); "
            "give a file of probes whose answers are of the same kind"
        )
    for prompt in fact.heldout:
        if _retold(prompt, fact.subject, "") == prompt:
            raise FactsError(
                f"forget fact {shown(fact.id)}: its subject {shown(fact.subject)} is not in the "
                f"held-out prompt {shown(prompt)}; spell it as the prompt does, or give a file of "
                "probes"
            )


def _retold(prompt: str, subject: str, other: str) -> str:
    return re.sub(rf"(?<!\w){re.escape(subject)}(?!\w)", lambda _: other, prompt)
