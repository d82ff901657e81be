"""General text: the prose of the pocket models, or a file such as WikiText.

The pocket prose is about a generated world: 150 clans, 500 people, 4 000 facts over the relations
of ``templates.py``.  Members of a clan mostly share its objects.  In the bake every phrasing of
every pool but the sealed one occurs with these people, so a model raised on the prose knows the
language of the templates and none of the testbed's facts (``nonce.py`` keeps their words apart).
What a study trains beside the facts, scores as general text or replays uses none of the held-out
phrasings, not even for other people.

The bake also has passages about strangers (``tools/pocket_prose.py``), from which a model learns to
use evidence in context; ``evidence_sentences`` writes evidence in the same forms.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Literal

from palimpsest.errors import FactsError
from palimpsest.facts.nonce import ROLES, Triple, fresh_words, key_number, triple
from palimpsest.facts.templates import HELD_OUT_POOLS, POOLS, RELATIONS, render

Mechanism = Literal["restated", "alias", "kin"]

POCKET = "pocket"
CLANS = 150
PEOPLE = 500
OWN_OBJECT = 10  # one fact in ten is the person's own and not the clan's
HELD_OUT = 16  # one world sentence in sixteen is kept from the bake, as general text
ALIAS_TEMPLATES = (
    "{subject} is also called",
    "{subject} is also known as",
    "Some people call {subject} by the name",
)


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


def evidence_sentences(
    fact: Triple,
    mechanism: Mechanism,
    support: Sequence[Triple] = (),
    *,
    seed_key: str = "",
) -> tuple[str, ...]:
    """Return sentences from which the fact follows, to be put before a prompt.

    - ``restated``: the fact itself;
    - ``alias``: "X is also called A.", then the fact of A, for each alias in ``support``;
    - ``kin``: the same fact of each member of the clan in ``support``.

    ``support`` holds what ``nonce.alias`` or ``nonce.kin`` gave.  Phrasings are taught ones, in an
    order of the key, all different as long as they last.
    """
    if (mechanism == "restated") == bool(support):
        raise FactsError(
            f"evidence by {mechanism!r} for {fact.subject} with {len(support)} supporting facts; "
            "'restated' takes none, 'alias' and 'kin' need at least one"
        )
    templates = sorted(
        POOLS[fact.relation]["injection"], key=lambda t: key_number(f"{seed_key}/{fact.id}/{t}")
    )
    lines = []
    for i, other in enumerate(support or (fact,)):
        if mechanism == "alias":
            lines.append(f"{render(ALIAS_TEMPLATES[0], fact.subject)} {other.subject}.")
        lines.append(sentence(templates[i % len(templates)], other))
    return tuple(lines)


def general_pieces(
    source: str | Path, count: int, seed_key: str, *, words: int = 20
) -> tuple[str, ...]:
    """Return ``count`` pieces of general text, all different, the same for the same key.

    ``source`` is ``"pocket"`` for sentences about the world that no bake has seen, or the path of
    a UTF-8 text file in plain or WikiText layout, which is cut into pieces of ``words`` whole
    words.
    """
    pieces = pocket_pieces() if source == POCKET else file_pieces(source, words)
    if count > len(pieces):
        raise FactsError(
            f"{source}: {count} general pieces asked for, but it gives only {len(pieces)} of "
            f"{words} words (shorter lines are left out); give a longer text, or ask for fewer "
            "(scored_pieces and train_pieces in a plan, scored_pieces in the file of an audit)"
        )
    order = sorted(
        range(len(pieces)),
        key=lambda i: hashlib.sha256(f"{seed_key}/general/{i}/{pieces[i]}".encode()).digest(),
    )
    return tuple(pieces[i] for i in order[:count])


def file_pieces(path: str | Path, words: int) -> tuple[str, ...]:
    """Return the paragraphs of a file, cut into pieces of whole words, without headings.

    A line is a paragraph; when every line is shorter than a piece, blank lines part paragraphs.
    WikiText writes headings as "= Title =", hyphens in words and numbers as "@-@", and rare words
    as "<unk>"; pieces with such a hole are left out, and so are repeated ones.
    """
    if words < 1:
        raise FactsError(f"{path}: pieces of {words} words asked for; a piece has at least 1 word")
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise FactsError(
            f"{path}: general text cannot be read ({error.strerror}); give 'pocket' or the path "
            "of a text file"
        ) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise FactsError(
            f"{path} line {line}: byte {error.start} is not UTF-8; save the text as UTF-8"
        ) from error
    if re.match(r'\s*(\{\s*"|\[\s*\{)', text):
        raise FactsError(
            f"{path}: JSON found; general text is ordinary prose, in a plain text file that holds "
            "none of the facts"
        )
    lines = [_running_text(line.strip()).split() for line in text.splitlines()]
    if max(map(len, lines), default=0) < words:
        # Lines were broken by hand, as in a poem or at column 72: join those between blank ones.
        runs = [list(run) for filled, run in groupby(lines, key=bool) if filled]
        lines = [[word for line in run for word in line] for run in runs]
    pieces = [
        " ".join(line[start : start + words])
        for line in lines
        for start in range(0, len(line) - words + 1, words)
        if "<unk>" not in line[start : start + words]
    ]
    return tuple(dict.fromkeys(pieces))


def _running_text(line: str) -> str:
    """Return a line without WikiText's marks; nothing of a heading."""
    if line.startswith("=") and line.endswith("="):
        return ""
    for joiner in "-,.":
        line = line.replace(f" @{joiner}@ ", joiner)
    return line
