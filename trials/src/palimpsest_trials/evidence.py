"""Evidence for invented facts: kin and aliases of a subject, sentences from which a fact follows.

The bake teaches pocket models to use such sentences in context; the study of inferable facts puts
them among the retained texts.
"""

from collections.abc import Sequence
from typing import Literal

from palimpsest.errors import FactsError, PlanError
from palimpsest.facts.general import sentence
from palimpsest.facts.nonce import (
    POOLS,
    Triple,
    fresh_words,
    half,
    key_number,
    render,
    triple,
    words_of,
)

Mechanism = Literal["restated", "alias", "kin"]

ALIAS_TEMPLATES = (
    "{subject} is also called",
    "{subject} is also known as",
    "Some people call {subject} by the name",
)


def kin(fact: Triple, count: int, seed_key: str, taken: frozenset[str]) -> tuple[Triple, ...]:
    """Return the same fact of ``count`` other members of the clan, with new given names."""
    names, clan = _further_names(fact, count, f"{seed_key}/kin", taken), fact.subject.split()[-1]
    return tuple(triple(f"{name} {clan}", fact.relation, fact.object) for name in names)


def alias(fact: Triple, seed_key: str, taken: frozenset[str]) -> Triple:
    """Return the same fact under another name of its subject, two new words."""
    names = _further_names(fact, 2, f"{seed_key}/alias", taken)
    return triple(" ".join(names), fact.relation, fact.object)


def _further_names(fact: Triple, count: int, seed_key: str, taken: frozenset[str]) -> list[str]:
    side = half(fact.subject.split()[0])
    names = fresh_words("name", seed_key, taken | words_of([fact]), side)
    if count > len(names):
        raise PlanError(
            f"{count} further names for {fact.subject} needed; only {len(names)} are not taken"
        )
    return names[:count]


def evidence_sentences(
    fact: Triple, mechanism: Mechanism, support: Sequence[Triple] = (), *, seed_key: str = ""
) -> tuple[str, ...]:
    """Return sentences from which the fact follows, to be put before a prompt.

    - ``restated``: the fact itself;
    - ``alias``: "X is also called A.", then the fact of A, for each alias in ``support``;
    - ``kin``: the same fact of each member of the clan in ``support``.

    Phrasings are taught ones, in an order of the key, all different as long as they last.
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
