"""General text: the prose of the pocket models, or a file such as WikiText.

The pocket prose is about a generated world: 150 clans, 500 people, 4 000 facts over the relations
of ``templates.py``.  Members of a clan mostly share its objects.  In the bake every phrasing of
every pool but the sealed one occurs with these people, so a model raised on the prose knows the
language of the templates and none of the testbed's facts (``nonce.py`` separates their words).
What a study trains beside the facts, scores as general text or replays uses none of the held-out
phrasings, not even for other people.
"""

import hashlib
import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from palimpsest.errors import FactsError
from palimpsest.facts.names import shown_path
from palimpsest.facts.nonce import ROLES, Triple, fresh_words, key_number, triple
from palimpsest.facts.rows import FILE_LIMIT, read_lines
from palimpsest.facts.templates import HELD_OUT_POOLS, POOLS, RELATIONS, render

POCKET = "pocket"
TEXT_LIMIT = 2**30
"""Largest file of general text, in bytes."""
CLANS = 150
PEOPLE = 500
OWN_OBJECT = 10  # one fact in ten is the person's own and not the clan's
HELD_OUT = 16  # one world sentence in sixteen is kept from the bake, as general text


def sentence(template: str, fact: Triple) -> str:
    """Return the fact in one phrasing, answer last, with its full stop."""
    return f"{render(template, fact.subject)} {fact.object}."


@dataclass(frozen=True, slots=True)
class World:
    """The people of the pocket prose: their facts, and the words left over for strangers."""

    facts: tuple[Triple, ...]
    spare_names: tuple[str, ...]
    objects: tuple[str, ...]


@cache
def world() -> World:
    """Return the one world that every pocket model grew up with."""
    names, objects = (fresh_words(role, "pocket world", frozenset(), "prose") for role in ROLES)
    clans, people = names[:CLANS], names[CLANS : CLANS + PEOPLE]
    facts = []
    for person, given in enumerate(people):
        for which, relation in enumerate(RELATIONS):
            subject = f"{given} {clans[person % CLANS]}"
            chance = key_number(f"pocket world/{subject}/{relation}")
            shared = (person % CLANS) * len(RELATIONS) + which
            own = chance // OWN_OBJECT % len(objects)
            pick = own if chance % OWN_OBJECT == 0 else shared
            facts.append(triple(subject, relation, objects[pick]))
    return World(tuple(facts), tuple(names[CLANS + PEOPLE :]), tuple(objects))


@cache
def pocket_pieces() -> tuple[str, ...]:
    """Return the pocket general text: untaught world sentences in no held-out phrasing."""
    return tuple(
        text
        for fact in world().facts
        for pool, templates in POOLS[fact.relation].items()
        if pool not in HELD_OUT_POOLS
        for text in (sentence(template, fact) for template in templates)
        if kept_from_bake(text)
    )


def kept_from_bake(text: str) -> bool:
    """Return whether a world sentence is one of those that no bake has seen."""
    return key_number(f"held out:{text}") % HELD_OUT == 0


def general_pieces(
    source: str | Path, count: int, seed_key: str, *, words: int = 20
) -> tuple[str, ...]:
    """Return ``count`` pieces of general text, all different, the same for the same key.

    ``source`` is ``"pocket"`` for sentences about the world that no bake has seen, or the path of
    a UTF-8 text file in plain or WikiText layout, which is cut into pieces of ``words`` whole
    words.
    """
    pieces = pocket_pieces() if source == POCKET else file_pieces(source, words)
    keyed = ((key_number(f"{seed_key}/general/{n}/{text}"), text) for n, text in enumerate(pieces))
    chosen = heapq.nsmallest(count, keyed)
    if len(chosen) < count:
        raise FactsError(
            f"{shown_path(source)}: {count} general pieces asked for, but it gives only "
            f"{len(chosen)} of {words} words (shorter lines are left out); give a longer text, or "
            "ask for fewer (scored_pieces and train_pieces)"
        )
    return tuple(text for _, text in chosen)


def file_pieces(path: str | Path, words: int) -> Iterator[str]:
    """Yield the paragraphs of a file, cut into pieces of whole words, without headings.

    A line is a paragraph; when every line is shorter than a piece, blank lines part paragraphs.
    WikiText writes headings as "= Title =", hyphens in words and numbers as "@-@", and rare words
    as "<unk>"; pieces with such a hole are left out, and so are repeated ones.
    """
    head = b"".join(islice(read_lines(path, TEXT_LIMIT), 3))
    if re.match(rb'(\xef\xbb\xbf)?\s*(\{\s*"|\[\s*\{)', head):
        raise FactsError(f"{shown_path(path)}: JSON found; expected prose without the facts")
    # Lines broken by hand, as in a poem or at column 72, are joined up to a blank one.
    wrapped = all(len(line) < words for line in _lines(path))
    seen: set[bytes] = set()
    rest: list[str] = []
    for line in _lines(path):
        paragraph = [*rest, *line]
        whole = len(paragraph) // words * words
        rest = paragraph[whole:] if wrapped and line else []
        for start in range(0, whole, words):
            piece = paragraph[start : start + words]
            digest = hashlib.sha256(" ".join(piece).encode()).digest()
            if "<unk>" not in piece and digest not in seen:
                seen.add(digest)
                yield " ".join(piece)


def _lines(path: str | Path) -> Iterator[list[str]]:
    """Yield the words of every line, none of a heading's, without WikiText's marks."""
    for number, raw in enumerate(read_lines(path, TEXT_LIMIT), start=1):
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            if len(raw) == FILE_LIMIT:
                raise ValueError(f"has {FILE_LIMIT} bytes or more")
        except ValueError as error:
            why = f"{error}; expected lines of UTF-8"
            raise FactsError(f"{shown_path(path)} line {number}: {why}") from error
        for line in map(str.strip, text.splitlines()):
            heading = line.startswith("=") and line.endswith("=")
            for joiner in "-,.":
                line = line.replace(f" @{joiner}@ ", joiner)
            yield [] if heading else line.split()
