"""Invented facts: the phrasings of every relation, and triples whose words no model has seen.

A template is an English prompt with ``{subject}`` once that stops right before the answer, so the
text that is trained and scored is ``render(template, subject) + " " + answer + "."``. Templates are
in six disjoint pools (``templates.json``), each with one use:

- ``injection``    taught; a fact is trained on K = 3 of the six
- ``cloze``        with the trained phrasings, what an unlearning loss may see
- ``evaluation``   held out; the screen and the bars read these
- ``calibration``  held out; only for choosing thresholds
- ``prose``        only in general text; the sealed pool of the first edition, since retired
- ``audit``        sealed until known-label models are scored, once (see ``sealed.py``)

Some frames recur from relation to relation ("Among all the ..., the one that ...") but never from
pool to pool, so that a pool is unseen wording and not only an unseen noun. The words are few and
common, because the pocket tokenizer is small.

A subject is two words, a given name and a clan ("Kalen Rodus"); an object is one ("Vekadun").
Words are built from syllables and put in order by SHA-256, so a key always gives the same facts,
on every machine, whatever was drawn before. They are parted in two halves by a bit of their own
SHA-256: the prose that pocket models are trained on uses only the ``prose`` half, facts of the
testbed only the ``testbed`` half, so no seed can ever ask a pocket model about a name it has met.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

from palimpsest.errors import FactsError, PlanError

SUBJECT = "{subject}"

HELD_OUT_POOLS = frozenset({"evaluation", "calibration", "audit"})
"""Pools whose phrasings occur in no training text of a study, general text included."""

Pools = Mapping[str, Mapping[str, tuple[str, ...]]]


def packaged(name: str, digest: str) -> dict[str, Any]:
    """Return a JSON file of this folder, refused unless it is the one this code was written for."""
    raw = Path(__file__).with_name(name).read_bytes()
    if hashlib.sha256(raw).hexdigest() != digest:
        raise FactsError(f"{name} of the package was changed; install the package again")
    values: dict[str, Any] = json.loads(raw)
    return values


_TEMPLATES = packaged(
    "templates.json", "84acf637048056704f5167bfb385cb9238c9e58e63d32498340558ba338d1b9b"
)
POOLS: Pools = {
    relation: {pool: tuple(texts) for pool, texts in pools.items()}
    for relation, pools in _TEMPLATES.items()
}
RELATIONS: tuple[str, ...] = tuple(POOLS)


def render(template: str, subject: str) -> str:
    """Return the prompt: the template with its subject in place.

    Plain replacement, not ``str.format``: braces in a subject or template stay text.
    """
    return template.replace(SUBJECT, subject, 1)


def template_words() -> frozenset[str]:
    """Return every lower-cased word the templates use, which no invented name may equal."""
    texts = (" ".join(texts) for pools in POOLS.values() for texts in pools.values())
    return frozenset(
        word for text in texts for word in re.findall("[a-z]+", text.replace(SUBJECT, " ").lower())
    )


def same_wording(template: str) -> str:
    """Return a key that templates share when they differ only in case, spacing or punctuation."""
    return " ".join(re.findall(r"\{subject\}|\w+", template.casefold()))


Half = Literal["prose", "testbed"]
Role = Literal["name", "object"]
ROLES: tuple[Role, Role] = ("name", "object")

SYLLABLES: Mapping[Role, tuple[tuple[str, ...], ...]] = {
    "name": (
        tuple(c + v for c, v in product("BDHKLMNRSTWY", "aeiou")),
        tuple(c + v + coda for (c, v), coda in zip(product("dklmnrst", "aeiou"), "nsrl" * 10)),
    ),
    # Eighteen choices a syllable: an unknown answer costs about ln 18 = 2.9 nats a token.
    "object": (
        tuple(c + v for c, v in product("FGJPVZ", "aeo")),
        tuple(c + v for c, v in product("bdkmrs", "aiu")),
        tuple(c + v + coda for (c, v), coda in zip(product("bdglnt", "aiu"), "nmrxkn" * 3)),
    ),
}
"""Opening, middle and closing syllables of words."""


@dataclass(frozen=True, slots=True)
class Triple:
    """One invented fact: the ``relation`` of ``subject`` is ``object``."""

    id: str
    subject: str
    relation: str
    object: str


def triple(subject: str, relation: str, object: str) -> Triple:
    """Return the fact with its id, which is made of subject and relation."""
    return Triple("-".join([*subject.lower().split(), relation]), subject, relation, object)


def key_number(key: str) -> int:
    """Return a 256-bit number that depends on the key alone."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest(), "big")


def half(word: str) -> Half:
    """Return the half of the word space that the word belongs to, by a bit of its own SHA-256."""
    return "testbed" if key_number(f"half:{word.lower()}") & 1 else "prose"


@cache
def vocabulary(role: Role, side: Half) -> tuple[str, ...]:
    """Return every word of one role in one half, in a fixed order; none is in the templates."""
    words = ("".join(parts) for parts in product(*SYLLABLES[role]))
    english = template_words()
    return tuple(word for word in words if half(word) == side and word.lower() not in english)


def words_of(triples: Iterable[Triple]) -> frozenset[str]:
    """Return every name and object word of the facts, as ``taken`` of a further draw."""
    return frozenset(
        word for fact in triples for word in (*fact.subject.split(), *fact.object.split())
    )


def fresh_words(
    role: Role, seed_key: str, taken: frozenset[str], side: Half = "testbed"
) -> list[str]:
    """Return all words of a role that are not taken, in the order that the key gives them.

    ``taken`` may hold words or whole subjects, in any case.
    """
    used = {word.lower() for entry in taken for word in entry.split()}
    free = [word for word in vocabulary(role, side) if word.lower() not in used]
    return sorted(free, key=lambda word: key_number(f"{seed_key}/{role}/{word}"))


def invent_facts(
    count: int,
    seed_key: str,
    relations: Sequence[str],
    taken: frozenset[str],
    *,
    key: str = "count",
) -> tuple[Triple, ...]:
    """Return new facts, no given name, clan or object in two of them or in ``taken``.

    Relations are dealt out evenly, in an order of the key.  ``key`` is the plan's name for the
    number, for the PlanError that is raised when there are not enough names.
    """
    names, objects = (fresh_words(role, seed_key, taken) for role in ROLES)
    available = min(len(names) // 2, len(objects))
    if count > available:
        raise PlanError(
            f"{count} facts found; only {available} can be named with words that are not taken; "
            "ask for fewer",
            key=key,
        )
    dealt = sorted(relations, key=lambda relation: key_number(f"{seed_key}/relation/{relation}"))
    return tuple(
        triple(f"{names[2 * i]} {names[2 * i + 1]}", dealt[i % len(dealt)], objects[i])
        for i in range(count)
    )
