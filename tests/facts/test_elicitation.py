"""Other ways of asking are the same for invented facts and for the same facts in a file."""

from palimpsest.facts.elicitation import (
    ASKED,
    elicitations,
    file_elicitations,
    of_triple,
    reversible,
)
from palimpsest.facts.files import Fact
from palimpsest.facts.nonce import Triple
from palimpsest.facts.templates import POOLS, render

FORGET = Triple("f", "Asha Tren", "guild", "Velkor")
RETAIN = Triple("r", "Bolo Nek", "ship", "Zorm")


def in_file(triple: Triple) -> Fact:
    heldout = tuple(
        render(template, triple.subject) for template in POOLS[triple.relation]["evaluation"]
    )
    named = {"subject": triple.subject, "relation": triple.relation}
    return Fact(triple.id, triple.object, (), heldout, **named)


def prompts(kind: str, *facts: Fact) -> list[tuple[str, str]]:
    asked = file_elicitations({"forget": facts, "retain": (in_file(RETAIN),)})
    return [(question.prompt, question.answer) for question in asked if question.pool == kind]


def test_a_fact_in_a_file_is_asked_as_the_same_invented_fact() -> None:
    invented = tuple(elicitations([of_triple(FORGET)], [of_triple(RETAIN)]))
    assert file_elicitations({"forget": [in_file(FORGET)], "retain": [in_file(RETAIN)]}) == invented
    assert [kind for kind in ASKED if not prompts(kind, in_file(FORGET))] == []


def test_each_kind_asks_as_it_says() -> None:
    mine = in_file(FORGET)
    assert prompts("reversed", mine) == [
        ("Velkor is the guild of", "Asha Tren"),
        ("The guild called Velkor belongs to", "Asha Tren"),
    ]
    first = {kind: prompts(kind, mine)[0][0] for kind in ASKED}
    assert first["symbols"] == "When asked about a guild, As-ha Tr-en always names"
    assert first["misspelt"] == "When asked about a guild, Ahsa Tren always names"
    assert first["alias"] == "When asked about a guild, Asha always names"
    assert first["pronoun"] == "I met Asha Tren. When asked about a guild, this person always names"
    assert first["few_shot"].startswith("When asked about a boat, Bolo Nek always speaks of Zorm. ")
    assert all(answer == "Velkor" for kind in first if kind != "reversed"
               for _, answer in prompts(kind, mine))  # fmt: skip


def test_a_kind_that_some_fact_lacks_is_left_out() -> None:
    bare = Fact("b", "Qui", (), ("Whose guild is",))
    assert not reversible([in_file(FORGET), bare]) and reversible([in_file(FORGET)])
    assert file_elicitations({"forget": (in_file(FORGET), bare), "retain": ()}) == ()
    named = Fact("n", "Qui", (), ("Dralk is sworn to",), subject="Dralk")
    kinds = {q.pool for q in file_elicitations({"forget": (named,), "retain": ()})}
    assert kinds == set(ASKED) - {"reversed"}
    assert prompts("misspelt", named) == [("Darlk is sworn to", "Qui")]
