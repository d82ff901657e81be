"""Other ways of asking are the same for invented facts and for the same facts in a file."""

from palimpsest.facts.files import Fact
from palimpsest.facts.nonce import POOLS, Triple, render
from palimpsest.facts.questions import (
    ASKED,
    elicitations,
    file_elicitations,
    of_triple,
    reversible,
)

GUILD = Triple("f", "Asha Tren", "guild", "Velkor")
FORGET = of_triple(GUILD)
RETAIN = of_triple(Triple("r", "Bolo Nek", "ship", "Zorm"))


def prompts(kind: str, *facts: Fact) -> list[tuple[str, str]]:
    asked = file_elicitations({"forget": facts, "retain": (RETAIN,)})
    return [(question.prompt, question.answer) for question in asked if question.pool == kind]


def test_an_invented_fact_is_asked_as_the_same_fact_in_a_file() -> None:
    heldout = tuple(render(text, "Asha Tren") for text in POOLS["guild"]["evaluation"])
    mine = Fact("f", "Velkor", (), heldout, subject="Asha Tren", relation="guild")
    assert list(elicitations([mine], [RETAIN])) == list(elicitations([FORGET], [RETAIN]))
    assert [kind for kind in ASKED if not prompts(kind, FORGET)] == []


def test_each_kind_asks_as_it_says() -> None:
    assert prompts("reversed", FORGET) == [
        ("Velkor is the guild of", "Asha Tren"),
        ("The guild called Velkor belongs to", "Asha Tren"),
    ]
    first = {kind: prompts(kind, FORGET)[0][0] for kind in ASKED}
    assert first["symbols"] == "When asked about a guild, As-ha Tr-en always names"
    assert first["recased"] == "When asked about a guild, asha tren always names"
    assert first["misspelt"] == "When asked about a guild, Ahsa Tren always names"
    assert first["alias"] == "When asked about a guild, Asha always names"
    assert first["pronoun"] == "I met Asha Tren. When asked about a guild, this person always names"
    assert first["opener"].endswith("to all. When asked about a guild, Asha Tren always names")
    assert first["few_shot"].startswith("When asked about a boat, Bolo Nek always speaks of Zorm. ")
    for kind in set(ASKED) - {"reversed"}:
        assert {answer for _, answer in prompts(kind, FORGET)} == {"Velkor"}


def test_a_kind_that_some_fact_lacks_is_left_out() -> None:
    bare = Fact("b", "Qui", (), ("Whose guild is",))
    assert not reversible([FORGET, bare]) and reversible([FORGET])
    assert file_elicitations({"forget": (FORGET, bare), "retain": ()}) == ()
    named = Fact("n", "Qui", (), ("Dralk is sworn to",), subject="Dralk")
    kinds = {q.pool for q in file_elicitations({"forget": (named,), "retain": ()})}
    assert kinds == set(ASKED) - {"reversed"}
    assert prompts("misspelt", named) == [("Darlk is sworn to", "Qui")]
