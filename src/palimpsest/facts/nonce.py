"""Invented (subject, relation, object) triples whose words nobody has seen.

A subject is two words, a given name and a clan ("Kalen Rodus"); an object is one ("Vekadun").
Words are built from syllables and put in order by SHA-256, so a key always gives the same facts,
on every machine, whatever was drawn before.

The words are parted in two halves by a bit of their own SHA-256.  The prose that the pocket models
grew up with uses only the ``prose`` half, facts of the testbed only the ``testbed`` half, so no
seed can ever ask a pocket model about a name it has met.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Literal

from palimpsest.errors import PlanError
from palimpsest.facts.templates import template_words

Half = Literal["prose", "testbed"]
Role = Literal["name", "object"]
ROLES: tuple[Role, Role] = ("name", "object")

_NAME_OPENINGS = tuple(c + v for c, v in product("BDHKLMNRSTWY", "aeiou"))
_NAME_ENDINGS = tuple(
    c + v + coda for (c, v), coda in zip(product("dklmnrst", "aeiou"), "nsrl" * 10, strict=True)
)
# Eighteen choices a syllable: an answer nobody could know costs about ln 18 = 2.9 nats a token.
_OBJECT_OPENINGS = tuple(c + v for c, v in product("FGJPVZ", "aeo"))
_OBJECT_MIDDLES = tuple(c + v for c, v in product("bdkmrs", "aiu"))
_OBJECT_ENDINGS = tuple(
    c + v + coda for (c, v), coda in zip(product("bdglnt", "aiu"), "nmrxkn" * 3, strict=True)
)


@dataclass(frozen=True, slots=True)
class Triple:
    """One invented fact: the ``relation`` of ``subject`` is ``object``."""

    id: str
    subject: str
    relation: str
    object: str

    @property
    def given(self) -> str:
        """The first word of the subject, which only this subject bears."""
        return self.subject.split()[0]

    @property
    def clan(self) -> str:
        """The last word of the subject, shared with its kin."""
        return self.subject.split()[-1]


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
    if role == "name":
        syllables: tuple[tuple[str, ...], ...] = (_NAME_OPENINGS, _NAME_ENDINGS)
    else:
        syllables = (_OBJECT_OPENINGS, _OBJECT_MIDDLES, _OBJECT_ENDINGS)
    words = ("".join(parts) for parts in product(*syllables))
    english = template_words()
    return tuple(word for word in words if half(word) == side and word.lower() not in english)


def syllables() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the syllables that open a word, and those that continue one."""
    return (
        _NAME_OPENINGS + _OBJECT_OPENINGS,
        tuple(dict.fromkeys(_NAME_ENDINGS + _OBJECT_MIDDLES + _OBJECT_ENDINGS)),
    )


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
    return sorted(
        free, key=lambda word: hashlib.sha256(f"{seed_key}/{role}/{word}".encode()).digest()
    )


def draw(
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
    if count < 0:
        raise PlanError(f"{key}: found {count}; a number of facts is 0 or more")
    if count and not relations:
        raise PlanError(f"{key}: {count} facts but no relation; name at least one relation")
    names, objects = (fresh_words(role, seed_key, taken) for role in ROLES)
    available = min(len(names) // 2, len(objects))
    if count > available:
        raise PlanError(
            f"{key}: {count} facts asked for (seed key {seed_key!r}), but only {available} can be "
            "named with words that are not taken; ask for fewer facts"
        )
    dealt = sorted(relations, key=lambda relation: key_number(f"{seed_key}/relation/{relation}"))
    return tuple(
        triple(f"{names[2 * i]} {names[2 * i + 1]}", dealt[i % len(dealt)], objects[i])
        for i in range(count)
    )


def kin(fact: Triple, count: int, seed_key: str, taken: frozenset[str]) -> tuple[Triple, ...]:
    """Return the same fact of ``count`` other members of the clan, with new given names."""
    names = _further_names(fact, count, f"{seed_key}/kin", taken)
    return tuple(triple(f"{name} {fact.clan}", fact.relation, fact.object) for name in names)


def alias(fact: Triple, seed_key: str, taken: frozenset[str]) -> Triple:
    """Return the same fact under another name of its subject, two new words."""
    names = _further_names(fact, 2, f"{seed_key}/alias", taken)
    return triple(" ".join(names), fact.relation, fact.object)


def _further_names(fact: Triple, count: int, seed_key: str, taken: frozenset[str]) -> list[str]:
    names = fresh_words("name", seed_key, taken | words_of([fact]), half(fact.given))
    if count > len(names):
        raise PlanError(
            f"{count} further names for {fact.subject} needed (seed key {seed_key!r}), but only "
            f"{len(names)} are not taken; ask for fewer facts"
        )
    return names[:count]
